"""`messages`: what happened to a message, and what to do with one that blocks others. `gcloud` has no such command."""

from __future__ import annotations

from typing import Any

from subscriptions.cli.client import Client
from subscriptions.cli.formats import table
from subscriptions.cli.nouns.subscriptions import subscription_name
from subscriptions.cli.program import confirm
from subscriptions.cli.values import full_name
from subscriptions.cli.verbs import Options, Result, Verb, flag

MESSAGE = flag("message", "the id that publishing returned")
HEADS = ("time", "event", "attempt", "outcome", "result", "latency", "worker")


def describe(client: Client, options: Options) -> Result:
    answer = _whole(client, full_name(options["message"], "messages", options["project"]))
    if options["format"] is not None and options["format"].name != "table":
        return Result(answer)
    parts = [f"message {answer['messageId']}, published at {answer['publishTime']}"]
    if "topic" in answer:
        parts[0] += f" to {answer['topic']}"
    parts += [_delivery(delivery) for delivery in answer["deliveries"]]
    if not answer["deliveries"]:
        parts.append("No subscription that you may pull from got it, or it was filtered out for each of them.")
    return Result("\n\n".join(parts), form="text")


def _whole(client: Client, name: str) -> Any:
    """Return the message with the attempts of all pages. A later page has the later state."""
    answer = client.call("GET", name)
    token = answer.pop("nextPageToken", "")
    deliveries = {delivery["subscription"]: delivery for delivery in answer["deliveries"]}
    while token:
        page = client.call("GET", name, pageToken=token)
        token = page.get("nextPageToken", "")
        for delivery in page["deliveries"]:
            before = deliveries[delivery["subscription"]]["attempts"]
            deliveries[delivery["subscription"]] = {**delivery, "attempts": before + delivery["attempts"]}
    return {**answer, "deliveries": list(deliveries.values())}


def _delivery(delivery: Any) -> str:
    state = delivery["state"].lower().replace("_", " ")
    lines = [f"{delivery['subscription']}: {state}. {delivery.get('reason', '')}".rstrip()]
    if delivery["attempts"]:
        lines.append(table([_row(attempt) for attempt in delivery["attempts"]], heads=HEADS))
    if "attemptsMissing" in delivery:
        lines.append(delivery["attemptsMissingReason"])
    return "\n".join(lines)


def dead_letter(client: Client, options: Options) -> Result:
    return _settle(client, options, method="deadLetterMessages", done="Dead-lettered")


def skip(client: Client, options: Options) -> Result:
    confirm(f"Skip {len(options['messages'])} messages of [{subscription_name(options)}]? They are lost.", options)
    return _settle(client, options, method="skipMessages", done="Skipped")


def _settle(client: Client, options: Options, *, method: str, done: str) -> Result:
    name, ids = subscription_name(options), options["messages"]
    count = client.call("POST", f"{name}:{method}", {"messageIds": ids})["messages"]
    left = [f"{len(ids) - count} of the messages did not wait for [{name}]"] if count < len(ids) else []
    return Result(note=f"{done} {count} of the messages of [{name}].", failures=left)


def _row(attempt: Any) -> list[str]:
    names = ("time", "event", "deliveryAttempt", "outcome", "result", "latency", "worker")
    return [str(attempt.get(name, "")) for name in names]


NAMED = (
    flag("messages", "the ids that publishing returned", nargs="+", metavar="message"),
    flag("--subscription", "the subscription that they wait for", required=True),
)
VERBS = {
    "describe": Verb("show a message's way to each subscription, also after the ack", describe, MESSAGE),
    "dead-letter": Verb("send waiting messages to the dead-letter topic now", dead_letter, *NAMED),
    "skip": Verb("drop waiting messages of a subscription", skip, *NAMED),
}
