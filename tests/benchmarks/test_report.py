"""What a benchmark's row says, and what a missing or dying peer says instead. No speed is measured here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.peer import Peer, PeerMissing
from benchmarks.report import alternate, print_rows, rate_row, time_row, write_json


def test_a_ratio_above_one_means_plait_is_faster_for_rates_and_times() -> None:
    assert rate_row("decode", 120.0, 60.0, "tok/s", "other").ratio == 2
    assert time_row("chain", 5.0, 10.0, "us", "other").ratio == 2


@pytest.mark.parametrize(
    ("plait", "peer", "note", "verdict"),
    [
        (60.0, 100.0, "", "goal 0.5x: met"),
        (40.0, 100.0, "", "goal 0.5x: missed"),
        (400.0, 100.0, "slower peer", "slower peer"),
        (400.0, None, "", "not measured"),
    ],
)
def test_a_goal_counts_only_against_the_measured_fastest_build(
    plait: float, peer: float | None, note: str, verdict: str
) -> None:
    assert rate_row("decode", plait, peer, "tok/s", "other", goal=0.5, note=note).verdict == verdict


def test_the_sides_alternate_and_their_first_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SETTLE_S", 0.0)
    order = []
    left, right = iter([99.0, 1.0, 5.0, 3.0]), iter([99.0, 20.0, 10.0, 30.0])

    def side(name: str, values: Iterator[float]) -> report.Side:
        def run() -> float:
            order.append(name)
            return next(values)

        return run

    assert alternate([side("left", left), side("right", right)], rounds=3) == [3.0, 20.0]
    assert order == ["left", "right"] * 4


def test_json_rows_hold_name_plait_peer_and_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [rate_row("decode", 1.0, 4.0, "tok/s", "other"), rate_row("prefill", 1.0, None, "tok/s", "other")]
    write_json(tmp_path / "rows.json", rows)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["name"], row["plait"], row["peer"], row["ratio"]) for row in found] == [
        ("decode", 1.0, 4.0, 0.25),
        ("prefill", 1.0, None, None),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    print_rows("a table", rows, ["about the peer"])
    assert "not measured" in capsys.readouterr().out


def test_a_missing_peer_is_one_sentence_that_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS", str(tmp_path))
    with pytest.raises(PeerMissing, match="llama: no environment at .*llama; `make peers` builds it"):
        Peer("llama", "llama.py", [])


def test_a_peer_that_dies_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS", str(tmp_path))
    (tmp_path / "llama" / "bin").mkdir(parents=True)
    os.symlink(sys.executable, tmp_path / "llama" / "bin" / "python")
    with pytest.raises(PeerMissing, match=r"llama: its worker ended with status 1: ModuleNotFoundError"):
        Peer("llama", "llama.py", ["no-model", "1"])
