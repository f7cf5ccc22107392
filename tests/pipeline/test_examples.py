"""The notebook of the guide runs as a program, and its totals are those of the orders that it published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deliveries.models import Delivery
from deliveries.pipeline.session import WORKERS
from pushhub.common.names import subscription_name, topic_name
from subscriptions.models import Subscription, Topic
from subscriptions.services.subscriptions import delete_subscription
from subscriptions.services.topics import delete_topic
from tests.grpcservers import GrpcServer
from tests.pipeline.quickjava import QUICK_SUBMIT

NOTEBOOK = Path("docs/examples/totals.py")
#: Spark waits 10 s for a Python process, which no setting changes, and a busy machine may take longer to start one.
SPARK_GAVE_UP = "Timed out while waiting for the Python worker to connect back"


@pytest.mark.usefixtures("needs_spark")
@pytest.mark.parametrize("remote", ["", "local[2]"], ids=["classic", "connect"])
def test_the_notebook_streams_adds_up_and_publishes_back(server: GrpcServer, tmp_path: Path, remote: str) -> None:
    """Given the value of SPARK_REMOTE, without which Spark is classic, then the notebook does the same."""
    if remote:
        pytest.importorskip("zstandard", reason="Spark Connect's client needs it: make install-tests")
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": f"{QUICK_SUBMIT} --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        # With the folder of `workers`, Spark's Python processes start in half of the time.
        "PYTHONPATH": os.pathsep.join([str(WORKERS), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(tmp_path),
    }
    if remote:
        environment["SPARK_REMOTE"] = remote
    command = [sys.executable, "-W", "ignore", str(NOTEBOOK)]
    for _ in range(5):
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        if SPARK_GAVE_UP not in process.stderr:
            break
        for name in Subscription.objects.values_list("subscription_id", flat=True):
            delete_subscription(name=subscription_name("demo", name))
        for name in Topic.objects.values_list("topic_id", flat=True):
            delete_topic(name=topic_name("demo", name))
    assert process.returncode == 0, process.stderr[-5000:]
    # A batch publishes each total that it changes, and the last one counts.
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for line in process.stdout.splitlines():
        kind, _, data = line.partition(" {")
        if kind in ("order", "return"):
            total = json.loads("{" + data)
            totals[kind, total["minute"]] = (total["orders"], total["total"])
    sums = {
        name: tuple(map(sum, zip(*(total for (kind, _), total in totals.items() if kind == name), strict=True)))
        for name in ("order", "return")
    }
    numbers = range(100)
    assert sums == {
        "order": (80, sum(number / 4 for number in numbers if number % 5)),
        "return": (20, sum(number / 4 for number in numbers if not number % 5)),
    }
    assert not Delivery.objects.filter(subscription__subscription_id="analysis").exists()
