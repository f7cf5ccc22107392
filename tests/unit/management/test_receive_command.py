"""`pushhub receive`, as an endpoint in this process."""

from __future__ import annotations

import threading

import pytest
import requests

from deliveries.management.receiver import Receiver


def test_attempts_are_counted_by_subscription(capsys: pytest.CaptureFixture[str]) -> None:
    """A message of two subscriptions comes twice, and neither is a second attempt."""
    with Receiver(("127.0.0.1", 0), status=204, delay_seconds=0, verifier=None) as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        for name in ("billing", "mail", "mail"):
            body = {
                "message": {"messageId": "7", "data": "MQ=="},
                "subscription": f"projects/demo/subscriptions/{name}",
            }
            requests.post(f"http://127.0.0.1:{receiver.server_address[1]}/", json=body, timeout=60)
        receiver.shutdown()
        thread.join()
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if "attempt" in line]
    assert [line.removeprefix("projects/demo/subscriptions/") for line in shown] == [
        "billing message 7 attempt 1, answered 204",
        "mail message 7 attempt 1, answered 204",
        "mail message 7 attempt 2, answered 204",
    ]
