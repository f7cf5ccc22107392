"""How Spark's processes reach the API: the address and the credentials of Google's clients. No Django here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pushhub.common.errors import InvalidArgument
from pushhub.common.keyfiles import OF_GOOGLE, is_of_google

if TYPE_CHECKING:
    from google.api_core.retry import Retry

#: The options of every read and write that calls the API.
OPTIONS = frozenset({"endpoint", "emulatorhost", "credentialsfile", "tokenfile"})
EMULATOR = "PUBSUB_EMULATOR_HOST"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
#: How long PushHub may be away before a query fails.
PATIENCE_SECONDS = 600.0
SCOPES = ("https://www.googleapis.com/auth/pubsub",)
#: A response has at most 10 MB of messages, which is more than gRPC accepts by default.
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Connection:
    """The address of the API, and who calls it.

    It has secrets, so it travels with Spark's tasks and is never an option, which Spark shows in its plans.
    """

    #: `host:port` of gRPC: with TLS, or without TLS and credentials if `is_plain`, as clients call an emulator.
    address: str
    is_plain: bool = False
    #: The content of a service account's key file.
    key: Mapping[str, str] | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Connection:
        """Read the options, or in their place the variables of Google's clients. Raises InvalidArgument."""
        emulator, endpoint = options.get("emulatorHost", ""), options.get("endpoint", "")
        key_file, token_file = options.get("credentialsFile", ""), options.get("tokenFile", "")
        if emulator and (endpoint or key_file or token_file):
            raise InvalidArgument("An emulator takes no credentials: give the endpoint.", field="emulatorHost")
        if key_file and token_file:
            raise InvalidArgument("Give a key file or a token file, not both.", field="tokenFile")
        if not endpoint and (emulator := emulator or os.environ.get(EMULATOR, "")):
            return cls(emulator, is_plain=True)
        if not endpoint:
            raise InvalidArgument(
                f"Where is PushHub? Give the option endpoint, or emulatorHost, or set {EMULATOR}.", field="endpoint"
            )
        if token_file:
            return cls(endpoint, token=_read(token_file, option="tokenFile").strip())
        key_file = key_file or os.environ.get(KEY_FILE, "")
        if not key_file:
            raise InvalidArgument(f"Give the option credentialsFile or tokenFile, or set {KEY_FILE}.", field=KEY_FILE)
        return cls(endpoint, key=_parsed(_read(key_file, option="credentialsFile")))

    def subscriber(self) -> Any:
        """Return Google's generated client of the service Subscriber."""
        from google.pubsub_v1.services.subscriber import SubscriberClient

        return self._client(SubscriberClient)

    def publisher(self) -> Any:
        """Return Google's generated client of the service Publisher."""
        from google.pubsub_v1.services.publisher import PublisherClient

        return self._client(PublisherClient)

    def _client(self, client: Any) -> Any:
        if self.is_plain:
            import grpc

            channel = grpc.insecure_channel(self.address, options=ANY_SIZE)
            return client(transport=client.get_transport_class("grpc")(channel=channel))
        return client(credentials=self._credentials(), client_options={"api_endpoint": self.address})

    def _credentials(self) -> Any:
        from google.oauth2 import credentials, service_account

        # Neither has types.
        of_token: Any = credentials.Credentials
        of_account: Any = service_account.Credentials
        if self.token:
            return of_token(self.token)
        try:
            return of_account.from_service_account_info(self.key, scopes=SCOPES)
        except ValueError:
            raise InvalidArgument("This is not the key file of a service account.", field="credentialsFile") from None


def may_pass(error: Exception) -> bool:
    """Return whether a refused request may be accepted later, as it is."""
    from google.api_core import exceptions

    passing = (exceptions.ServerError, exceptions.Aborted, exceptions.Cancelled, exceptions.TooManyRequests)
    return isinstance(error, passing)


def patient() -> Retry:
    """Return the policy for a request that has to wait until PushHub is there again."""
    from google.api_core.retry import Retry

    return Retry(predicate=may_pass, initial=0.1, maximum=10.0, timeout=PATIENCE_SECONDS)


def _read(path: str, *, option: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidArgument(f"The file {path} cannot be read: {reason}.", field=option) from None


def _parsed(text: str) -> Mapping[str, str]:
    try:
        key: Any = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, dict):
        raise InvalidArgument("This is not the key file of a service account.", field="credentialsFile")
    if is_of_google(key):
        raise InvalidArgument(f"The key file can't be used: {OF_GOOGLE}.", field="credentialsFile")
    return key
