"""`pushhub emulator`: parse the options, prepare the environment, run the emulator."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from socket import socket

from pushhub.common import environment as env
from pushhub.common.parser import Parser
from pushhub.common.servers import listen
from pushhub.emulator import stop_signals
from pushhub.emulator.resources import ResourcesError, read_resources

DEFAULT_ADDRESS = "127.0.0.1:8085"
#: Settings that the emulator has of its own, whatever a server's environment says, in which it may be started.
OWN_STORES = ("DATABASE_URL", "REPLICA_URL", "REDIS_URL", "BROKER_URL")

PROJECT_VARIABLE = "PUBSUB_PROJECT"

EPILOG = """\
Projects in short form: PROJECT,TOPIC:SUBSCRIPTION:SUBSCRIPTION,TOPIC,...
The environment may hold more of them: PUBSUB_PROJECT1, PUBSUB_PROJECT2, and so on.

A resources file is YAML. Bodies are those of the REST API:

  projects:
    demo:
      topics:
        orders: {}
      subscriptions:
        billing: {topic: orders, pushConfig: {pushEndpoint: "http://127.0.0.1:9000/"}}
"""


def parser() -> argparse.ArgumentParser:
    options = Parser(
        prog="pushhub emulator",
        description="PushHub in one process, for development and tests. Callers need no credentials.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add(
        "--host-port",
        default=DEFAULT_ADDRESS,
        help=f"where gRPC and REST listen ({DEFAULT_ADDRESS}); port 0 is a free one",
    )
    add("--http", default="127.0.0.1:0", help="where REST and the console listen besides (a free port on loopback)")
    add("--data-dir", type=Path, help="keep everything in this folder; without it nothing outlives the process")
    add("--project", action="append", default=[], metavar="PROJECT,TOPIC:SUB,...", help="create these at the start")
    add("--resources", type=Path, help="a YAML file of resources to create at the start")
    add("--time-scale", type=_time_scale, default=1.0, help="multiply backoffs by this, for instance 0.01 (default 1)")
    add("--log-level", default="WARNING", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="(default WARNING)")
    return options


def _time_scale(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0 and up to 1")


def main(arguments: Sequence[str]) -> int:
    """Run the emulator until it is asked to stop. Return the exit status."""
    options = parser().parse_args(arguments)
    with ExitStack() as cleanup:
        try:
            came: list[int] = []  # each ends the start at its next step, so that no file and no process stays
            for number in stop_signals():
                cleanup.callback(signal.signal, number, signal.signal(number, lambda number, _: came.append(number)))
            resources = read_resources(projects=_projects(options.project), path=options.resources)
            # Listening from now on keeps other programs from taking a free port meanwhile.
            grpc = cleanup.enter_context(_listen("--host-port", options.host_port))
            http = cleanup.enter_context(_listen("--http", options.http))
            prepare_environment(options, cleanup, grpc=grpc, http=http)
            # Everything below reads the settings, so it is imported once they are complete.
            from pushhub.emulator.process import Emulator

            return Emulator(resources, grpc=grpc, http=http, signals=came).run()
        except (env.SettingError, ResourcesError, env.StartError) as error:
            return _refuse(str(error))
        except OSError as error:
            return _refuse(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        except KeyboardInterrupt:
            return 128 + signal.SIGINT  # as shells have it


def prepare_environment(options: argparse.Namespace, cleanup: ExitStack, *, grpc: socket, http: socket) -> None:
    """Put the options into the environment, from which the settings are read."""
    if options.data_dir is None:
        folder = Path(tempfile.mkdtemp(prefix="pushhub-emulator-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    else:
        folder = options.data_dir.absolute()
    journal = "on" if options.data_dir and find_spec("pyarrow") else "off"
    os.environ |= env.DEVELOPMENT_DEFAULTS | {
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        "PUSHHUB_EMULATOR": "folder" if options.data_dir else "memory",
        "PUSHHUB_DATA": str(folder),
        "PUSHHUB_ANONYMOUS": env.DEVELOPER,
        "PUSHHUB_GRPC": _joined(grpc),
        "PUSHHUB_HTTP": _joined(http),
        "PUSHHUB_LOG_LEVEL": options.log_level,
        "PUSHHUB_TIME_SCALE": str(options.time_scale),
        "PUSHHUB_JOURNAL": os.environ.get("PUSHHUB_JOURNAL", journal),
    }
    for name in OWN_STORES:
        os.environ.pop(f"{env.PREFIX}{name}", None)
        os.environ.pop(f"{env.PREFIX}{name}_FILE", None)


def _projects(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the short forms of projects, each after the option or variable that has it."""
    yield from (("--project", text) for text in given)
    for name, text in sorted(os.environ.items()):
        # An empty variable is one that is not set.
        if text.strip() and name.startswith(PROJECT_VARIABLE) and name.removeprefix(PROJECT_VARIABLE).isdigit():
            yield name, text


def _listen(option: str, text: str) -> socket:
    """Return a socket that listens at the option's host and port, where 0 is a free port."""
    try:
        return listen(env.parse_address(text, least_port=0))
    except ValueError:
        raise env.SettingError(f"{option}={text}: give HOST:PORT, for example {DEFAULT_ADDRESS}") from None
    except OSError as error:
        raise env.SettingError(f"{option}={text}: cannot listen there: {error.strerror}") from None


def _joined(listening: socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse(reason: str) -> int:
    print(f"The emulator cannot start: {reason}", file=sys.stderr)  # noqa: T201
    return 1
