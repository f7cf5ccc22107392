"""What the doctor finds on this machine: versions, disks, permissions, ports, certificates."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from django.conf import settings

from pushhub import __version__
from pushhub.common import environment as env
from pushhub.common.clock import Clock, utcnow
from pushhub.common.servers import raise_open_files
from pushhub.doctor import NOTHING_STARTED
from pushhub.doctor.finding import Finding, failed, ok, warning
from pushhub.runtime import processes

#: A shorter secret may be guessed.
SECRET_LENGTH = 50
#: From this share of a disk on it is nearly full.
USED_SHARE = 0.9
#: A process with fewer open files can have few connections to endpoints.
LEAST_FILES = 4096
#: When a certificate should have been renewed: those of Let's Encrypt are, 30 days before their end.
RENEWED_BEFORE = timedelta(days=14)
TLS_SECONDS = 5.0


def versions() -> Iterator[Finding]:
    yield ok("versions", f"PushHub {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")


def variables() -> Iterator[Finding]:
    """Warn about variables that resemble a setting, and do nothing, and about a secret that can be guessed."""
    sentences = env.misspelt()
    yield from (warning("settings", sentence, "Correct it or unset it.") for sentence in sentences)
    is_short = len(settings.SECRET_KEY) < SECRET_LENGTH
    if is_short:
        remedy = f"Choose {SECRET_LENGTH} random ones. PUSHHUB_KEY_ENCRYPTION_KEY takes the old secret for stored keys."
        yield warning("settings", f"PUSHHUB_SECRET_KEY has fewer than {SECRET_LENGTH} characters", remedy)
    if not sentences and not is_short:
        made_up = settings.SECRET_KEY == NOTHING_STARTED
        whose = "as `pushhub up` has them, as PUSHHUB_SECRET_KEY is not set: " if made_up else ""
        yield ok("settings", f"{whose}every setting can be used, and none is misspelt")


def disks() -> Iterator[Finding]:
    """Judge the room of each file system on which PushHub writes."""
    seen = set()
    for folder, what, stops in _folders():
        folder = next(path for path in (folder, *folder.parents) if path.exists())
        if (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        usage = shutil.disk_usage(folder)
        free_mb = usage.free // 1_000_000
        text = f"{free_mb:,} MB of {usage.total // 1_000_000:,} are free for {what} ({folder})"
        if free_mb < settings.JOURNAL_FREE_MB:
            yield failed("disk", text, f"Make room: while it is full, {stops}.")
        elif usage.free < usage.total * (1 - USED_SHARE):
            yield warning("disk", text, "Make room, or move the folder to a larger disk.")
        else:
            yield ok("disk", text)


def _folders() -> Iterator[tuple[Path, str, str]]:
    """Yield each folder, what it is for, and what happens when its disk is full."""
    if settings.IS_SQLITE:
        yield Path(settings.DATABASES["default"]["NAME"]).parent, "the database", "nothing is stored"
    yield settings.DATA_DIR, "data", "nothing is written there"
    if settings.JOURNAL:
        yield Path(settings.JOURNAL), "the journal", "attempts are neither counted nor archived"
    if settings.ARCHIVING and "://" not in settings.ARCHIVE:
        yield Path(settings.ARCHIVE), "the archive", "nothing is archived"


def permissions() -> Iterator[Finding]:
    """Judge whether PushHub may write where it has to, and whether others may read what they must not."""
    faults = [
        failed("permissions", f"this user may not write to {folder}, for {what}", f"chown the folder {folder}.")
        for folder, what, _ in _folders()
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK)
    ]
    for path in _secret_files():
        try:
            mode = path.stat().st_mode & 0o777
        except OSError as error:
            text = f"{path} cannot be read: {error.strerror}"
            faults.append(failed("permissions", text, "Let PushHub's user read it."))
            continue
        # A file that compose mounts has the mode that it has outside, where its folder keeps others out.
        if mode & 0o007 and not os.path.ismount(path):
            text = f"every user of this machine can use {path} (mode {mode:o})"
            faults.append(warning("permissions", text, f"chmod o= {path}"))
    yield from faults or [ok("permissions", "folders can be written, and secrets are for PushHub's user alone")]


def _secret_files() -> Iterator[Path]:
    own = [settings.DATA_DIR / "secret-key", *([Path(settings.DATABASES["default"]["NAME"])] * settings.IS_SQLITE)]
    yield from filter(Path.exists, own)
    yield from (
        Path(path)
        for name, path in os.environ.items()
        if name.startswith(env.PREFIX) and name.endswith("_FILE") and name != "PUSHHUB_PUSH_CA_FILE" and path
    )
    if settings.GRPC_TLS_KEY:
        yield Path(settings.GRPC_TLS_KEY)


def ports() -> Iterator[Finding]:
    """Say which of PushHub's servers answer on this machine, and which ports others have."""
    for name, setting in (("web", "HTTP"), ("grpc", "GRPC"), ("flower", "FLOWER")):
        address = getattr(settings, f"{setting}_ADDRESS")
        where = f"{address[0]}:{address[1]}"
        try:
            process = processes.BY_NAME[name]()
        except env.SettingError as error:
            yield warning("ports", f"{name} cannot be started: {error}", "Set what it asks for.")
            continue
        if not _is_taken(address):
            yield ok("ports", f"{name} does not run on this machine; its port is free: {where}")
        elif process.is_ready():
            yield ok("ports", f"{name} answers at {where}")
        else:
            remedy = f"Stop what listens there, look at its log, or set PUSHHUB_{setting}."
            yield failed("ports", f"something listens at {where}, and does not answer as {name}", remedy)


def _is_taken(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(env.reachable(address), timeout=TLS_SECONDS):
            return True
    except OSError:
        return False


def files() -> Iterator[Finding]:
    """Judge the limit of open files, which bounds the connections to endpoints."""
    limit = raise_open_files()  # as the processes do that have many connections
    if limit < LEAST_FILES:
        yield warning("open files", f"a process may open {limit} files", "Raise the limit: LimitNOFILE, or ulimit -n.")
    else:
        yield ok("open files", f"a process may open {limit:,} files")


def certificates(*, clock: Clock = utcnow) -> Iterator[Finding]:
    """Judge until when the certificates are valid at which PushHub is reached."""
    now = clock()
    if settings.GRPC_TLS_CERT:
        yield _judge_end(f"the certificate {settings.GRPC_TLS_CERT}", _read(settings.GRPC_TLS_CERT), now)
    if settings.PUSH_CA_FILE:
        bundle = x509.load_pem_x509_certificates(Path(settings.PUSH_CA_FILE).read_bytes())
        yield _judge_end("an authority in PUSHHUB_PUSH_CA_FILE", min(it.not_valid_after_utc for it in bundle), now)
    parts = urlsplit(settings.PUBLIC_URL)
    if parts.scheme == "https" and parts.hostname:
        name = f"the certificate of {settings.PUBLIC_URL}"
        end = server_end(parts.hostname, parts.port or 443)
        if isinstance(end, str):
            remedy = "Let this machine reach it, or look at the proxy in front of PushHub."
            yield warning("certificates", f"{name} was not seen: {end}", remedy)
        else:
            yield _judge_end(name, end, now)


def _read(path: str) -> datetime | str:
    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return "it is no certificate in PEM that can be read"


def server_end(host: str, port: int) -> datetime | str:
    """Return when the certificate of a server ends, whoever signed it, or why it was not seen."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=TLS_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            der = secured.getpeercert(binary_form=True)
    except OSError as error:
        return error.strerror or type(error).__name__
    assert der is not None
    return x509.load_der_x509_certificate(der).not_valid_after_utc


def _judge_end(name: str, end: datetime | str, now: datetime) -> Finding:
    if isinstance(end, str):
        return failed("certificates", f"{name}: {end}", "Give a file that PushHub's user can read.")
    text = f"{name} is valid until {end.astimezone(UTC):%Y-%m-%d}"
    if end < now:
        return failed("certificates", f"{name} ended on {end.astimezone(UTC):%Y-%m-%d}", "Renew it.")
    if end < now + RENEWED_BEFORE:
        return warning("certificates", text, "Renew it now; see why that does not happen by itself.")
    return ok("certificates", text)
