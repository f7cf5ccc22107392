"""Prometheus' text format, read by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from deliveries.telemetry.export.exposition import Family, format_text
from deliveries.telemetry.kinds import Kind


def test_labels_are_escaped() -> None:
    family = Family(Kind("x", "Help."))
    family.add({"name": 'a"b\\c\nd'}, 1.5)
    [parsed] = text_string_to_metric_families(format_text([family]))
    assert [(sample.labels, sample.value) for sample in parsed.samples] == [({"name": 'a"b\\c\nd'}, 1.5)]


def test_the_buckets_of_a_histogram_are_cumulative() -> None:
    family = Family(Kind("time", "Help.", "s", "DISTRIBUTION", counter=()))
    family.add_histogram({"outcome": "ack"}, [0.1, 1.0], [2, 0, 3], 7.25)
    [parsed] = text_string_to_metric_families(format_text([family]))
    assert [(sample.name, sample.labels.get("le"), sample.value) for sample in parsed.samples] == [
        ("pushhub_time_seconds_bucket", "0.1", 2),
        ("pushhub_time_seconds_bucket", "1", 2),
        ("pushhub_time_seconds_bucket", "+Inf", 5),
        ("pushhub_time_seconds_sum", None, 7.25),
        ("pushhub_time_seconds_count", None, 5),
    ]
