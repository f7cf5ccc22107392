"""The REST client of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

Fields = dict[str, Any]
TIMEOUT_SECONDS = 60.0


class CliError(Exception):
    """An error in one line. `status` is the canonical code, if the API returned one."""

    def __init__(self, message: str, *, status: str = "") -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class Client:
    """Calls one PushHub as one caller."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the environment would see the token
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
        """Return the response of a URL below /v1/. Raises CliError for an error, or if there is no response."""
        parameters = {name: value for name, value in query.items() if value not in (None, "")}
        try:
            answer = self._session.request(
                method,
                f"{self._url}/v1/{path}",
                json=({} if body is None else body) if method != "GET" else None,
                params=parameters,
                timeout=TIMEOUT_SECONDS,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise CliError(
                f"{self._url} does not answer ({type(error).__name__}); --url names another PushHub"
            ) from None
        try:
            body = answer.json()
        except requests.JSONDecodeError:
            raise CliError(f"{self._url} answered {answer.status_code} and no JSON: is it a PushHub?") from None
        if answer.status_code >= 400:
            refusal = body.get("error", {}) if isinstance(body, Mapping) else {}
            raise CliError(str(refusal.get("message", "")), status=str(refusal.get("status", answer.status_code)))
        resource: Fields = body
        return resource

    def pages(self, path: str, collection: str, *, limit: int | None = None, **query: Any) -> list[Any]:
        """Return every item of a list, or the first `limit`."""
        items: list[Any] = []
        token = ""
        while True:
            answer = self.call("GET", path, pageToken=token, **query)
            items += answer.get(collection, [])
            token = answer.get("nextPageToken", "")
            if not token or (limit is not None and len(items) >= limit):
                return items[:limit]


def client_of(options: Mapping[str, Any]) -> Client:
    """Return the client that the flags and the environment describe."""
    return Client(options["url"] or default_url(), _token(options))


def default_url() -> str:
    address = os.environ.get("PUSHHUB_HTTP", "127.0.0.1:8000")
    return os.environ.get("PUSHHUB_URL") or f"http://{address}"


def _token(options: Mapping[str, Any]) -> str:
    path = options.get("access_token_file")
    if path:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise CliError(f"--access-token-file={path}: {error.strerror}") from None
    if options.get("key_file"):
        return _token_of_key(options["key_file"])
    return os.environ.get("PUSHHUB_TOKEN", "")


def _token_of_key(path: str) -> str:
    """Return a token that the account of a key file signs itself, as Google's libraries do."""
    import json
    import time

    import jwt

    try:
        key = json.loads(Path(path).read_text(encoding="utf-8"))
        now = int(time.time())
        email = key["client_email"]
        claims = {"iss": email, "sub": email, "aud": "https://pubsub.googleapis.com/", "iat": now, "exp": now + 3600}
        return jwt.encode(claims, key["private_key"], "RS256", headers={"kid": key["private_key_id"]})
    except OSError as error:
        raise CliError(f"--key-file={path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, jwt.PyJWTError):
        raise CliError(f"--key-file={path}: not a service account's key file") from None
