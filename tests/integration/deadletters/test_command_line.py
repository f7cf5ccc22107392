"""`pushhub dead-letters` against a running server."""

from __future__ import annotations

import pytest
from pytest_django.live_server_helper import LiveServer

from deliveries.deadletters import jobs
from deliveries.models import DeadLetter, DeadLetterJob
from subscriptions.cli.main import main
from tests.integration.deadletters.letters import create_letters, create_source
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)


def test_dead_letters_are_listed_redriven_and_discarded(
    redis_url: str, live_server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    api = Api()
    source = create_source(api)
    first, second, third = create_letters(api, source, 3)
    common = [source.name, f"--url={live_server.url}"]
    assert main(["dead-letters", "list", *common]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["MESSAGE_ID", str(first), str(second), str(third)]
    assert main(["dead-letters", "redrive", *common, f"--message-ids={first}"]) == 0
    assert main(["dead-letters", "discard", *common, f"--message-ids={second}", "-q"]) == 0
    assert main(["dead-letters", "discard", *common, "--all", "--rate=5", "-q"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"Redrove 1 dead letter of [{source.name}].",
        f"Discarded 1 dead letter of [{source.name}].",
        f"1 dead letter of [{source.name}] will be discarded.",
    ]
    assert [letter.message_id for letter in DeadLetter.objects.all()] == [third]
    assert (DeadLetterJob.objects.get().action, DeadLetterJob.objects.get().rate) == ("discard", 5)
    assert main(["dead-letters", "redrive", *common, f"--message-ids={third}", "--rate=5"]) == 1
    assert "Dead letters are being moved already" in capsys.readouterr().err
    jobs.stop_job(source)
    assert main(["dead-letters", "redrive", *common, f"--message-ids={third}", "--rate=5"]) == 0
    assert capsys.readouterr().err == f"1 dead letter of [{source.name}] will be redriven.\n"
    assert DeadLetterJob.objects.latest("pk").chosen_ids == [third]
    assert main(["dead-letters", "redrive", *common, "--all", "--rate=0"]) == 1
    assert "The rate must be between 1 and 1000" in capsys.readouterr().err
