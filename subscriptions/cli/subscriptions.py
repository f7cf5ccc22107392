"""`pubsub subscriptions`."""

from __future__ import annotations

import base64
from typing import Any

from subscriptions.cli import labels
from subscriptions.cli.client import Client, CliError
from subscriptions.cli.formats import table
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.program import each
from subscriptions.cli.topics import LIMIT
from subscriptions.cli.values import NEVER, duration, duration_or_never, full_name, pairs, seconds, words
from subscriptions.cli.verbs import Options, Said, Verb, flag, switch

SUBSCRIPTION = flag("subscription", "an id such as worker, or projects/shop/subscriptions/worker")
SUBSCRIPTIONS = flag("subscriptions", "ids, or full names", nargs="+", metavar="subscription")
PUSH = (
    flag("--push-endpoint", "the URL that messages are pushed to; empty: a pull subscription", metavar="URL"),
    flag("--push-auth-service-account", "pushes carry a token of this account", metavar="EMAIL"),
    flag("--push-auth-token-audience", "the token's audience; without it, the endpoint's URL", metavar="AUDIENCE"),
    switch("--push-no-wrapper", "push the data as it is, not in JSON"),
    switch("--push-no-wrapper-write-metadata", "and the rest as headers"),
    flag("--push-attributes", "x-goog-version, x-pushhub-rate and the like", type=pairs, metavar="KEY=VALUE,..."),
)
SETTINGS = (
    flag("--ack-deadline", "seconds, 10 to 600", type=seconds, metavar="SECONDS"),
    flag("--message-retention-duration", "10m to 31d", type=duration, metavar="DURATION"),
    switch("--retain-acked-messages", "keep what is acknowledged, for seeks"),
    flag("--expiration-period", "deleted when unused for so long: 1d or more, or never", type=duration_or_never),
    flag("--min-retry-delay", "least backoff of a message", type=duration, metavar="DURATION"),
    flag("--max-retry-delay", "greatest backoff of a message", type=duration, metavar="DURATION"),
    flag("--dead-letter-topic", "where messages go after the last attempt", metavar="TOPIC"),
    flag("--dead-letter-topic-project", metavar="PROJECT"),
    flag("--max-delivery-attempts", "5 to 100", type=int),
)
ON_CREATE = (
    flag("--topic", "an id, or a full name", required=True),
    flag("--topic-project", "the project of --topic", metavar="PROJECT"),
    switch("--enable-message-ordering", "messages of an ordering key one at a time"),
    switch("--enable-exactly-once-delivery", "of pull subscriptions"),
    flag("--message-filter", 'such as attributes.kind = "order"', metavar="FILTER"),
)
CLEAR = (
    flag("--clear-retry-policy", "the default backoff again", action="store_true"),
    flag("--clear-dead-letter-policy", "no dead letters any more", action="store_true"),
)
ACK_IDS = flag("--ack-ids", "from pull, separated by commas", type=words, required=True, metavar="ACK_ID,...")


def subscription_name(options: Options) -> str:
    return full_name(options["subscription"], "subscriptions", options["project"])


def push_config(options: Options) -> dict[str, Any]:
    """The PushConfig that the flags say."""
    if not options["push_endpoint"]:
        for name in ("push_auth_service_account", "push_auth_token_audience"):
            if options[name]:
                raise CliError(f"--{name.replace('_', '-')} needs --push-endpoint: a pull subscription pushes nothing")
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
    """The fields of a subscription that the flags name; one that is None is to be cleared."""
    found: dict[str, Any] = {
        "ackDeadlineSeconds": options["ack_deadline"],
        "messageRetentionDuration": options["message_retention_duration"],
        "retainAckedMessages": options["retain_acked_messages"],
        "enableExactlyOnceDelivery": options.get("enable_exactly_once_delivery"),
    }
    period = options["expiration_period"]
    if period:
        found["expirationPolicy"] = {} if period == NEVER else {"ttl": period}
    backoff = {"minimumBackoff": options["min_retry_delay"], "maximumBackoff": options["max_retry_delay"]}
    found["retryPolicy"] = {field: value for field, value in backoff.items() if value} or None
    if options["dead_letter_topic"]:
        project = options["dead_letter_topic_project"] or options["project"]
        policy = {"deadLetterTopic": full_name(options["dead_letter_topic"], "topics", project)}
        attempts = options["max_delivery_attempts"]
        found["deadLetterPolicy"] = {**policy, "maxDeliveryAttempts": attempts} if attempts else policy
    return {field: value for field, value in found.items() if value is not None}


def create(client: Client, options: Options) -> Said:
    body = {
        **fields_of(options),
        "topic": full_name(options["topic"], "topics", options["topic_project"] or options["project"]),
        "pushConfig": push_config(options),
        "enableMessageOrdering": bool(options["enable_message_ordering"]),
        "filter": options["message_filter"] or "",
        "labels": options["labels"] or {},
    }
    named = [full_name(one, "subscriptions", options["project"]) for one in options["subscriptions"]]
    made = [client.call("PUT", name, body) for name in named]
    note = "\n".join(f"Created subscription [{row['name']}]." for row in made)
    return Said(made[0] if len(made) == 1 else made, note=note, form="none")


def update(client: Client, options: Options) -> Said:
    name = subscription_name(options)
    present = _checked(client, options, name)
    fields = fields_of(options)
    cleared = {"retryPolicy": options["clear_retry_policy"], "deadLetterPolicy": options["clear_dead_letter_policy"]}
    if _names_push(options):
        fields["pushConfig"] = push_config(options)
    if labels.are_changed(options):
        fields["labels"] = labels.changed(present.get("labels", {}), options)
    mask = [*fields, *(field for field, is_cleared in cleared.items() if is_cleared and field not in fields)]
    body = {"subscription": fields, "updateMask": ",".join(mask)}
    return Said(client.call("PATCH", name, body), note=f"Updated subscription [{name}].")


def modify_push_config(client: Client, options: Options) -> Said:
    name = subscription_name(options)
    _checked(client, options, name)
    client.call("POST", f"{name}:modifyPushConfig", {"pushConfig": push_config(options)})
    return Said(note=f"Updated subscription [{name}].")


def _names_push(options: Options) -> bool:
    return any(options[one.name.lstrip("-").replace("-", "_")] is not None for one in PUSH)


def _checked(client: Client, options: Options, name: str) -> dict[str, Any]:
    """The subscription as it is. Its topic cannot be changed, but may be named."""
    present = client.call("GET", name)
    if options["topic"]:
        wanted = full_name(options["topic"], "topics", options["project"])
        if present["topic"] != wanted:
            raise CliError(f"[{name}] is a subscription to {present['topic']} and not to {wanted}")
    return present


def delete(client: Client, options: Options) -> Said:
    names = [full_name(name, "subscriptions", options["project"]) for name in options["subscriptions"]]
    return each(names, lambda name: client.call("DELETE", name), done="Deleted subscription")


def describe(client: Client, options: Options) -> Said:
    return Said(client.call("GET", subscription_name(options)))


def diagnose(client: Client, options: Options) -> Said:
    answer = client.call("POST", f"{subscription_name(options)}:diagnose", {"sendProbe": options["send_probe"]})
    if options["format"] is not None and options["format"].name != "table":
        return Said(answer)
    rows = [[step["name"], step["status"], step["message"]] for step in answer["steps"]]
    return Said(table(rows, heads=["step", "status", "message"]) + f"\n\n{answer['summary']}", form="text")


def list_all(client: Client, options: Options) -> Said:
    found = client.pages(f"projects/{options['project']}/subscriptions", "subscriptions", limit=options["limit"])
    return Said(found, columns=("name", "topic", "pushConfig.pushEndpoint"))


def pull(client: Client, options: Options) -> Said:
    name = subscription_name(options)
    body = {"maxMessages": options["limit"], "returnImmediately": True}
    received = client.call("POST", f"{name}:pull", body).get("receivedMessages", [])
    if options["auto_ack"] and received:
        client.call("POST", f"{name}:acknowledge", {"ackIds": [one["ackId"] for one in received]})
    if options["format"] is not None and options["format"].name != "table":
        return Said(received)
    heads = ["data", "messageId", "orderingKey", "attributes", "deliveryAttempt", "ackId"]
    rows = [_row(one)[: 5 if options["auto_ack"] else 6] for one in received]
    return Said(table(rows, heads=heads[: 5 if options["auto_ack"] else 6]) if rows else "Listed 0 items.", form="text")


def _row(one: Any) -> list[str]:
    message = one["message"]
    attributes = ",".join(f"{key}={value}" for key, value in message.get("attributes", {}).items())
    text = base64.b64decode(message.get("data", "")).decode(errors="replace")
    attempt = str(one.get("deliveryAttempt", ""))
    return [text, message["messageId"], message.get("orderingKey", ""), attributes, attempt, one["ackId"]]


def ack(client: Client, options: Options) -> Said:
    client.call("POST", f"{subscription_name(options)}:acknowledge", {"ackIds": options["ack_ids"]})
    return Said(note=f"Acked {len(options['ack_ids'])} messages of [{subscription_name(options)}].")


def modify_ack_deadline(client: Client, options: Options) -> Said:
    name = subscription_name(options)
    body = {"ackIds": options["ack_ids"], "ackDeadlineSeconds": options["ack_deadline"]}
    client.call("POST", f"{name}:modifyAckDeadline", body)
    return Said(note=f"Set the ack deadline to {options['ack_deadline']} seconds for messages of [{name}].")


def seek(client: Client, options: Options) -> Said:
    if bool(options["time"]) == bool(options["snapshot"]):
        raise CliError("give one of --time and --snapshot")
    body = {"time": options["time"]} if options["time"] else {}
    if options["snapshot"]:
        project = options["snapshot_project"] or options["project"]
        body["snapshot"] = full_name(options["snapshot"], "snapshots", project)
    client.call("POST", f"{subscription_name(options)}:seek", body)
    return Said({"subscriptionId": subscription_name(options), **body})


NAMED_TOPIC = flag("--topic", "must be the one that it has", metavar="TOPIC")
VERBS = {
    "create": Verb("make subscriptions", create, (SUBSCRIPTIONS, *ON_CREATE, *PUSH, *SETTINGS, *labels.ON_CREATE)),
    "update": Verb(
        "change a subscription",
        update,
        (
            SUBSCRIPTION,
            NAMED_TOPIC,
            switch("--enable-exactly-once-delivery", "of pull subscriptions"),
            *PUSH,
            *SETTINGS,
            *CLEAR,
            *labels.ON_UPDATE,
        ),
    ),
    "modify-push-config": Verb(
        "push to another endpoint, or pull without one", modify_push_config, (SUBSCRIPTION, NAMED_TOPIC, *PUSH)
    ),
    "delete": Verb("delete subscriptions with what waits for them", delete, (SUBSCRIPTIONS,)),
    "describe": Verb("show a subscription", describe, (SUBSCRIPTION,)),
    "diagnose": Verb(
        "find out why messages are not delivered",
        diagnose,
        (SUBSCRIPTION, flag("--send-probe", "send a message without data to the endpoint", action="store_true")),
    ),
    "list": Verb("show a project's subscriptions", list_all, (LIMIT,)),
    "pull": Verb(
        "take messages",
        pull,
        (
            SUBSCRIPTION,
            flag("--auto-ack", "acknowledge them at once", action="store_true"),
            flag("--limit", "at most that many; 1 without it", type=int, default=1),
        ),
    ),
    "ack": Verb("acknowledge messages", ack, (SUBSCRIPTION, ACK_IDS)),
    "modify-message-ack-deadline": Verb(
        "give messages more time; 0 gives them back",
        modify_ack_deadline,
        (SUBSCRIPTION, ACK_IDS, flag("--ack-deadline", "seconds", type=seconds, required=True)),
    ),
    "seek": Verb(
        "go to another time, or to a snapshot",
        seek,
        (
            SUBSCRIPTION,
            flag("--time", "2026-11-21T12:00:00Z"),
            flag("--snapshot", "an id, or a full name"),
            flag("--snapshot-project", metavar="PROJECT"),
        ),
    ),
    **policy_verbs(SUBSCRIPTION, subscription_name),
}
