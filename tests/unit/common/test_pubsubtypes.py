"""The message classes in the package are those of the client library, and live beside them in one process."""

from __future__ import annotations

import subprocess
import sys

from google.pubsub_v1.types import pubsub as of_the_library

from pushhub.common.pubsubtypes import DESCRIPTORS, pubsub
from tests.descriptors import describe_pubsub

PROGRAM = """
import sys
import pushhub.common.pubsubtypes
assert not any(name.startswith(("google.api_core", "google.pubsub_v1", "proto")) for name in sys.modules)
"""


def test_the_descriptors_are_those_of_the_pinned_client_library() -> None:
    """After an update of the library, `python -m tests.descriptors` writes them anew."""
    assert DESCRIPTORS.read_bytes() == describe_pubsub()


def test_the_client_library_is_not_imported() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=120)


def test_the_classes_read_what_the_library_writes() -> None:
    written = of_the_library.PubsubMessage(data=b"one", attributes={"kind": "a"}, publish_time="2026-01-01T00:00:00Z")
    read = pubsub.PubsubMessage.FromString(of_the_library.PubsubMessage.serialize(written))
    assert (read.data, dict(read.attributes), read.publish_time.ToJsonString()) == (
        b"one", {"kind": "a"}, "2026-01-01T00:00:00Z",
    )  # fmt: skip
