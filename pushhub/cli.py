"""The command `pushhub`: the emulator, the whole service, and everything that `manage.py` has."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from pushhub import __version__

USAGE = """\
usage: pushhub COMMAND ...

  emulator         PushHub in one process without authentication, for development and tests
  up               the whole service on this machine, until Ctrl-C
  topics, subscriptions, snapshots, schemas, message-transforms
                   of a running PushHub, with the words of `gcloud pubsub`
  messages         what became of a message: messages describe ID
  dead-letters     of a subscription: list, redrive, discard
  iam, projects    access and projects of a running PushHub
  completion       completion for bash, zsh or fish: source <(pushhub completion bash)
  receive          print the pushes that arrive, after checking their tokens
  backup, restore, move
                   the database: to a file, from a file, and to another database
  doctor           what is wrong with this installation, what to do about it, and what capacity is left
  capacity         what a load needs: processes, Redis, PostgreSQL, network
  help             the commands for operators; help COMMAND is COMMAND --help

  --version        the version of PushHub

`pushhub COMMAND --help` says more about each.
"""


#: The first words besides those that speak to a running PushHub and Django's commands.
COMMANDS = ("backup", "capacity", "completion", "doctor", "emulator", "help", "move", "receive", "restore", "up")
#: The modules of those that are neither, and of all whose flags are completed.
PROGRAMS = {
    "capacity": "pushhub.capacity.command",
    "doctor": "pushhub.doctor.command",
    "emulator": "pushhub.emulator.command",
    "up": "pushhub.runtime.supervisor",
}
PARSERS = {**PROGRAMS, "receive": "deliveries.management.receiver"}
#: The packages that have management commands.
COMMAND_PACKAGES = (
    *("django.core", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"),
    *("django.contrib.staticfiles", "rest_framework", "drf_spectacular", "subscriptions", "deliveries"),
)
#: The exit statuses after Ctrl-C and SIGTERM, as shells have them.
INTERRUPTED, TERMINATED = 130, 143
#: That after SIGPIPE, which Python ignores.
PIPE_CLOSED = 141


def main() -> None:
    """Run the command that the arguments name.

    After Ctrl-C nothing is printed, nor if the reader of the output, such as `head`, has enough.
    """
    try:
        try:
            run(*(sys.argv[1:] or ["--help"]))
        finally:
            sys.stdout.flush()  # at its end, Python would print a traceback of what fails
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED if error.errno == errno.EPIPE else f"pushhub: {error.strerror}")


def run(name: str, *arguments: str) -> None:
    if name in ("-h", "--help"):
        sys.stdout.write(USAGE)
    elif name == "--version":
        sys.stdout.write(f"pushhub {__version__}\n")
    elif name in PROGRAMS:
        sys.exit(import_module(PROGRAMS[name]).main(arguments))
    elif name in ("completion", "__complete"):
        complete(name, arguments)
    elif name == "help" and arguments:
        sys.argv[1:] = [*arguments, "--help"]
        run(*sys.argv[1:])
    else:
        check_word(name)
        manage(["pushhub", *sys.argv[1:]])


def check_word(name: str) -> None:
    """Exit if no command has this name. For a command that speaks to a running PushHub, Django is not loaded."""
    from pushhub.common.parser import nearest
    from subscriptions.cli import main as cli

    words = (*cli.WORDS, *COMMANDS)
    if name not in words and name not in management_commands():
        close = cli.commands_of(name)
        hint = f"did you mean {' or '.join(close)}?" if close else nearest(name, words)
        sys.stderr.write(f"pushhub: unknown command {name!r}: {hint or 'pushhub --help lists them'}\n")
        sys.exit(2)


def management_commands() -> list[str]:
    """Return the names of Django's and PushHub's management commands, without reading the settings."""
    from django.core.management import find_commands

    folders = [Path(spec.origin).parent for name in COMMAND_PACKAGES if (spec := find_spec(name)) and spec.origin]
    return [command for folder in folders for command in find_commands(str(folder / "management"))]


def complete(name: str, arguments: Sequence[str]) -> None:
    """Print a completion script, or the candidates that it asks for."""
    from subscriptions.cli import main as cli

    if name == "completion":
        sys.exit(cli.completion(arguments))
    word, *others = arguments or [""]
    if word in PARSERS and others:
        candidates = cli.flags_of(import_module(PARSERS[word]).parser(), others[-1])
    else:
        candidates = cli.candidates(arguments, commands=COMMANDS)
    sys.stdout.writelines(f"{candidate}\n" for candidate in candidates)


def manage(arguments: list[str]) -> None:
    """Speak to a running PushHub or `receive`, which do without Django, or run a management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    from pushhub.common.environment import SettingError
    from subscriptions.cli import main as cli

    name = arguments[1] if arguments[1:] else ""
    try:
        if name in cli.WORDS:
            sys.exit(cli.main(arguments[1:]))
        elif name == "receive":
            from deliveries.management.receiver import main as receive

            receive(arguments[2:])
        else:
            if name == "help" or {"-h", "--help"} & {*arguments}:
                os.environ.setdefault("PUSHHUB_SECRET_KEY", "not used: this prints help")
                os.environ.setdefault("PUSHHUB_JOURNAL", "off")  # which needs a package that the emulator alone lacks
            execute_django(arguments)
    except SettingError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def execute_django(arguments: list[str]) -> None:
    """Run a management command. SIGTERM ends it as Ctrl-C does: what it has begun, such as a backup, is cleaned up.

    Django's own commands don't catch that the database is away or lacks tables.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError

    from pushhub.common.databases import database_line, lacks_migrations

    try:
        execute_from_command_line(arguments)
    except (OperationalError, ProgrammingError) as error:
        if isinstance(error, ProgrammingError) and not lacks_migrations(error):
            raise
        sys.exit(f"the database cannot be used: {database_line(error)}")
