"""`dead-letters`: list, redrive and discard a subscription's dead letters. `gcloud` has no such commands."""

from __future__ import annotations

from subscriptions.cli.client import Client, Fields
from subscriptions.cli.errors import CliError
from subscriptions.cli.nouns.subscriptions import SUBSCRIPTION, subscription_name
from subscriptions.cli.program import confirm
from subscriptions.cli.resources import LIMIT
from subscriptions.cli.values import words
from subscriptions.cli.verbs import Options, Result, Verb, flag

#: The most message ids that the API accepts in one request.
BATCH = 100


def list_all(client: Client, options: Options) -> Result:
    letters = client.pages(f"{subscription_name(options)}/deadLetters", "deadLetters", limit=options["limit"])
    columns = ("messageId", "deadLetterTime", "deliveryAttempts", "reason", "sourceMessageId")
    return Result(letters, columns=columns, form="table")


def redrive(client: Client, options: Options) -> Result:
    return _move(client, options, method="redriveDeadLetters", done="Redrove", planned="redriven")


def discard(client: Client, options: Options) -> Result:
    _check(options)
    letters = "all dead letters" if options["all"] else _counted(len(options["message_ids"]))
    confirm(f"Discard {letters} of [{subscription_name(options)}]? They are lost.", options)
    return _move(client, options, method="discardDeadLetters", done="Discarded", planned="discarded")


def _move(client: Client, options: Options, *, method: str, done: str, planned: str) -> Result:
    """Move the named dead letters at once, or have the maintenance worker move them, or all, at a rate."""
    _check(options)
    name, ids, rate = subscription_name(options), options["message_ids"], options["rate"]
    if options["all"] or rate is not None:
        body: Fields = {"all": True} if options["all"] else {"messageIds": ids}
        if rate is not None:
            body["messagesPerSecond"] = rate
        count = client.call("POST", f"{name}:{method}", body)["messages"]
        return Result(note=f"{_counted(count)} of [{name}] will be {planned}.")
    count, failures = 0, []
    for start in range(0, len(ids), BATCH):
        try:
            count += client.call("POST", f"{name}:{method}", {"messageIds": ids[start : start + BATCH]})["messages"]
        except CliError as error:
            failures.append(str(error))
            break
    return Result(note=f"{done} {_counted(count)} of [{name}].", failures=failures)


def _counted(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def _check(options: Options) -> None:
    if options["all"] == bool(options["message_ids"]):
        raise CliError("give either --message-ids or --all")
    if options["rate"] is not None and len(options["message_ids"]) > BATCH:
        raise CliError(f"--rate takes at most {BATCH} --message-ids; use --all for more")


MOVE = (
    SUBSCRIPTION,
    flag("--message-ids", "from list, separated by commas", type=words, default=[], metavar="MESSAGE_ID,..."),
    flag("--all", "all dead letters that there are now, at --rate", action="store_true"),
    flag(
        "--rate",
        "messages per second, 1 to 1000 (default: 10 with --all; --message-ids are moved at once)",
        type=int,
        metavar="NUMBER",
    ),
)
VERBS = {
    "list": Verb("show a subscription's dead letters, the oldest first", list_all, SUBSCRIPTION, LIMIT),
    "redrive": Verb("publish dead letters to the subscription again", redrive, *MOVE),
    "discard": Verb("acknowledge dead letters and forget them", discard, *MOVE),
}
