"""The command line of `pushhub doctor`."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from django.db import Error
from redis import RedisError

from pushhub import __version__
from pushhub.common import environment as env
from pushhub.common.errors import first_line
from pushhub.common.outages import outage_of
from pushhub.common.parser import Parser
from pushhub.doctor import NOTHING_STARTED
from pushhub.doctor.finding import Finding, Level, failed

Check = Callable[[], Iterator[Finding]]


def parser() -> Parser:
    options = Parser(
        prog="pushhub doctor",
        description="Say what is wrong with this installation, what to do about it, and what capacity is left. "
        "Run it with the environment variables of PushHub's processes.",
        epilog="The exit status is 1 if something has failed, and 2 if the settings cannot be used.",
    )
    options.add_argument("--endpoint", metavar="URL", help="try the way to a push endpoint too")
    options.add_argument("--format", choices=["text", "json"], default="text", help="what is printed (default text)")
    return options


def main(arguments: Sequence[str]) -> int:
    """Print a line for each finding. Return 1 if something has failed, 2 if the settings can't be read, else 0."""
    options = parser().parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    try:
        if not env.secret("SECRET_KEY"):  # the installation is that of `make up`
            os.environ |= env.DEVELOPMENT_DEFAULTS | os.environ
            if not Path(env.text("DATA", ".pushhub"), "secret-key").exists():
                os.environ.setdefault("PUSHHUB_SECRET_KEY", NOTHING_STARTED)
        import django

        django.setup()
    except env.SettingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.disable(logging.CRITICAL)  # what goes wrong is a finding
    try:
        findings = [finding for name, check in _checks(options.endpoint) for finding in run(name, check)]
    finally:
        logging.disable(logging.NOTSET)
    if options.format == "json":
        document = {"version": __version__, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        _write_lines(findings)
    return int(any(finding.level == Level.FAILED for finding in findings))


def _checks(endpoint: str | None) -> Iterator[tuple[str, Check]]:
    from django.conf import settings

    from pushhub.doctor import database, machine, redis, service

    yield "versions", machine.versions
    yield "settings", machine.variables
    yield "disk", machine.disks
    yield "permissions", machine.permissions
    yield "ports", machine.ports
    yield "open files", machine.files
    yield "certificates", machine.certificates
    yield "Redis", redis.redis
    if settings.IS_SQLITE and not Path(settings.DATABASES["default"]["NAME"]).exists():
        yield "database", database.missing
    else:
        yield "database", database.database
        yield "readiness", service.service
    if endpoint:
        yield "endpoint", partial(service.endpoint, endpoint)


def run(name: str, check: Check) -> Iterator[Finding]:
    """Yield the findings of a check. What keeps it from going on is one more."""
    try:
        yield from check()
    except (Error, RedisError, OSError) as error:
        text = outage_of(error) or f"it cannot be looked at: {first_line(error)}"
        yield failed(name, str(text), "Start it, or mend its address and password in the settings.")


def _write_lines(findings: Sequence[Finding]) -> None:
    for finding in findings:
        text = " -> ".join(filter(None, [finding.text, finding.remedy]))
        sys.stdout.write(f"{finding.level:<8} {finding.check:<13} {text}\n")
    counts = {level: sum(finding.level == level for finding in findings) for level in Level}
    sys.stdout.write(f"{counts[Level.FAILED]} failed, {counts[Level.WARNING]} warnings, {counts[Level.OK]} ok\n")
