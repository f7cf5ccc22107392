"""The line with which the gRPC port begins a connection to the web server: for which client it forwards REST.

Without it the web server would see one client, the gRPC port: one greedy client would use up the connections of all,
and the audit log and the throttle of logins would record the wrong address. Nobody else can make the line, because it
is signed with PUSHHUB_SECRET_KEY. No HTTP request begins like it.
"""

from __future__ import annotations

from django.core.signing import TimestampSigner

BEGINNING = b"PUSHHUB-CLIENT "
MOST_BYTES = 512
#: How long a line counts; the clocks of two machines may differ.
MOST_AGE_SECONDS = 3600
_SALT = "pushhub.runtime.httpserver.forwarding"


def client_line(address: str, *, is_secure: bool) -> bytes:
    """Return the line for a client's address; `is_secure` says whether the client used TLS."""
    scheme = "https" if is_secure else "http"
    return BEGINNING + TimestampSigner(salt=_SALT).sign(f"{scheme} {address}").encode() + b"\n"


def read_client(line: bytes) -> tuple[str, str]:
    """Return the scheme and the client's address of a line without its end. Raises BadSignature."""
    signed = line.removeprefix(BEGINNING).decode("latin-1")
    scheme, _, address = TimestampSigner(salt=_SALT).unsign(signed, max_age=MOST_AGE_SECONDS).partition(" ")
    return scheme, address
