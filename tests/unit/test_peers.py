"""The peers of bench/peers: versions are pinned, programs are there, and the page says what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.drawing import Bars, draw_bars
from bench.pages import put_block
from bench.peers import install, report
from bench.peers.load import Phase
from bench.peers.peers import FACTS, PEERS
from bench.processes import BenchError


@pytest.mark.parametrize("name", PEERS)
def test_each_peer_has_a_program_pinned_packages_and_every_fact(name: str) -> None:
    peer = PEERS[name]
    assert list(install.PROGRAMS.glob(f"{Path(peer.recipe.program).stem}.*"))
    assert [package for package in peer.recipe.packages if not re.search(r"(==|@)v?\d+(\.\d+)+$", package)] == []
    assert len(peer.facts) == len(FACTS)


@pytest.mark.parametrize(("name", "program"), [("bullmq", "npm"), ("asynq", "go")])
def test_a_peer_whose_installer_is_missing_says_which_each_time(
    name: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(BenchError, match=f"^{program} is not installed$"):
            install.prepare(name, PEERS[name].recipe)


def test_rate_and_latencies_are_those_of_the_first_arrival_since_each_message_was_due() -> None:
    phase = Phase(10, (1_000_000, 501_000_000))
    arrivals = {"9": 0, "10": 3_000_000, "11": 1_001_000_000}
    assert phase.latencies_ms(arrivals) == [2.0, 500.0]
    assert phase.rate(arrivals) == 2.0


def test_the_page_and_the_picture_say_what_was_measured() -> None:
    results = json.loads(report.RESULTS.read_text())
    assert not results["quick"]
    assert set(results["peers"]) == set(PEERS)
    page = report.PAGE.read_text()
    for name, block in report.blocks(results).items():
        assert f"{report.BLOCK.format(name=name)}\n\n{block}\n\n" in page
    assert report.PICTURE.read_text() == report.draw_results(results)


def test_a_block_replaces_the_one_of_its_name_alone() -> None:
    first, second = (report.BLOCK.format(name=name) for name in ("first", "second"))
    page = f"# Page\n\n{first}\n\nold\nlines\n\n{second}\n\nkept\n"
    assert put_block(page, first, "new") == f"# Page\n\n{first}\n\nnew\n\n{second}\n\nkept\n"


def test_a_first_block_leaves_the_heading_below() -> None:
    mark = report.BLOCK.format(name="first")
    assert put_block(f"{mark}\n\n## Next\n\ntext\n", mark, "new") == f"{mark}\n\nnew\n\n## Next\n\ntext\n"


def test_a_bar_is_as_long_as_its_value() -> None:
    drawn = draw_bars([Bars("rate & more", {"one": 50, "two": 100})])
    lengths = [float(length) for length in re.findall(r'width="([\d.]+)" height="14"', drawn)]
    assert lengths[1] == 2 * lengths[0]
    assert "rate &amp; more" in drawn
