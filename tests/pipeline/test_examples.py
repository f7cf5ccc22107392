"""The notebook of the guide runs as a program, and its totals are those of the orders that it published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from deliveries.models import Delivery
from deliveries.pipeline import needs
from tests.grpcservers import GrpcServer
from tests.pipeline.ground import QUICK_JAVA

NOTEBOOK = Path("docs/examples/totals.py")
#: The values of SPARK_REMOTE: none is Spark classic. Connect's client needs zstandard, which may be missing.
SESSIONS = ["", "local[2]"] if find_spec("zstandard") else [""]


@pytest.mark.parametrize("remote", SESSIONS, ids=lambda remote: "connect" if remote else "classic")
def test_the_notebook_streams_adds_up_and_publishes_back(server: GrpcServer, tmp_path: Path, remote: str) -> None:
    if missing := needs.missing():
        pytest.skip(missing)
    submit = f"--driver-memory 512m --driver-java-options '{QUICK_JAVA}' --conf spark.ui.enabled=false"
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": f"{submit} --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(tmp_path),
    }
    if remote:
        environment["SPARK_REMOTE"] = remote
    command = [sys.executable, "-W", "ignore", str(NOTEBOOK)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
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
