"""TLS for push requests: version 1.2 or newer, verified unless an option disables it, with resumed sessions."""

from __future__ import annotations

import logging
import ssl

import certifi

log = logging.getLogger(__name__)

#: Hosts whose sessions are kept; a session takes a few KB.
MAX_SESSIONS = 2_000


class ResumingContext(ssl.SSLContext):
    """Offers each host its last session, which saves half of the handshake's work, and the certificates.

    asyncio has no way to pass a session, but every TLS connection of asyncio and uvloop begins with `wrap_bio`. A
    session is kept under the host name that its certificate was checked for, and never offered to another host.
    """

    sessions: dict[str | bytes | None, ssl.SSLSession]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        last_session = self.sessions.get(server_hostname)
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, last_session or session)

    def keep_session(self, host: str, session: ssl.SSLSession | None) -> None:
        """Keep a session for the host's next connection.

        Call this once the first response has arrived, because the tickets of TLS 1.3 follow the handshake.
        """
        if session is None or not session.has_ticket:
            return
        self.sessions.pop(host, None)
        if len(self.sessions) >= MAX_SESSIONS:
            del self.sessions[next(iter(self.sessions))]
        self.sessions[host] = session


def client_context(*, ca_file: str, verify: bool) -> ResumingContext:
    """Return the TLS context of a client; `ca_file` names more certificate authorities."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sessions = {}
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        log.warning("TLS certificates of push endpoints are NOT verified: tls_verify is off")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.load_default_certs()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:  # a slim container without the system's store
        context.load_verify_locations(cafile=certifi.where())
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context
