"""The options of the push client."""

from __future__ import annotations

from dataclasses import dataclass

from pushhub.common.addresses import AddressGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Times are in seconds, sizes in bytes. The defaults suit the open internet: https to public addresses only."""

    allow_http: bool = False
    #: Allows loopback and private networks; cloud metadata and link-local addresses stay denied.
    allow_private: bool = False
    #: CIDR blocks that may be reached although the address guard denies them.
    allowed_networks: tuple[str, ...] = ()
    #: Ports that may be used although they belong to other well-known services.
    allowed_ports: frozenset[int] = frozenset()
    #: PushHub's own (address, port) pairs, which no push request may reach.
    own_listeners: tuple[tuple[str, int], ...] = ()

    #: Certificate authorities that are trusted besides the system's.
    ca_file: str = ""
    tls_verify: bool = True
    user_agent: str = "CloudPubSub-Google"

    #: Local addresses to connect from, in turn. By default Linux has 28,000 ports per address and receiver, and once
    #: half of them are in use the kernel takes milliseconds to find a free one.
    source_addresses: tuple[str, ...] = ()
    max_connections: int = 30_000
    #: Connections to one origin that may be opening at a time: more would overflow the receiver's listen backlog.
    max_connecting: int = 256
    #: Less than the 5 s after which Node, uvicorn and Apache hang up: requests rarely meet a closing connection.
    idle_timeout_s: float = 4.0
    #: How long a connection is used, a quarter more or less: by then, its host's name may lead to other addresses.
    connection_age_s: float = 300.0

    dns_timeout_s: float = 5.0
    dns_cache_s: float = 30.0
    dns_failure_cache_s: float = 5.0
    connect_timeout_s: float = 5.0
    tls_timeout_s: float = 5.0
    #: From the final head to the end of the body.
    body_timeout_s: float = 5.0
    #: A 102 that no final status follows is the response after this time (docs/design-servers.md#push-client).
    processing_grace_s: float = 0.3
    #: How late the client may notice a deadline.
    tick_s: float = 0.05

    header_limit_bytes: int = 64 * 1024
    body_limit_bytes: int = 1024 * 1024

    def guard(self) -> AddressGuard:
        return AddressGuard(
            allow_private=self.allow_private,
            allowed_networks=self.allowed_networks,
            own_listeners=self.own_listeners,
        )
