"""Prometheus' text format, read by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from deliveries.telemetry.export.exposition import Family, format_text


def test_labels_are_escaped() -> None:
    family = Family("pushhub_x", "Help.", "gauge")
    family.add({"name": 'a"b\\c\nd'}, 1.5)
    [parsed] = text_string_to_metric_families(format_text([family]))
    assert [(sample.labels, sample.value) for sample in parsed.samples] == [({"name": 'a"b\\c\nd'}, 1.5)]


def test_the_buckets_of_a_histogram_are_cumulative() -> None:
    family = Family("pushhub_seconds", "Help.", "histogram")
    family.add_histogram({"outcome": "ack"}, [0.1, 1.0], [2, 0, 3], 7.25)
    [parsed] = text_string_to_metric_families(format_text([family]))
    assert [(sample.name, sample.labels.get("le"), sample.value) for sample in parsed.samples] == [
        ("pushhub_seconds_bucket", "0.1", 2),
        ("pushhub_seconds_bucket", "1", 2),
        ("pushhub_seconds_bucket", "+Inf", 5),
        ("pushhub_seconds_sum", None, 7.25),
        ("pushhub_seconds_count", None, 5),
    ]
