"""The URLs that PUSHHUB_REDIS_URL takes, beside those of redis-py."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pushhub.common.databases import ESCAPED
from pushhub.common.errors import InvalidArgument, first_line

SENTINEL_SCHEMES = ("sentinel://", "sentinels://")
#: As in other Python libraries that reach a Cluster by a URL, with a comma between its nodes.
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
#: Options of the URL that begin so are for the Sentinels: `sentinel_username`, `sentinel_password`.
SENTINEL_PREFIX = "sentinel_"
#: The schemes of one server and of Sentinels, each with that of redis-py for one server.
SCHEMES = {"redis": "redis", "rediss": "rediss", "unix": "unix", "sentinel": "redis", "sentinels": "rediss"}


def is_cluster(url: str) -> bool:
    return url.startswith(CLUSTER_SCHEMES)


def check_redis_url(url: str) -> None:
    """Raise InvalidArgument unless the URL names a Redis. The error doesn't show the URL, which may have a password."""
    try:
        parts = urlsplit(url)
        ports = [urlsplit(f"//{host}").port for host in parts.netloc.rpartition("@")[2].split(",")]
    except ValueError:
        parts, ports = urlsplit(""), []
    number = parts.path.strip("/")
    is_number = parts.scheme == "unix" or not number or (number.isascii() and number.isdecimal())
    is_known = is_cluster(url) or parts.scheme in SCHEMES
    if not is_known or parts.fragment or 0 in ports or not is_number:
        raise InvalidArgument(f"give redis://host:port/0, rediss:// for TLS, or unix:///path, {ESCAPED}")
    if is_cluster(url) and int(number or "0"):
        raise InvalidArgument("a Cluster has one database only, whose number is 0")
    if url.startswith(SENTINEL_SCHEMES) and "master" not in parse_qs(parts.query):
        raise InvalidArgument("name the primary, as in sentinel://host,host2/0?master=name")
    if parts.query and not is_cluster(url):
        _check_options(parts)


def _check_options(parts: SplitResult) -> None:
    """Raise InvalidArgument if redis-py does not take the options of a URL for a single server or Sentinels."""
    from redis import ConnectionPool, RedisError

    options = [
        pair for pair in parse_qsl(parts.query) if pair[0] != "master" and not pair[0].startswith(SENTINEL_PREFIX)
    ]
    try:
        ConnectionPool.from_url(f"{SCHEMES[parts.scheme]}://host/0?{urlencode(options)}").make_connection()
    except (TypeError, ValueError, RedisError) as error:
        raise InvalidArgument(f"its options cannot be used: {first_line(error)}") from None


def with_password(url: str, password: str) -> str:
    """Return the URL with the password, unless it has one. It may name a user."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if not password or ":" in user:
        return url
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))
