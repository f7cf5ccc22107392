"""The subcommands of `manage.py pipeline`. Each is a module with HELP, add_arguments(parser) and run(**options)."""
