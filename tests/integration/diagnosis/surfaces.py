"""What the console and the command line say of a set-up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from subscriptions.cli.main import main
from subscriptions.models import Subscription
from tests.integration.diagnosis.standing import Case
from tests.restapi import root_client


class Surfaces:
    """What a reader sees of a subscription, and what is wrong with that."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = root_client()
        self.capsys = capsys

    def console(self, name: str) -> dict[str, Any]:
        pk = Subscription.objects.get(subscription_id=name).pk
        shown: dict[str, Any] = self.client.get(f"/admin/deliveries/delivery/state/{pk}/live/").json()
        return shown

    def command_line(self, line: str) -> tuple[int, Any]:
        """Return the exit code of a command line, and the JSON that it prints."""
        self.capsys.readouterr()
        code = main(["subscriptions", *line.split(), "--format=json"])
        return code, json.loads(self.capsys.readouterr().out)

    def faults(self, name: str, case: Case) -> list[str]:
        """Return what the surfaces say of a case that they should not."""
        shown = self.console(name)
        code, answer = self.command_line(f"diagnose {name}")
        _, described = self.command_line(f"describe {name}")
        summary = answer["summary"]
        text = f"{name}: {shown['level'] or '-'} {shown['sentence']} | {code} {summary}"
        is_wrong = bool(case.step)
        checks = {
            "sentence": case.sentence in shown["sentence"] and case.result in shown["sentence"],
            "level": shown["level"] in case.levels,
            "step": summary.startswith(f"{case.step}: ") if is_wrong else summary.startswith("No"),
            "summary": case.summary in summary,
            "result": case.result in str(answer["steps"]),
            "exit code": code == int(is_wrong),
            "healthy": answer["healthy"] is not is_wrong,
            "state": described["state"] == "ACTIVE",
        }
        return [f"{check}: {text}" for check, holds in checks.items() if not holds]
