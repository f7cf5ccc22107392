"""`manage.py projects ...`, with gcloud's words."""

from __future__ import annotations

from subscriptions.cli.command import CliCommand
from subscriptions.cli.nouns import projects


class Command(CliCommand):
    """Projects from the command line."""

    help = "Projects of a PushHub and their policies, over REST, with gcloud's words and flags."
    word = "projects"
    tree = projects.VERBS
