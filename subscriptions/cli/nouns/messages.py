"""`messages`: what happened to a message. `gcloud` has no such command."""

from __future__ import annotations

from typing import Any

from subscriptions.cli.client import Client
from subscriptions.cli.formats import table
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


def _row(attempt: Any) -> list[str]:
    names = ("time", "event", "deliveryAttempt", "outcome", "result", "latency", "worker")
    return [str(attempt.get(name, "")) for name in names]


VERBS = {"describe": Verb("show a message's way to each subscription, also after the ack", describe, (MESSAGE,))}
