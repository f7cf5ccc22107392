"""`make up`: everything PushHub needs, under one supervisor, until Ctrl-C.

In order: refuse a taken port or a data folder in use, start the embedded Redis, migrate, create the first admin login,
start every process of `pushhub.runtime.processes`, and report when each is ready and at which address. Then Spark is
installed if it is missing.
"""

from __future__ import annotations

import argparse
import errno
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import django
import redis
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError, connections

from deliveries.pipeline import needs
from pushhub.common import environment as env
from pushhub.common.databases import refusal_line
from pushhub.common.datafolder import data_folder, data_folder_errors, load_or_create_secret
from pushhub.common.environment import StartError
from pushhub.common.errors import first_line
from pushhub.common.redisclient import shared_url
from pushhub.common.servers import listen
from pushhub.runtime import embedded, processes
from pushhub.runtime.crew import Crew
from pushhub.runtime.forking import Child, fork_and_call, import_everything
from pushhub.runtime.redisversion import check_redis
from pushhub.runtime.sparkinstall import SparkInstall
from subscriptions.transforms.systemcalls import why_unrestricted

#: How long Redis may take to answer, and all processes together to become ready.
REDIS_SECONDS = 20.0
READY_SECONDS = 300.0


def prepare_environment() -> None:
    """Switch this process and its children to the development mode."""
    os.environ |= env.DEVELOPMENT_DEFAULTS | os.environ
    addresses = env.listen_address("HTTP", "127.0.0.1:8000"), env.listen_address("GRPC", "127.0.0.1:8085")
    if all(env.is_loopback(host) for host, _port in addresses):
        os.environ.setdefault("PUSHHUB_ANONYMOUS", env.DEVELOPER)
    if not env.secret("SECRET_KEY"):
        # The settings create a secret key in the development mode only, and `make up` needs one in every mode.
        folder = Path(env.text("DATA", ".pushhub")).absolute()
        with data_folder_errors(folder):
            load_or_create_secret(folder / "secret-key")
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")


def require_free_port(name: str, address: tuple[str, int]) -> None:
    """Raise StartError, which names the setting of this port, if something listens on it already."""
    host, port = address
    try:
        listen(address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is taken: stop what listens there, "
                f"or choose another, for example by PUSHHUB_{name}={host}:{port + 1}"
            ) from None
        raise StartError(f"cannot listen on PUSHHUB_{name}={host}:{port}: {error.strerror}") from None


def require_free_ports(addresses: Mapping[str, tuple[str, int]]) -> None:
    """Raise StartError if two settings have the same address, or something listens on one already."""
    for (name, address), (other, other_address) in combinations(addresses.items(), 2):
        if address == other_address:
            raise StartError(f"PUSHHUB_{name} and PUSHHUB_{other} are the same address: give each a port of its own")
    for name, address in addresses.items():
        require_free_port(name, address)


def wait_until(crew: Crew, condition: Callable[[], bool], *, seconds: float, otherwise: str) -> None:
    """Handle the crew's events until `condition` is true. Raises StartError after `seconds`."""
    give_up = time.monotonic() + seconds
    while not condition():
        if crew.is_stopping:
            raise KeyboardInterrupt
        if time.monotonic() > give_up:
            raise StartError(": ".join(filter(None, [otherwise, crew.not_ready()])))
        crew.turn(0.05)


def wait_for_redis(crew: Crew, server: embedded.RedisServer | None) -> None:
    """Wait for Redis. Raises StartError if it doesn't answer or is too old."""
    if server is None:
        url = settings.REDIS_URL
        names = "PUSHHUB_REDIS_URL" + (" or PUSHHUB_BROKER_URL" if settings.BROKER_URL else "")
        address = url.partition("?")[0].rpartition("@")[2]
        wait_until(
            crew,
            lambda: all(map(processes.answers_redis, {url, shared_url()})),
            seconds=REDIS_SECONDS,
            otherwise=f"the Redis of {names} does not answer within {REDIS_SECONDS:.0f} s: {address}",
        )
        crew.say(f"ready: Redis at {address}")
    else:
        otherwise = f"the embedded Redis does not answer: see {server.log}"
        wait_until(crew, crew.is_ready, seconds=REDIS_SECONDS, otherwise=otherwise)
    try:
        crew.say(check_redis())
    except redis.RedisError as error:
        raise StartError(f"Redis does not tell its version: {error}") from None


def prepare_database() -> int:
    """Migrate and create the admin login. Print as the last line its password or, with status 1, what is wrong.

    Migrations load all versions of all models, memory that is free again when the process of this function ends.
    """
    try:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
        sys.stdout.write(create_admin_login())
    except DatabaseError as error:
        sys.stdout.write(first_line(error))
        return 1
    except SystemCheckError as error:
        sys.stdout.write(refusal_line("default") or str(error))
        return 1
    return 0


def create_admin_login() -> str:
    """Create the login `admin` and return its password. Return "" if there is a superuser already."""
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    if users.filter(is_superuser=True).exists():
        return ""
    password = secrets.token_urlsafe(12)
    users.create_superuser(username="admin", password=password)
    return password


def wait_for_database(crew: Crew, preparation: Child) -> None:
    """Wait until the database is up to date; on the first run, show the admin login, once."""
    config = connections["default"].settings_dict
    with os.fdopen(os.dup(preparation.output)) as output:
        *lines, last = output.read().split("\n")
    for line in lines:
        crew.say(line)
    if preparation.wait_for_exit():
        named = f"it is {config['NAME']}" if settings.IS_SQLITE else "PUSHHUB_DATABASE_URL names it"
        raise StartError(f"the database cannot be used ({last or 'see the lines above'}); {named}")
    crew.say(f"ready: database {config['NAME']}" + (f" at {config['HOST']}" if config["HOST"] else ""))
    if last:
        print(f"\n  The admin login, shown this once:  admin  {last}\n", flush=True)  # noqa: T201


def modes_text() -> str:
    """Return one line on what the settings permit."""
    mode = (
        "development mode: projects are created at their first use"
        if settings.DEVELOPMENT
        else "production mode: projects must be created before their first use"
    )
    anonymous = (
        f"a caller without a token is {settings.ANONYMOUS}"
        if settings.ANONYMOUS
        else "every caller needs a token or a login"
    )
    http = "http endpoints " + ("allowed" if settings.ALLOW_HTTP else "refused")
    private = "private addresses " + ("allowed" if settings.ALLOW_PRIVATE else "refused")
    return f"{mode}, {http}, {private}, {anonymous}"


def rollup_names(crew: Crew) -> list[str]:
    """Return the name of the rollup if this machine can run it. Otherwise report why the embedded counter counts."""
    if not settings.JOURNAL:
        crew.say("attempts are not counted into metrics: PUSHHUB_JOURNAL is off")
        return []
    lacking = needs.missing() if settings.SPARK else "PUSHHUB_SPARK is off"
    if installs_spark():
        crew.say("the embedded counter counts attempts into metrics until Spark is installed")
    elif lacking:
        crew.say(f"the embedded counter counts attempts into metrics, and not Spark: {lacking}")
    return [] if lacking else ["rollup"]


def installs_spark() -> bool:
    """Return whether Spark is missing, wanted, and may be installed into PushHub's own environment."""
    return bool(settings.JOURNAL and settings.SPARK and needs.has_own_environment() and needs.missing())


def start_processes(crew: Crew, names: Sequence[str]) -> None:
    """Start these processes, and wait until all are ready."""
    all_processes = [processes.BY_NAME[name]() for name in names]
    crew.say("starting " + ", ".join(process.title for process in all_processes))
    for process in all_processes:
        crew.start(process)
    wait_until(
        crew, crew.is_ready, seconds=READY_SECONDS, otherwise=f"not everything became ready in {READY_SECONDS:.0f} s"
    )
    web = env.url(settings.HTTP_ADDRESS)
    crew.say(f"PushHub is ready: REST {web}/v1, admin {web}/admin/, docs {web}/docs, Ctrl-C stops it")
    if (program := settings.BASE_DIR / "bin" / "pushhub").exists():  # an installed package has it on the path
        crew.say(
            f'the command line: export PATH="{program.parent}:$PATH", and then: pushhub topics list --project=demo'
        )
    crew.say(f"Google's clients: PUBSUB_EMULATOR_HOST={':'.join(map(str, settings.GRPC_ADDRESS))}")


def keep_running(crew: Crew) -> None:
    """Keep the processes running until asked to stop. Install Spark meanwhile, if it is missing."""
    installer = SparkInstall(crew, folder=settings.DATA_DIR, rollup=processes.rollup)
    if installs_spark():
        installer.start()
    try:
        crew.keep(each_turn=installer.poll)
    finally:
        installer.stop()


def run(names: Sequence[str]) -> None:
    """Start everything and keep it running until asked to stop. May raise KeyboardInterrupt."""
    for name in names:
        processes.BY_NAME[name]()  # raises SettingError where one could not be started
    require_free_ports(
        {"HTTP": settings.HTTP_ADDRESS, "GRPC": settings.GRPC_ADDRESS, "FLOWER": settings.FLOWER_ADDRESS}
    )
    django.setup()
    with data_folder(settings.DATA_DIR):
        crew, server = Crew(), None
        if not env.secret("REDIS_URL"):
            server = embedded.RedisServer(url=settings.REDIS_URL, folder=settings.REDIS_FOLDER)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: crew.ask_to_stop())
        try:
            crew.say(f"data folder {settings.DATA_DIR}")
            crew.say(modes_text())
            for sentence in env.misspelt():
                crew.say(sentence)
            if why := why_unrestricted():
                crew.say(processes.UNRESTRICTED % why)
            if server:
                server.prepare()
                crew.start(server.process())
            crew.say("migrating the database")
            preparation = fork_and_call(prepare_database)
            import_everything()
            wait_for_database(crew, preparation)
            wait_for_redis(crew, server)
            start_processes(crew, [*names, *rollup_names(crew)])
            keep_running(crew)
        finally:
            crew.stop()
            if server:
                server.leave()


def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="pushhub up",
        description="Run the whole service on this machine, until Ctrl-C.",
        epilog="Environment variables configure it, such as PUSHHUB_DATA: docs/settings.md lists them.",
    )


def main(arguments: Sequence[str] = ()) -> int:
    """Do all of `make up` that follows the installation. Return the exit status."""
    parser().parse_args(arguments)
    try:
        with suppress(KeyboardInterrupt):
            prepare_environment()
            run(["web", "grpc", "push", "maintenance", "flower"])
    except (StartError, env.SettingError) as error:
        print(f"PushHub cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
