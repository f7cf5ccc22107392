"""The sums of segments become records without numpy, which a maintenance worker does not import."""

from __future__ import annotations

import subprocess
import sys

from tests.workers import ROOT

SCRIPT = """
import django; django.setup()
from pushhub.common.arrow import import_arrow_alone
import_arrow_alone()
import pyarrow as pa
from deliveries.telemetry.counting.partials import partials_of

texts = dict.fromkeys(("resource", "event", "response_class", "host", "project", "segment"), ["a", "b"])
numbers = dict.fromkeys(("n", "bytes", "latency_us_sum", "latency_us_max", "minute"), [60, 120])
columns = {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
columns |= {name: pa.array(values) for name, values in texts.items()}
columns |= {"response_code": pa.array([204, 0], pa.int32())}
lists = pa.array([[3, 4], [None]], pa.list_(pa.int32())), pa.array([[1, 2], [1]], pa.list_(pa.int64()))
columns |= dict(zip(("buckets", "counts"), lists))
whole = pa.table(columns)
partials = partials_of(pa.concat_tables([whole, whole.slice(1)]))
print([(each.segment, each.key[4], each.sums.count, each.sums.buckets) for each in partials])
"""


def test_sums_become_records_without_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[('a', 204, 60, {3: 1, 4: 2}), ('b', 0, 120, {}), ('b', 0, 120, {})]\n", done.stderr
