"""The subcommands of `manage.py pipeline`, a module each: HELP, add_arguments(parser), run(**options)."""
