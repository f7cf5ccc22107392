"""`manage.py pubsub topics|subscriptions|snapshots|schemas|message-transforms ...`, with gcloud's words."""

from __future__ import annotations

from subscriptions.cli.command import CliCommand
from subscriptions.cli.main import tree_of


class Command(CliCommand):
    """Pub/Sub from the command line."""

    help = "Topics, subscriptions, snapshots, schemas, message transforms: over REST, with gcloud's words and flags."
    word = "pubsub"
    tree = tree_of(word)
