"""One interface to three official clients: it calls a method by its name, with request and answer in proto JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Protocol

import grpc
import httplib2
from google import pubsub_v1 as generated
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1
from google.iam.v1 import iam_policy_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from google.pubsub_v1 import PublisherClient as GeneratedPublisher
from google.pubsub_v1 import SchemaServiceClient as GeneratedSchemas
from google.pubsub_v1 import SubscriberClient as GeneratedSubscriber
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport as SchemaTransport
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.ports import wait_for

Fields = dict[str, Any]
NODE = Path(__file__).parent / "node"

#: Where google-api-python-client has each method: its collection, its name, the request field in the URL, and the
#: field that is the whole body (`*` stands for all other fields).
REST = {
    "Publisher.CreateTopic": ("topics", "create", "name", "*"),
    "Publisher.UpdateTopic": ("topics", "patch", "topic.name", "*"),
    "Publisher.Publish": ("topics", "publish", "topic", "*"),
    "Publisher.GetTopic": ("topics", "get", "topic", ""),
    "Publisher.ListTopics": ("topics", "list", "project", ""),
    "Publisher.ListTopicSubscriptions": ("topics.subscriptions", "list", "topic", ""),
    "Publisher.ListTopicSnapshots": ("topics.snapshots", "list", "topic", ""),
    "Publisher.DeleteTopic": ("topics", "delete", "topic", ""),
    "Publisher.DetachSubscription": ("subscriptions", "detach", "subscription", ""),
    "Subscriber.CreateSubscription": ("subscriptions", "create", "name", "*"),
    "Subscriber.GetSubscription": ("subscriptions", "get", "subscription", ""),
    "Subscriber.UpdateSubscription": ("subscriptions", "patch", "subscription.name", "*"),
    "Subscriber.ListSubscriptions": ("subscriptions", "list", "project", ""),
    "Subscriber.DeleteSubscription": ("subscriptions", "delete", "subscription", ""),
    "Subscriber.ModifyAckDeadline": ("subscriptions", "modifyAckDeadline", "subscription", "*"),
    "Subscriber.Acknowledge": ("subscriptions", "acknowledge", "subscription", "*"),
    "Subscriber.Pull": ("subscriptions", "pull", "subscription", "*"),
    "Subscriber.ModifyPushConfig": ("subscriptions", "modifyPushConfig", "subscription", "*"),
    "Subscriber.CreateSnapshot": ("snapshots", "create", "name", "*"),
    "Subscriber.GetSnapshot": ("snapshots", "get", "snapshot", ""),
    "Subscriber.ListSnapshots": ("snapshots", "list", "project", ""),
    "Subscriber.UpdateSnapshot": ("snapshots", "patch", "snapshot.name", "*"),
    "Subscriber.DeleteSnapshot": ("snapshots", "delete", "snapshot", ""),
    "Subscriber.Seek": ("subscriptions", "seek", "subscription", "*"),
    "SchemaService.CreateSchema": ("schemas", "create", "parent", "schema"),
    "SchemaService.GetSchema": ("schemas", "get", "name", ""),
    "SchemaService.ListSchemas": ("schemas", "list", "parent", ""),
    "SchemaService.ListSchemaRevisions": ("schemas", "listRevisions", "name", ""),
    "SchemaService.CommitSchema": ("schemas", "commit", "name", "*"),
    "SchemaService.RollbackSchema": ("schemas", "rollback", "name", "*"),
    "SchemaService.DeleteSchemaRevision": ("schemas", "deleteRevision", "name", ""),
    "SchemaService.DeleteSchema": ("schemas", "delete", "name", ""),
    "SchemaService.ValidateSchema": ("schemas", "validate", "parent", "*"),
    "SchemaService.ValidateMessage": ("schemas", "validateMessage", "parent", "*"),
    "Publisher.GetIamPolicy": ("topics", "getIamPolicy", "resource", ""),
    "Publisher.SetIamPolicy": ("topics", "setIamPolicy", "resource", "*"),
    "Publisher.TestIamPermissions": ("topics", "testIamPermissions", "resource", "*"),
}


class Refused(Exception):
    """An error as a client reports it: the canonical code and the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Driver(Protocol):
    """A client."""

    def call(self, method: str, **request: Any) -> Fields:
        """Call a method such as `Publisher.CreateTopic`. Raises Refused if the client reports an error."""

    def close(self) -> None: ...


class PythonGrpc:
    """google-cloud-pubsub, which needs nothing but PUBSUB_EMULATOR_HOST."""

    def __init__(self) -> None:
        self.publisher = pubsub_v1.PublisherClient()
        self.subscriber = pubsub_v1.SubscriberClient()
        # This client does not read PUBSUB_EMULATOR_HOST.
        channel = grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
        self.schemas = GeneratedSchemas(transport=SchemaTransport(channel=channel))

    def call(self, method: str, **request: Any) -> Fields:
        service, _, name = method.partition(".")
        word = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        # The generated methods are called, because the client's own `publish` collects batches.
        kind, client = {
            "Publisher": (GeneratedPublisher, self.publisher),
            "Subscriber": (GeneratedSubscriber, self.subscriber),
            "SchemaService": (GeneratedSchemas, self.schemas),
        }[service]
        try:
            answer = getattr(kind, word)(client, request=_message(name, request))
        except GoogleAPICallError as error:
            raise Refused(error.grpc_status_code.name, str(error.message)) from error
        return _proto_json(answer)

    def close(self) -> None:
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()
        self.schemas.transport.close()


class PythonRest:
    """google-api-python-client with its own discovery document."""

    def __init__(self, address: str) -> None:
        self._http = httplib2.Http()
        options = {"api_endpoint": f"http://{address}"}
        self._client = build("pubsub", "v1", static_discovery=True, client_options=options, http=self._http)

    def call(self, method: str, **request: Any) -> Fields:
        path, verb, key, body = REST[method]
        collection = self._client.projects()
        for word in path.split("."):
            collection = getattr(collection, word)()
        outer, _, inner = key.partition(".")
        arguments = {inner: request[outer][inner]} if inner else {outer: request[outer]}
        rest = {name: value for name, value in request.items() if inner or name != outer}
        if body == "*":
            arguments["body"] = rest
        elif body:
            arguments |= {name: value for name, value in rest.items() if name != body} | {"body": rest[body]}
        else:
            arguments |= rest
        try:
            answer: Fields = getattr(collection, verb)(**arguments).execute()
        except HttpError as error:
            details = json.loads(error.content)["error"]
            raise Refused(details["status"], details["message"]) from error
        return answer

    def close(self) -> None:
        self._client.close()
        self._http.close()


class Node:
    """@google-cloud/pubsub from npm, in a process of its own."""

    def __init__(self, modules: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["node", str(NODE / "driver.js")],
            env=environment | {"NODE_PATH": str(modules)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, method: str, **request: Any) -> Fields:
        service, _, name = method.partition(".")
        return self.act("call", service=service, method=name, request=request)

    def act(self, action: str, **arguments: Any) -> Fields:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"action": action, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the Node process ended"
        result = json.loads(line)
        if "refused" in result:
            raise Refused(**result["refused"])
        answer: Fields = result["answer"]
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def channel_ready(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        wait_for(ready.done, what="the channel")


def _message(name: str, request: Fields) -> Any:
    """Return the request of a method as the client's own type."""
    if name in ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions"):
        return ParseDict(request, getattr(iam_policy_pb2, f"{name}Request")())
    kinds = {"CreateTopic": "Topic", "CreateSubscription": "Subscription"}
    kind = getattr(generated, kinds.get(name, f"{name}Request"))
    return kind.wrap(ParseDict(request, kind.pb()()))


def _proto_json(answer: Any) -> Fields:
    if answer is None:
        return {}
    if hasattr(answer, "_response"):  # take the first page of a pager
        answer = answer._response
    raw = type(answer).pb(answer) if hasattr(type(answer), "pb") else answer
    shown: Fields = MessageToDict(raw)
    return shown
