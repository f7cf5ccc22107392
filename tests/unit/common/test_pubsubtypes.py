"""The message classes of google.pubsub_v1 are imported without its clients, which can be imported later."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pushhub.common.pubsubtypes import pubsub
assert not any(name.startswith(("google.api_core", "google.pubsub_v1.services")) for name in sys.modules)
from google.pubsub_v1 import PublisherClient, PubsubMessage
from google.pubsub_v1.types import pubsub as theirs
assert theirs is pubsub
assert PubsubMessage is pubsub.PubsubMessage
"""


def test_the_clients_are_not_imported_and_can_be() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=120)
