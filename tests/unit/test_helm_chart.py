"""The Helm chart names what exists. Its README says how the templates are checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from pushhub import __version__
from pushhub.runtime.grpcserver import services
from pushhub.runtime.processes import BY_NAME
from tests.unit.test_documents import read_settings

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "pushhub"


def read(name: str) -> Any:
    return yaml.safe_load((CHART / name).read_text(encoding="utf-8"))


def test_the_chart_runs_the_processes_of_this_version() -> None:
    chart, values = read("Chart.yaml"), read("values.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
    assert set(values["processes"]) == set(BY_NAME) - {"rollup"}, "the rollup needs Spark"


def test_its_settings_are_read_and_its_secrets_are_named_for_their_reader() -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    settings = read_settings()
    named = set(re.findall(r"name: (PUSHHUB_[A-Z_]+)[,}\n]", helpers))
    assert len(named) > 3
    assert named <= set(settings)
    [pairs] = re.findall(r'dict ("SECRET_KEY".*?) \}\}', helpers)
    words = re.findall(r'"(\w+)"', pairs)
    for name, key in zip(words[::2], words[1::2], strict=True):
        assert settings[f"PUSHHUB_{name}"], name
        assert f" {key}" in (CHART / "values.yaml").read_text(encoding="utf-8")
    page = (CHART / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"--from-literal=(\w+)=", page) == words[1::2], "the page makes them all"
    for name in re.findall(r"--set ([\w.]+)=", page):
        value = read("values.yaml")
        for key in name.split("."):
            value = value[key]


def test_an_outage_of_redis_does_not_restart_workers() -> None:
    """Kubernetes would wait for up to five minutes before it starts them once more."""
    template = (CHART / "templates" / "processes.yaml").read_text(encoding="utf-8")
    [startup, liveness] = re.findall(r"(\w+)Probe:\n +exec: {command: {{ append \$command \"(--\w+)\"", template)
    assert (startup, liveness) == (("startup", "--check"), ("liveness", "--alive"))


def test_the_journal_is_where_maintenance_finds_it() -> None:
    """A pod's own folder would fill its node, as only a maintenance worker with the same folder empties it."""
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    assert 'value: {{ if .Values.journal.existingClaim }}/journal{{ else }}"off"{{ end }}' in helpers
    assert 'fail "journal.bucket needs journal.existingClaim' in helpers


def test_pods_are_closed_to_all_but_the_named_peers() -> None:
    assert read("values.yaml")["networkPolicy"] == {"enabled": False, "from": []}
    template = (CHART / "templates" / "networkpolicy.yaml").read_text(encoding="utf-8")
    assert "{{- if and .enabled (not .from) }}{{ fail " in template, "an empty `from` would let everybody in"


def test_the_ingress_leads_every_service_of_the_grpc_port_there() -> None:
    template = (CHART / "templates" / "ingress.yaml").read_text(encoding="utf-8")
    names = {*services(), health.SERVICE_NAME, reflection.SERVICE_NAME}
    assert set(re.findall(r'"/(g[\w.]+)"', template)) == names
