"""The REST client of the command line."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from pushhub.common import environment as env
from pushhub.common.errors import first_line
from pushhub.common.keyfiles import OF_GOOGLE, is_of_google
from subscriptions.cli.errors import CliError
from subscriptions.cli.expressions import parse_filter

if TYPE_CHECKING:
    import ssl

Fields = dict[str, Any]
TIMEOUT_SECONDS = 60.0
#: A token as an Authorization header has it (RFC 6750).
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class Client:
    """Calls one PushHub as one caller. It follows no redirects and ignores the environment's proxy settings."""

    def __init__(self, url: str, token: str = "") -> None:
        self.address = url.rstrip("/")
        #: Chooses the items of lists.
        self.is_listed: Callable[[Any], bool] = lambda item: True
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
        """Return the response to a request below /v1/. Raises CliError for an error, or if there is no response."""
        parameters = {name: value for name, value in query.items() if value not in (None, "")}
        target = f"/v1/{quoted(path)}" + (f"?{urlencode(parameters)}" if parameters else "")
        content = json.dumps({} if body is None else body).encode() if method != "GET" else None
        try:
            status, response = self._request(method, target, content)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or first_line(error)
            raise CliError(f"{self.address} does not answer ({reason}); --url names another PushHub") from None
        try:
            answer = json.loads(response)
        except ValueError:
            raise CliError(f"{self.address} answered {status} without JSON: is it a PushHub?") from None
        if status >= 400:
            refusal = answer.get("error", {}) if isinstance(answer, Mapping) else {}
            raise CliError(str(refusal.get("message", "")), status=str(refusal.get("status", status)))
        fields: Fields = answer
        return fields

    def _request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        parts = urlsplit(self.address)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT_SECONDS, context=_tls_context())
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, parts.path + target, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()

    def pages(self, path: str, collection: str, *, limit: int | None = None, **query: Any) -> list[Any]:
        """Return the chosen items of a list, or the first `limit` of them."""
        items: list[Any] = []
        token = ""
        while True:
            answer = self.call("GET", path, pageToken=token, **query)
            items += filter(self.is_listed, answer.get(collection, []))
            token = answer.get("nextPageToken", "")
            if not token or (limit is not None and len(items) >= limit):
                return items[:limit]


def quoted(name: str) -> str:
    """Return a resource's name, with or without a verb, as it stands in a URL."""
    return quote(name, safe="/:@!$&'()*+,;=~")


def _tls_context() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or certifi's if the system has none."""
    import ssl

    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context


def client_of(options: Mapping[str, Any]) -> Client:
    """Return the client that the flags and the environment describe."""
    client = Client(_url(options), _token(options))
    if options.get("filter"):
        client.is_listed = parse_filter(options["filter"])
    return client


def _url(options: Mapping[str, Any]) -> str:
    """Return the URL of --url or, without it, of PUSHHUB_URL or PUSHHUB_HTTP. Raises CliError for what is none."""
    given: str = options["url"]
    if given and not env.is_web_url(given):
        raise CliError("--url: give an http or https URL, for example http://127.0.0.1:8000")
    try:
        return given or env.server_url()
    except env.SettingError as error:
        raise CliError(str(error)) from None


def _token(options: Mapping[str, Any]) -> str:
    path = options.get("access_token_file")
    if path and options.get("key_file"):
        raise CliError("give either --access-token-file or --key-file")
    if options.get("key_file"):
        return _token_of_key(options["key_file"])
    source, token = "PUSHHUB_TOKEN", os.environ.get("PUSHHUB_TOKEN", "").strip()
    if path:
        source = f"--access-token-file={path}"
        try:
            token = Path(path).read_text(encoding="latin-1").strip()
        except OSError as error:
            raise CliError(f"{source}: {error.strerror}") from None
    if (path or token) and not TOKEN.fullmatch(token):
        raise CliError(f"{source}: not an access token")
    return token


def _token_of_key(path: str) -> str:
    """Return a token that the key file's account signs itself, for the PushHub that made the key."""
    import time

    import jwt

    try:
        key = json.loads(Path(path).read_text(encoding="utf-8"))
        if is_of_google(key):
            raise CliError(f"--key-file={path}: {OF_GOOGLE}")
        now = int(time.time())
        email, audience = key["client_email"], key["token_uri"].removesuffix("/token")
        claims = {"iss": email, "sub": email, "aud": audience, "iat": now, "exp": now + 3600}
        return jwt.encode(claims, key["private_key"], "RS256", headers={"kid": key["private_key_id"]})
    except OSError as error:
        raise CliError(f"--key-file={path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError):
        raise CliError(f"--key-file={path}: not a service account's key file") from None
