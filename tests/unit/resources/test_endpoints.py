"""Which URLs a push endpoint may have, and the request that each leads to."""

from __future__ import annotations

import pytest

from deliveries.client.client import parse_url
from deliveries.client.options import ClientOptions
from pushhub.common.addresses import AddressGuard
from pushhub.common.errors import InvalidArgument
from pushhub.common.pushurls import BadEndpoint, Origin, is_port_allowed
from subscriptions.resources.endpoints import push_endpoint

OPEN = ClientOptions(allow_http=True)

GOOD = {
    "https://example.com": ("https", "example.com", 443, "/", "example.com"),
    "https://example.com/push?token=a%20b": ("https", "example.com", 443, "/push?token=a%20b", "example.com"),
    "https://EXAMPLE.com./": ("https", "example.com", 443, "/", "example.com"),
    "https://example.com:443/": ("https", "example.com", 443, "/", "example.com"),
    "https://example.com:8443/": ("https", "example.com", 8443, "/", "example.com:8443"),
    "http://example.com/": ("http", "example.com", 80, "/", "example.com"),
    "http://example.com:443/": ("http", "example.com", 443, "/", "example.com:443"),
    "HTTPS://example.com/": ("https", "example.com", 443, "/", "example.com"),
    "https://example.com?x": ("https", "example.com", 443, "/?x", "example.com"),
    "https://my_service.svc.cluster.local/": (
        "https",
        "my_service.svc.cluster.local",
        443,
        "/",
        "my_service.svc.cluster.local",
    ),
    "https://bücher.example/ü": ("https", "xn--bcher-kva.example", 443, "/%C3%BC", "xn--bcher-kva.example"),
    "https://93.184.216.34/": ("https", "93.184.216.34", 443, "/", "93.184.216.34"),
    "https://93.184.216.34./": ("https", "93.184.216.34", 443, "/", "93.184.216.34"),
    "http://[::1]:8080/": ("http", "::1", 8080, "/", "[::1]:8080"),
    "http://[0:0::7f00:1]/": ("http", "::7f00:1", 80, "/", "[::7f00:1]"),
    "https://[2001:db8::1]:8443/x": ("https", "2001:db8::1", 8443, "/x", "[2001:db8::1]:8443"),
    "https://xn--bcher-kva.example/a;b,c": ("https", "xn--bcher-kva.example", 443, "/a;b,c", "xn--bcher-kva.example"),
    "https://1.2.3.4.example/": ("https", "1.2.3.4.example", 443, "/", "1.2.3.4.example"),
    "https://a.b/x;y=z,(1)'*!~$&+@:": ("https", "a.b", 443, "/x;y=z,(1)'*!~$&+@:", "a.b"),
    'https://a.b/"<>`{}|^': ("https", "a.b", 443, "/%22%3C%3E%60%7B%7D|%5E", "a.b"),
}
BAD = {
    "": "bad_url",
    "example.com": "bad_url",
    "//example.com/": "scheme_denied",
    "https://": "bad_url",
    "https:///path": "bad_url",
    "https:example.com": "bad_url",
    "ftp://example.com/": "scheme_denied",
    "file:///etc/passwd": "bad_url",
    "javascript:alert(1)": "bad_url",
    "gopher://example.com:70/": "scheme_denied",
    "https://user@example.com/": "bad_url",
    "https://user:secret@example.com/": "bad_url",
    "https://good.example@127.0.0.1/": "bad_url",
    "https://example.com:0/": "bad_url",
    "https://example.com:/": "bad_url",
    "https://example.com:99999/": "bad_url",
    "https://example.com:8o80/": "bad_url",
    "https://example.com:https": "bad_url",
    "https://?x": "bad_url",
    "https://@example.com": "bad_url",
    "https://exam%70le.com": "bad_host",
    "https://example.com:-1/": "bad_url",
    "https://example.com/a b": "bad_url",
    "https://example.com/\r\nX: y": "bad_url",
    "https://example.com/\n": "bad_url",
    "https://example.com/\t": "bad_url",
    "https://exa\tmple.com/": "bad_url",
    " https://example.com/": "bad_url",
    "https://example.com/\x00": "bad_url",
    "https://example.com\\@127.0.0.1/": "bad_url",
    "https://example.com/" + "a" * 2048: "bad_url",
    "https://example.com/#there": "bad_url",
    "https://example.com/#": "bad_url",
    "https://[::1/": "bad_url",
    "https://[banana]/": "bad_url",
    "https://[fe80::1%25eth0]/": "bad_host",
    "https://[fe80::1%eth0]/": "bad_host",
    "https://127.1/": "bad_host",
    "https://0x7f.1/": "bad_host",
    "https://0x7f000001/": "bad_host",
    "https://0X7F.0.0.1/": "bad_host",
    "https://2130706433/": "bad_host",
    "https://0/": "bad_host",
    "https://0177.0.0.1/": "bad_host",
    "https://127.0.0.01/": "bad_host",
    "https://1.2.3/": "bad_host",
    "https://1.2.3.4.5/": "bad_host",
    "https://256.1.1.1/": "bad_host",
    "https://example.0x/": "bad_host",
    "https://example.123/": "bad_host",
    "https://127.0.0.1%2eexample.com/": "bad_host",
    "https://%31%32%37.0.0.1/": "bad_host",
    "https://ex..ample/": "bad_host",
    "https://.example/": "bad_host",
    "https://example../": "bad_host",
    "https://-a.example/": "bad_host",
    "https://a-.example/": "bad_host",
    "https://a,b/": "bad_host",
    "https://" + "a" * 64 + ".example/": "bad_host",
    "https://" + "a." * 130 + "example/": "bad_host",
    "https://exa\u200bmple.com:22/": "port_denied",
    "https://\u2024.example/": "bad_host",
    "https://example.com:22/": "port_denied",
    "https://example.com:25/": "port_denied",
    "https://example.com:6379/": "port_denied",
    "https://example.com:5432/": "port_denied",
    "https://example.com:1/": "port_denied",
}


@pytest.mark.parametrize("url", GOOD, ids=range(len(GOOD)))
def test_good_url(url: str) -> None:
    scheme, host, port, target, authority = GOOD[url]
    origin, head = parse_url(url, OPEN)
    assert origin == Origin(scheme, host, port)
    assert head.startswith(f"POST {target} HTTP/1.1\r\nHost: {authority}\r\n".encode())
    assert head.endswith(b"\r\nContent-Length: ")


@pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
def test_bad_url(url: str) -> None:
    with pytest.raises(BadEndpoint) as caught:
        parse_url(url, OPEN)
    assert caught.value.fault == BAD[url]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *GOOD,
        *BAD,
        "https://10.0.0.1/",
        "https://１０。0。0.1/",
        "https://127.0.0.1/",
        "https://169.254.169.254/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[fd00:ec2::254]/",
        "https://8.8.8.8/",
    ],
)
@pytest.mark.parametrize("allow_private", [True, False])
def test_configuration_accepts_exactly_the_urls_that_a_push_can_reach(url: str, allow_private: bool) -> None:
    guard = AddressGuard(allow_private=allow_private)

    assert _can_be_configured(url, guard) == _can_be_pushed_to(url, guard)


def _can_be_configured(url: str, guard: AddressGuard) -> bool:
    try:
        return push_endpoint(url, allow_http=OPEN.allow_http, guard=guard) == url
    except InvalidArgument:
        return False


def _can_be_pushed_to(url: str, guard: AddressGuard) -> bool:
    """Do what the push client does with a URL: parse it, and ask the guard if the host is an address."""
    try:
        origin, _head = parse_url(url, OPEN)
    except BadEndpoint:
        return False
    is_address = ":" in origin.host or origin.host.replace(".", "").isdecimal()
    return not is_address or not guard.why_denied(origin.host, origin.port)


def test_look_alike_digits_are_judged_as_digits() -> None:
    """IDNA maps full-width digits and dots to plain ones, which the guard then sees."""
    assert parse_url("https://１２７。０。０。１/", OPEN)[0].host == "127.0.0.1"
    with pytest.raises(BadEndpoint):
        parse_url("https://１２７.１/", OPEN)


def test_http_is_denied_unless_allowed() -> None:
    with pytest.raises(BadEndpoint) as caught:
        parse_url("http://example.com/", ClientOptions())
    assert caught.value.fault == "scheme_denied"


@pytest.mark.parametrize("port", [80, 443, 1024, 8080, 8443, 65535])
def test_port_allowed(port: int) -> None:
    assert is_port_allowed(port, frozenset())


@pytest.mark.parametrize("port", [1, 21, 22, 23, 25, 110, 143, 445, 587, 1023, 3306, 5432, 6379, 9200, 11211, 27017])
def test_port_denied_unless_allowed(port: int) -> None:
    assert not is_port_allowed(port, frozenset())
    assert is_port_allowed(port, frozenset({port}))
