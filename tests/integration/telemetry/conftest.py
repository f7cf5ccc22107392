"""Metrics that are switched on for a test, and a parser of `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from deliveries.telemetry.export.readiness import probes
from deliveries.telemetry.sinks import counters as module

Scrape = Callable[[], dict[str, float]]


@pytest.fixture
def metrics_on(settings: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch metrics on in this process and in the processes that the test starts."""
    settings.METRICS = True
    monkeypatch.setenv("PUSHHUB_METRICS", "on")
    yield
    process_counters = module.counters()
    assert process_counters is not None
    process_counters.close()
    module._counters_of.cache_clear()


@pytest.fixture(autouse=True)
def no_probes_of_the_test_before() -> Iterator[None]:
    probes.cache_clear()
    yield
    probes.cache_clear()


@pytest.fixture
def scrape(metrics_on: None) -> Scrape:
    """Return a function that reads `/metrics`: values by `name{a="b",c="d"}`, with the labels in order."""

    def read() -> dict[str, float]:
        response = Client().get("/metrics")
        assert response.status_code == 200, response.content
        text = response.content.decode()
        # The parser appends "_total" to the names of counters.
        return {
            sample.name.removesuffix("_total")
            + "{"
            + ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            + "}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return read
