"""The metrics of a running process: what they say, and what they never say."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import InputError
from secure_sccvfl.runs.process import telling_others
from secure_sccvfl.runs.status import Status, Watching

parser = pytest.importorskip("prometheus_client.parser")
HOSTILE = 'loans"}\nsccvfl_rounds_total 7 \x1b[2J'


def samples(text: str) -> dict[tuple[str, ...], float]:
    families = parser.text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_metrics_say_what_goes_on() -> None:
    status = Status("party 0")
    status.describe(HOSTILE, "loans", "train")
    status.phase("running")
    for number in (0, 4):
        status.begins("alignment", number, 8)
    status.activity.connecting({1: "party 1 (employer)", 2: "dealer"}, 1e18)
    status.activity.facts |= {"epsilon": 3.25, "cap": 8.0}
    status.problem("turned away 10.0.0.9:1234 (it has no certificate)\nsccvfl_rounds_total 9")
    seen = samples(status.metrics())
    assert seen["sccvfl_info", HOSTILE.replace("\x1b", "\\u001b"), "loans", "train", "connecting", "alignment"] == 1
    assert seen["sccvfl_budget_epsilon",] == 3.25 and seen["sccvfl_step",] == 5 and seen["sccvfl_steps",] == 8
    assert seen["sccvfl_peer_connected", "party 1 (employer)"] == seen["sccvfl_rounds_total",] == 0
    assert seen["sccvfl_memory_now_bytes",] > 1e6 and seen["sccvfl_problems",] == 1
    assert "# turned away 10.0.0.9:1234" in status.metrics()


def test_errors_about_own_data_are_shown_by_their_kind() -> None:
    status = Status("party 0")
    status.stops(InputError("row 17 of the bank is 4211"))
    shown = status.metrics()
    assert "InputError" in shown and "4211" not in shown


def test_words_of_libraries_are_not_shown(tmp_path: Path) -> None:
    with Watching(tmp_path / "status.prom").of("party 0"):
        logging.getLogger("py.warnings").warning("overflow in 4211")
        logging.getLogger("secure_sccvfl.protocols.net.rendezvous").warning("turned away 10.0.0.9")
    shown = (tmp_path / "status.prom").read_text()
    assert samples(shown)["sccvfl_problems",] == 1 and "4211" not in shown and "turned away 10.0.0.9" in shown


def test_a_party_whose_data_are_bad_shows_no_cell_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """Its log has the whole line, for people on this host; the metrics, which others may read, its kind alone."""
    config = SessionConfig(parties=("127.0.0.1:1", "127.0.0.1:2"))
    with Watching().of("party 0") as watched:
        with pytest.raises(InputError), telling_others(config, 0, None, None, watched):
            raise InputError("bank: age: outside the public range: 4211 (at 'p17')")
        shown = watched.metrics()
    assert "4211" in caplog.text
    assert "InputError" in shown and "4211" not in shown and "p17" not in shown


@pytest.mark.parametrize("file", ["8480", "no-such-folder/status.prom"])
def test_settings_that_cannot_work(file: str) -> None:
    with pytest.raises(ConfigError, match="--status takes a file"):
        Watching(Path(file))
