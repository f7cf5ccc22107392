"""`manage.py pubsub topics|subscriptions|snapshots ...`, with gcloud's words."""

from __future__ import annotations

from subscriptions.cli import snapshots, subscriptions, topics
from subscriptions.cli.command import CliCommand


class Command(CliCommand):
    """Pub/Sub from the command line."""

    help = "Topics, subscriptions and snapshots of a PushHub, over REST, with gcloud's words and flags."
    word = "pubsub"
    tree = {"topics": topics.VERBS, "subscriptions": subscriptions.VERBS, "snapshots": snapshots.VERBS}
