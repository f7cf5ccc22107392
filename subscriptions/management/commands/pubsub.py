"""`manage.py pubsub topics|subscriptions|snapshots|schemas ...`, with gcloud's words."""

from __future__ import annotations

from subscriptions.cli.command import CliCommand
from subscriptions.cli.main import tree_of


class Command(CliCommand):
    """Pub/Sub from the command line."""

    help = "Topics, subscriptions, snapshots and schemas of a PushHub, over REST, with gcloud's words and flags."
    word = "pubsub"
    tree = tree_of(word)
