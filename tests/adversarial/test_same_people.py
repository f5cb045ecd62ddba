"""The same people under other ids: a spent budget must not start again because ids are written otherwise.

Before, a file saved in decomposed Unicode, another id rule in the description, or the option `ledger` gave every
record a full budget, and nobody was told.
"""

from __future__ import annotations

import logging
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.data import files
from secure_sccvfl.protocols.alignment import ids as id_rules
from secure_sccvfl.protocols.alignment.ids import canonical
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.records.chain import unused_name
from secure_sccvfl.releases import record_key
from secure_sccvfl.runs.discover import DiscoveryJob
from secure_sccvfl.runs.member.outlook import outlook, plan_lines
from secure_sccvfl.runs.member.plan import make_plan
from secure_sccvfl.runs.train import TrainJob
from tests.support.two_parties import ADDRESSES, DESCRIPTION, error_text, ledger_lines, people, run_two, write_data

OPTIONS = {"align": "exact", "refreshes": 0}
RULE = 'id = { columns = ["id"], case = "lower" }'
ZEROS = 'id = { columns = ["id"], zeros = "strip" }'
SPENT = "release nothing more about these records"


def named(ids: list[str]) -> Any:
    data = people(len(ids), seed=2)
    data["id"] = np.array(ids)
    return data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A consortium whose budget is spent; ids with an accent, upper case and leading zeros."""
    home = tmp_path_factory.mktemp("spent")
    path = write_data(home, named([f"É{k:04d}" for k in range(200)]))
    run_two(TrainJob, home / "first", {"dataset": str(path), **OPTIONS, "card": str(home / "card.toml")})
    return home


@pytest.fixture
def spent(trained: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of it."""
    home = shutil.copytree(trained, tmp_path / "home")
    return home, {"dataset": str(home / "own.toml"), **OPTIONS}


def again(home: Path, options: dict[str, Any]) -> str:
    """What all say when the same people are asked about again; "" if it goes through. Ledgers stay as they were."""
    before = [ledger_lines(home, rank) for rank in range(2)]
    try:
        run_two(DiscoveryJob, unused_name(home / "again"), options)
    except ExceptionGroup as stopped:
        assert [ledger_lines(home, rank) for rank in range(2)] == before
        return error_text(stopped)
    return ""


WRITTEN = {
    "as before": lambda name: name,
    "decomposed": lambda name: unicodedata.normalize("NFD", name),
    "lower case": str.lower,
    "spaces": lambda name: f" {name[:1]} {name[1:]}\u00a0",
    "zero width": lambda name: f"\ufeff{name[:2]}\u200b{name[2:]}",
    "full width": lambda name: name.translate({ord("0") + k: chr(0xFF10 + k) for k in range(10)}),
}


def test_another_way_to_write_the_same_ids_gives_no_new_budget(spent: Any) -> None:
    home, options = spent
    for how, written in WRITTEN.items():
        write_data(home, named([written(f"É{k:04d}") for k in range(200)]))
        assert SPENT in again(home, options), how


def test_without_the_canonical_form_they_are_strangers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The control: pseudonyms of ids as they are written, and files read as they were."""
    monkeypatch.setattr(record_key, "canonical", lambda name: name)
    monkeypatch.setattr(files, "identified", lambda table, rule, owner: table)
    options = {"dataset": str(write_data(tmp_path, named([f"É{k:04d}" for k in range(200)]))), **OPTIONS}
    run_two(DiscoveryJob, tmp_path / "first", options)
    write_data(tmp_path, named([WRITTEN["decomposed"](f"É{k:04d}") for k in range(200)]))
    assert again(tmp_path, options) == ""


@pytest.mark.parametrize("rule", [RULE, ZEROS])
def test_another_id_rule_is_refused_in_one_line(spent: Any, rule: str) -> None:
    home, options = spent
    (home / "own.toml").write_text(DESCRIPTION.replace('id = "id"', rule))
    said = again(home, options)
    assert "the description makes ids of column 'id', " in said and "were made of column 'id': under another" in said


def test_without_the_binding_another_rule_starts_again(spent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    home, options = spent
    (home / "own.toml").write_text(DESCRIPTION.replace('id = "id"', 'id = { columns = ["id", "id2"] }'))
    for name in ("bank.csv", "clinic.csv"):
        head, *rows = (home / name).read_text().splitlines()
        (home / name).write_text("\n".join([f"{head},id2", *(f"{row},1" for row in rows)]) + "\n")
    assert "were made of column 'id'" in again(home, options)
    honest = record_key._read

    def unbound(path: Path) -> Any:
        key = honest(path)
        return None if key is None else record_key.RecordKey(key._key)

    monkeypatch.setattr(record_key, "_read", unbound)
    assert again(home, options) == ""


def plan_of(options: dict[str, Any]) -> str:
    config = SessionConfig(parties=ADDRESSES, job="discovery", options=options)
    plan = make_plan(config)
    return "\n".join(plan_lines(plan, outlook(config, plan, 1)))


def test_a_new_ledger_next_to_a_used_one_is_pointed_out(spent: Any, caplog: pytest.LogCaptureFixture) -> None:
    """At the start of a run and in its plan; nothing can tell whether the records are the same."""
    home, options = spent
    warning = f"the ledger in {home / 'fresh' / 'party-1'} is new, and {home / 'sccvfl-ledgers' / 'party-1'} has"
    assert "WARNING" not in plan_of(options)
    fresh = {**options, "ledger": str(home / "fresh")}
    assert f"WARNING: {warning}" in plan_of(fresh)
    with caplog.at_level(logging.WARNING):
        run_two(DiscoveryJob, home / "elsewhere", fresh)
    assert any(warning in record.getMessage() for record in caplog.records)
    assert "WARNING" not in plan_of(fresh), "it is used now"


@pytest.mark.parametrize(
    ("one", "other"),
    [("Ｋ１", "k1"), ("ﬁx", "FIX"), ("straße", "STRASSE"), ("a\u00adb", "ab"), ("a\ufe0f", "a"), ("\u2460", "1")],
)
def test_one_form_of_all_ways_to_write_an_id(one: str, other: str) -> None:
    assert canonical(one) == canonical(other) == canonical(canonical(one))


def test_ids_that_differ_stay_different() -> None:
    names = ["0012", "12", "a1", "a-1", "é", "e", "1a", "ß", "日本", "日"]
    assert len({canonical(name) for name in names}) == len(names)
    assert id_rules.IdRule(("a", "b"), fold_case=True).words == "columns 'a', 'b', upper and lower case alike"
