"""`manage.py iam service-accounts ...`, with gcloud's words."""

from __future__ import annotations

from subscriptions.cli.command import CliCommand
from subscriptions.cli.main import tree_of


class Command(CliCommand):
    """Service accounts from the command line."""

    help = "Service accounts of a PushHub, their keys and policies, over REST, with gcloud's words and flags."
    word = "iam"
    tree = tree_of(word)
