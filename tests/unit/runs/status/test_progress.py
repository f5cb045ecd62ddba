"""Progress in lines: where a job is, how fast, how long the rest of its stage takes."""

from __future__ import annotations

import io
import logging

import pytest

from secure_sccvfl.runs.status import lines
from secure_sccvfl.runs.status.lines import Lines, duration, line_of
from secure_sccvfl.runs.status.snapshot import Status
from secure_sccvfl.runs.status.steps import Steps, stages_of


def test_time_left_follows_the_pace_of_the_stage_and_no_other() -> None:
    steps = Steps(("alignment", "training"))
    assert steps.at(0.0) is None
    steps.begins("alignment", 0, 1, now=0.0)
    at = steps.at(3.0)
    assert at is not None and at.left is None and at.seconds == 3.0 and at.then == ("training",)
    steps.begins("training", 0, 10, now=100.0)
    steps.begins("training", 4, 10, now=108.0)
    at = steps.at(109.0)
    assert at is not None and (at.left, at.seconds, at.then) == (11.0, 9.0, ())
    assert steps.at(500.0).left is None, "a step that is longer than all others"  # type: ignore[union-attr]
    steps.begins("training at lambda 8", 0, 10, now=600.0)
    assert steps.at(601.0).left is None, "a new stage has a pace of its own"  # type: ignore[union-attr]


def test_a_resumed_stage_counts_only_what_it_did_itself() -> None:
    steps = Steps()
    steps.begins("training", 50, 60, now=0.0)
    steps.begins("training", 52, 60, now=4.0)
    assert steps.at(4.0).left == 16.0  # type: ignore[union-attr]


def test_steps_of_different_names_that_are_counted_together_are_one_stage() -> None:
    steps = Steps()
    for number, name in enumerate(("alignment", "scoring", "metrics")):
        steps.begins(name, number, 3, now=float(number))
    assert steps.at(2.0).left == 1.0  # type: ignore[union-attr]


def test_stages_are_named_only_where_the_settings_tell_them() -> None:
    assert stages_of("train", {})[-1] == "training" and "dp encoders" in stages_of("train", {"mode": "dp"})
    once = stages_of("train", {"late_refreshes": 0})
    assert "late refresh" in stages_of("train", {}) and "late refresh" not in once
    assert stages_of("train", {"mode": "split"}) == stages_of("selftest", {}) == ()


def test_a_line_says_steps_rates_bytes_and_time_left() -> None:
    status = Status("party 0")
    assert line_of(status.snapshot()) == ""
    status.describe("party 0", "loans", "train", (), ("alignment", "training"))
    status.phase("running")
    status.begins("alignment", 0, 1)
    line = line_of(status.snapshot())
    assert line.startswith("alignment (1 of 1): ") and "rounds/s" in line and "then training" in line
    assert "left in this stage" not in line
    assert [duration(s) for s in (5, 600, 7200)] == ["5 s", "10 min", "2.0 h"]


def test_a_log_gets_a_line_for_each_step_and_few_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(lines, "_TICK", 0.01)
    shown = Lines(Status("party 0"), io.StringIO())
    for number in (0, 10):
        shown.step("training", number, 14)
    shown.step("scoring", 0, 1)
    shown.close()
    told = ["training (1 of 14)", "training (11 of 14)", "scoring (1 of 1)"]
    assert [r.getMessage() for r in caplog.records] == told


def test_a_terminal_gets_one_line_that_is_rewritten_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(lines, "_TICK", 0.01)
    status, terminal = Status("party 0"), Terminal()
    status.phase("running")
    status.begins("\x1b[2Jtraining\n", 0, 5)
    shown = Lines(status, terminal)
    while terminal.getvalue().count("training") < 2:
        pass
    shown.close()
    text = terminal.getvalue()
    assert "\n" not in text and text.endswith("\r\x1b[K") and "\x1b[2J" not in text
