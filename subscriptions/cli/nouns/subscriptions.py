"""`pubsub subscriptions`."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from time import sleep
from typing import Any

from subscriptions.cli import labels, transforms
from subscriptions.cli.client import Client
from subscriptions.cli.errors import CliError
from subscriptions.cli.formats import harmless, table
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import call_each, create_each, delete_each, list_all, name_by, names_in
from subscriptions.cli.values import NEVER, count, duration, duration_or_never, full_name, pairs, seconds, words
from subscriptions.cli.verbs import Options, Result, Verb, check_needs, cleared_by, flag, mask_of, switch

SUBSCRIPTION = flag("subscription", "an id such as worker, or projects/shop/subscriptions/worker")
SUBSCRIPTIONS = flag("subscriptions", "ids, or full names", nargs="+", metavar="subscription")
WRITE_METADATA = switch("--push-no-wrapper-write-metadata", "write the metadata of unwrapped messages as headers")
PUSH = (
    flag("--push-endpoint", "the URL that messages are pushed to; empty: a pull subscription", metavar="URL"),
    flag("--push-auth-service-account", "account whose token pushes carry", metavar="EMAIL"),
    flag("--push-auth-token-audience", "the token's audience (default: the endpoint's URL)", metavar="AUDIENCE"),
    switch("--push-no-wrapper", "push the data itself, without the JSON wrapper"),
    WRITE_METADATA,
    flag("--push-attributes", "such as x-goog-version or x-pushhub-rate", type=pairs, metavar="KEY=VALUE,..."),
)
RETRY_SETTINGS = (
    flag("--min-retry-delay", "minimum backoff of a message", type=duration, metavar="DURATION"),
    flag("--max-retry-delay", "maximum backoff of a message", type=duration, metavar="DURATION"),
)
DEAD_LETTER_TOPIC = flag("--dead-letter-topic", "where messages go after the last attempt", metavar="TOPIC")
DEAD_LETTER_SETTINGS = (
    flag("--dead-letter-topic-project", "the project of --dead-letter-topic", metavar="PROJECT"),
    flag("--max-delivery-attempts", "5 to 100", type=int),
)
SETTINGS = (
    flag("--ack-deadline", "seconds, 10 to 600", type=seconds, metavar="SECONDS"),
    flag("--message-retention-duration", "10m to 31d", type=duration, metavar="DURATION"),
    switch("--retain-acked-messages", "keep acknowledged messages for seeks"),
    flag("--expiration-period", "delete it after this time without use: 1d or more, or never", type=duration_or_never),
    *RETRY_SETTINGS,
    DEAD_LETTER_TOPIC,
    *DEAD_LETTER_SETTINGS,
    transforms.FILE,
)
ON_CREATE = (
    flag("--topic", "an id, or a full name", required=True),
    flag("--topic-project", "the project of --topic", metavar="PROJECT"),
    switch("--enable-message-ordering", "deliver messages of an ordering key in order"),
    switch("--enable-exactly-once-delivery", "for pull subscriptions"),
    flag("--message-filter", 'for example: attributes.kind = "order"', metavar="FILTER"),
)
#: By field, the flag that clears it, and those that set it.
CLEARED = {
    "retryPolicy": (flag("--clear-retry-policy", "use the default backoff again", action="store_true"), RETRY_SETTINGS),
    "deadLetterPolicy": (
        flag("--clear-dead-letter-policy", "stop forwarding dead letters", action="store_true"),
        [DEAD_LETTER_TOPIC],
    ),
    "messageTransforms": (transforms.CLEAR, [transforms.FILE]),
}
CLEAR = tuple(clear for clear, _ in CLEARED.values())
#: A duration as a diagnosis tells it, such as 400 ms or 12 s.
DURATION = r"\d+(\.\d+)? (ms|s|min|h|d)\b"
ACK_IDS = flag("--ack-ids", "from pull, separated by commas", type=words, required=True, metavar="ACK_ID,...")
subscription_name, topic_name, snapshot_name = map(name_by, ("subscription", "topic", "snapshot"))


def push_config(options: Options) -> dict[str, Any]:
    check_needs(options, "--push-endpoint", PUSH[1:], why=": the --push flags make a whole push configuration")
    if options["push_no_wrapper_write_metadata"]:
        check_needs(options, "--push-no-wrapper", [WRITE_METADATA])
    token = {
        "serviceAccountEmail": options["push_auth_service_account"],
        "audience": options["push_auth_token_audience"],
    }
    config: dict[str, Any] = {
        "pushEndpoint": options["push_endpoint"],
        "oidcToken": {field: value for field, value in token.items() if value},
        "attributes": options["push_attributes"],
    }
    config = {field: value for field, value in config.items() if value}
    if options["push_no_wrapper"]:
        config["noWrapper"] = {"writeMetadata": True} if options["push_no_wrapper_write_metadata"] else {}
    return config


def fields_of(options: Options) -> dict[str, Any]:
    """Return the fields of a subscription that the flags set. A field that is None is cleared."""
    check_needs(options, "--dead-letter-topic", DEAD_LETTER_SETTINGS)
    fields: dict[str, Any] = {
        "ackDeadlineSeconds": options["ack_deadline"],
        "messageRetentionDuration": options["message_retention_duration"],
        "retainAckedMessages": options["retain_acked_messages"],
        "enableExactlyOnceDelivery": options.get("enable_exactly_once_delivery"),
    }
    period = options["expiration_period"]
    if period:
        fields["expirationPolicy"] = {} if period == NEVER else {"ttl": period}
    backoff = {"minimumBackoff": options["min_retry_delay"], "maximumBackoff": options["max_retry_delay"]}
    fields["retryPolicy"] = {field: value for field, value in backoff.items() if value} or None
    if options["dead_letter_topic"]:
        project = options["dead_letter_topic_project"] or options["project"]
        policy = {"deadLetterTopic": full_name(options["dead_letter_topic"], "topics", project)}
        attempts = options["max_delivery_attempts"]
        fields["deadLetterPolicy"] = {**policy, "maxDeliveryAttempts": attempts} if attempts else policy
    return {field: value for field, value in fields.items() if value is not None} | transforms.fields_of(options)


def create(client: Client, options: Options) -> Result:
    body = {
        **fields_of(options),
        "topic": topic_name(options),
        "pushConfig": push_config(options),
        "enableMessageOrdering": bool(options["enable_message_ordering"]),
        "filter": options["message_filter"] or "",
        "labels": options["labels"] or {},
    }
    return create_each(client, names_in("subscriptions", options), body, noun="subscription")


def update(client: Client, options: Options) -> Result:
    name = subscription_name(options)
    _check_topic(client, options, name)
    fields = fields_of(options) | labels.fields_of(client, name, options)
    if any(options[option.key] is not None for option in PUSH):
        fields["pushConfig"] = push_config(options)
    body = {"subscription": fields, "updateMask": mask_of([*fields, *cleared_by(options, CLEARED)])}
    return Result(client.call("PATCH", name, body), note=f"Updated subscription [{name}].")


def modify_push_config(client: Client, options: Options) -> Result:
    name = subscription_name(options)
    _check_topic(client, options, name)
    client.call("POST", f"{name}:modifyPushConfig", {"pushConfig": push_config(options)})
    return Result(note=f"Updated subscription [{name}].")


def _check_topic(client: Client, options: Options, name: str) -> None:
    """Raise CliError if the options name another topic than the subscription's, which can't change."""
    topic = client.call("GET", name)["topic"] if options["topic"] else ""
    if topic and topic != topic_name(options):
        raise CliError(f"[{name}] is a subscription to {topic} and not to {topic_name(options)}")


def diagnose(client: Client, options: Options) -> Result:
    if bool(options["subscription"]) == options["all"]:
        raise CliError("pass either a subscription or --all")
    return _diagnose_all(client, options) if options["all"] else _diagnose_one(client, options)


def _diagnose_all(client: Client, options: Options) -> Result:
    rows = client.pages(f"projects/{options['project']}/subscriptions", "subscriptions")
    body = {"sendProbe": options["send_probe"]}
    answers = [client.call("POST", f"{row['name']}:diagnose", body) for row in rows]
    failures = [f"[{answer['subscription']}]: {answer['summary']}" for answer in answers if not answer["healthy"]]
    return Result(answers, columns=("subscription", "healthy", "summary"), form="table", failures=failures)


def _diagnose_one(client: Client, options: Options) -> Result:
    answer = client.call("POST", f"{subscription_name(options)}:diagnose", {"sendProbe": options["send_probe"]})
    failures = [] if answer["healthy"] else [f"[{answer['subscription']}]: {answer['summary']}"]
    if options["format"] is not None and options["format"].name != "table":
        return Result(answer, failures=failures)
    rows = [[step["name"], step["status"], step["message"]] for step in answer["steps"]]
    text = table(rows, heads=["step", "status", "message"])
    return Result(text if failures else f"{text}\n\n{answer['summary']}", form="text", failures=failures)


def describe(client: Client, options: Options) -> Result:
    name = subscription_name(options)
    return Result(_watched(client, name, seconds=options["watch"]) if options["watch"] else client.call("GET", name))


def _watched(client: Client, name: str, *, seconds: int) -> Any:
    """Print what a diagnosis says whenever more than durations of it change, until Ctrl-C. Return the subscription."""
    before = ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            summary = client.call("POST", f"{name}:diagnose", {})["summary"]
            without_times = re.sub(DURATION, "", summary)
            if without_times != before:
                print(f"{time.strftime('%H:%M:%S')} {harmless(summary)}", flush=True)  # noqa: T201 - its output
            before = without_times
            sleep(seconds)
    return client.call("GET", name)


def pull(client: Client, options: Options) -> Result:
    name = subscription_name(options)
    body = {"maxMessages": options["limit"], "returnImmediately": True}
    received = client.call("POST", f"{name}:pull", body).get("receivedMessages", [])
    if options["auto_ack"] and received:
        client.call("POST", f"{name}:acknowledge", {"ackIds": [message["ackId"] for message in received]})
    if options["format"] is not None and options["format"].name != "table":
        return Result(received)
    heads = ["data", "messageId", "orderingKey", "attributes", "deliveryAttempt", "ackId"]
    rows = [_row(message)[: 5 if options["auto_ack"] else 6] for message in received]
    return Result(
        table(rows, heads=heads[: 5 if options["auto_ack"] else 6]) if rows else "Listed 0 items.", form="text"
    )


def _row(received: Any) -> list[str]:
    content = received["message"]
    attributes = ",".join(f"{key}={value}" for key, value in content.get("attributes", {}).items())
    text = base64.b64decode(content.get("data", "")).decode(errors="replace")
    attempt = str(received.get("deliveryAttempt", ""))
    return [text, content["messageId"], content.get("orderingKey", ""), attributes, attempt, received["ackId"]]


def ack(client: Client, options: Options) -> Result:
    client.call("POST", f"{subscription_name(options)}:acknowledge", {"ackIds": options["ack_ids"]})
    return Result(note=f"Acked {len(options['ack_ids'])} messages of [{subscription_name(options)}].")


def modify_ack_deadline(client: Client, options: Options) -> Result:
    name = subscription_name(options)
    body = {"ackIds": options["ack_ids"], "ackDeadlineSeconds": options["ack_deadline"]}
    client.call("POST", f"{name}:modifyAckDeadline", body)
    return Result(note=f"Set the ack deadline to {options['ack_deadline']} seconds for messages of [{name}].")


def seek(client: Client, options: Options) -> Result:
    if bool(options["time"]) == bool(options["snapshot"]):
        raise CliError("pass either --time or --snapshot")
    body = {"time": options["time"]} if options["time"] else {}
    if options["snapshot"]:
        body["snapshot"] = snapshot_name(options)
    client.call("POST", f"{subscription_name(options)}:seek", body)
    return Result({"subscriptionId": subscription_name(options), **body})


NAMED_TOPIC = flag("--topic", "the current topic, which can't change", metavar="TOPIC")
VERBS = {
    "create": Verb("create subscriptions", create, SUBSCRIPTIONS, *ON_CREATE, *PUSH, *SETTINGS, *labels.ON_CREATE),
    "update": Verb(
        "change a subscription",
        update,
        SUBSCRIPTION,
        NAMED_TOPIC,
        switch("--enable-exactly-once-delivery", "for pull subscriptions"),
        *PUSH,
        *SETTINGS,
        *CLEAR,
        *labels.ON_UPDATE,
    ),
    "modify-push-config": Verb(
        "push to another endpoint; without one, change to pull", modify_push_config, SUBSCRIPTION, NAMED_TOPIC, *PUSH
    ),
    "delete": Verb("delete subscriptions and their backlogs", delete_each("subscriptions"), SUBSCRIPTIONS),
    "describe": Verb(
        "show a subscription",
        describe,
        SUBSCRIPTION,
        flag(
            "--watch",
            "look every so many seconds (2) why its messages wait, until Ctrl-C",
            nargs="?",
            const=2,
            type=count,
            metavar="SECONDS",
        ),
    ),
    "pause": Verb(
        "stop pushing; messages wait, and the push configuration is kept",
        call_each("subscriptions", "Paused subscription", verb=":pause"),
        SUBSCRIPTIONS,
    ),
    "resume": Verb("push again", call_each("subscriptions", "Resumed subscription", verb=":resume"), SUBSCRIPTIONS),
    "diagnose": Verb(
        "find out why messages are not delivered",
        diagnose,
        flag("subscription", "an id such as worker, or projects/shop/subscriptions/worker", nargs="?"),
        flag("--all", "each subscription of the project", action="store_true"),
        flag("--send-probe", "send a message without data to the endpoint", action="store_true"),
    ),
    "list": list_all("subscriptions", ("name", "topic", "pushConfig.pushEndpoint")),
    "pull": Verb(
        "pull messages",
        pull,
        SUBSCRIPTION,
        flag("--auto-ack", "acknowledge them at once", action="store_true"),
        flag("--limit", "the maximum number of messages (default: 1)", type=count, default=1),
    ),
    "ack": Verb("acknowledge messages", ack, SUBSCRIPTION, ACK_IDS),
    "modify-message-ack-deadline": Verb(
        "change the ack deadline of messages; 0 returns them",
        modify_ack_deadline,
        SUBSCRIPTION,
        ACK_IDS,
        flag("--ack-deadline", "seconds", type=seconds, required=True),
    ),
    "seek": Verb(
        "seek to a time or to a snapshot",
        seek,
        SUBSCRIPTION,
        flag("--time", "2026-11-21T12:00:00Z"),
        flag("--snapshot", "an id, or a full name"),
        flag("--snapshot-project", "the project of --snapshot", metavar="PROJECT"),
    ),
    **policy_verbs(SUBSCRIPTION, subscription_name),
}
