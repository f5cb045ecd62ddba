"""A plan is the same at every host, says what a run really opens and charges, and changes with what it is about."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import HeadShape, split_budget
from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.discovery.secure_statistics import ONE_RECORD
from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.net.certificates import spoken
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.releases.ledgers import LEDGER
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event, price_head
from secure_sccvfl.runs.jobs import agreed_plan, job_config, make_job, public_plan
from secure_sccvfl.runs.member import plan as planning
from secure_sccvfl.runs.member.outlook import outlook, plan_lines
from secure_sccvfl.runs.member.plan import Spending, canonical, digest_of, make_plan
from secure_sccvfl.training.modes.base import spread_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.unit.runs.member.conftest import CARD, edit, rows_of

Record = dict[str, Any]
COUNTS = Sensitivity.of_counts(3.0)


def changed(before: planning.Plan, after: planning.Plan) -> set[str]:
    return {name for name in before.digests if before.digests[name] != after.digests[name]}


@pytest.mark.parametrize("job", ["train", "discovery"])
@pytest.mark.parametrize(
    "more", [{}, {"mode": "dp", "dp_sampling": 0.25}, {"gain": True, "conditional": True, "align": "exact"}]
)
def test_what_is_planned_without_data_is_what_each_party_will_open(
    config: SessionConfig, job: str, more: Record
) -> None:
    given = replace(config, job=job, options={**config.options, **more})
    planned = public_plan(given)
    for rank in range(3):
        assert make_job(given, rank).plan().digest() == planned.digest()


@pytest.mark.parametrize("change", [{"receivers": (0, 1)}, {"times": 9}, {"shape": (3, 3)}, {"event": None}])
def test_a_job_that_would_open_more_than_was_planned_is_refused(config: SessionConfig, change: Record) -> None:
    """Another receiver, more often, another size, unpaid; and one that is not in the plan."""
    given = config.for_job("train")
    job = make_job(given, 0)
    assert agreed_plan(given, job).digest() == public_plan(given).digest()
    name = "sketch-0 for party 0"
    honest = job.plan().releases
    for other in ({**honest, name: replace(honest[name], **change)}, {"extra": Release("extra", (0,), (1,), "none")}):
        job.plan = lambda other=other: ReleasePlan(other.values())  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="otherwise than the approved plan says"):
            agreed_plan(given, job)
        assert agreed_plan(replace(given, approval="none"), job).releases


def test_a_host_without_any_data_finds_the_same_digest(desk: Path, config: SessionConfig) -> None:
    before = make_plan(config)
    for file in desk.glob("*.csv"):
        file.unlink()
    edit(desk / "own.toml", "hospital.csv", "elsewhere/h.csv")
    assert make_plan(config).digest == before.digest
    assert outlook(config, before, 0)["rows"] is None


def test_every_change_changes_the_digest_and_is_named_by_its_section(
    desk: Path, config: SessionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_plan(config)
    assert before.digest == digest_of(before.digests)
    for other in (
        replace(config, deadline=61.0),
        replace(config, names=("a", "b", "c")),
        replace(config, certificates={**config.certificates, "dealer": "0" * 64}),
        replace(config, parties=(*config.parties[:2], "d.example:7100")),
        replace(config, options={**config.options, "seed": 7}),
        replace(config, jobs=("train",)),
    ):
        assert "session" in changed(before, make_plan(other)) and make_plan(other).digest != before.digest
    for same in (
        replace(config, job="train"),
        replace(config, options={**config.options, "resume": True}),
    ):
        assert make_plan(same).digest == before.digest
    edit(desk / "own.toml", 'name = "chol", kind = "number", low = 100', 'name = "chol", kind = "number", low = 99')
    assert "data" in changed(before, make_plan(config))
    edit(desk / "own.toml", "low = 99, high = 600", 'low = 100, high = 600, meaning = "cholesterol"')
    assert changed(before, make_plan(config)) == {"data"}, "words count too: people read them"
    edit(desk / "own.toml", ', meaning = "cholesterol"', "")
    assert make_plan(config).digest == before.digest
    monkeypatch.setattr(planning, "code_digest", lambda: b"other")
    assert changed(before, make_plan(config)) == {"code"}


@pytest.mark.parametrize(
    "decision",
    [
        {"role": "N", "reason": "follows from s", "evidence": "guideline: some"},
        {"role": "M", "reason": "another reason", "evidence": "guideline: some"},
    ],
)
def test_another_card_changes_the_digest(desk: Path, config: SessionConfig, decision: Record) -> None:
    before = make_plan(config)
    (desk / "card.json").write_text(json.dumps({**CARD, "decisions": {"chol": decision}}))
    after = make_plan(config)
    assert changed(before, after) == {"card"} and after.digest != before.digest


def test_prices_are_those_that_the_ledger_will_show(config: SessionConfig) -> None:
    """Charged as a run charges them, one after the other, on any records."""
    session_plan = make_plan(config)
    assert set(session_plan.sections["budget"]) == {"train", "evaluate"}
    options = RunOptions.of(config.options)
    level = NoiseLevel(session_plan.spending["train"].multiplier, options.privacy.noise, 3)
    budget, records = (
        Budget.in_memory(options.privacy.epsilon, options.privacy.delta),
        RecordSet(np.arange(5, dtype=np.uint64)),
    )
    charges = session_plan.sections["budget"]["train"]["charges"]
    tables = [f"sketch-{k}" for k in range(options.charged)]
    assert [one["charge"] for one in charges] == ["first count", *tables, "head", "head output"]
    plan, shares = spread_of(options, options.schema(3)).heads  # type: ignore[misc]
    priced = price_head(plan, shares, 100, options.privacy.noise, 3, records.digest)
    heads = {event.name: event for event in priced.events}
    for number, one in enumerate(charges):
        moved = ONE_RECORD if one["charge"] == "first count" else COUNTS
        event = heads.get(one["charge"]) or noised_event(one["charge"], moved, level, records.digest, number)
        assert budget.charge(event, f"{number}", records).after == pytest.approx(one["after"], abs=1e-4)
    assert session_plan.sections["budget"]["train"]["epsilon"] <= options.privacy.epsilon
    evaluated = session_plan.sections["budget"]["evaluate"]
    assert 0 < evaluated["epsilon"] < evaluated["cap"], "four evaluations fit the cap"


def test_tables_and_heads_have_one_total_and_a_price_each() -> None:
    head = split_budget(8.0, 1e-5, HeadShape(3.0, 40, 2), releases=2)
    charges = (("sketch-0", 1, 1.0), ("sketch-1", 1, 1.0), ("head", 2, 1.0), ("head output", 2, 1.0))
    spending = Spending(LEDGER, 8.0, 1e-5, head.table_multiplier, charges, head)
    record = spending.as_record()
    assert 7.999 < record["epsilon"] <= 8 and record["head"]["curvature"] == head.curvature
    tables, heads = record["parts"]
    assert (tables["part"], tables["times"], heads["part"], heads["times"]) == ("tables", 2, "head", 4)
    assert tables["alone"] < heads["alone"] < record["epsilon"] < tables["alone"] + heads["alone"]
    assert tables["alone"] == pytest.approx(epsilon_of(spending.events()[:2], 1e-5), abs=1e-4)
    kept = split_budget(8.0, 1e-5, HeadShape(3.0, 40), releases=0)
    alone = Spending(LEDGER, 8.0, 1e-5, 1.0, charges[2:], kept).as_record()
    assert alone["head"]["table_multiplier"] is None and canonical(alone)
    with pytest.raises(ConfigError, match="must say how much noise"):
        replace(spending, head=None).events()


def test_steps_of_mode_dp_are_charged_together_with_the_tables(config: SessionConfig) -> None:
    for steps in (1, 10):
        options = {**config.options, "mode": "dp", "dp_steps": steps, "dp_sampling": 0.25}
        charges = make_plan(replace(config, options=options)).sections["budget"]["train"]["charges"]
        assert [one["charge"] for one in charges[-3:]] == ["dp gradient", "head", "head output"]
        assert charges[-3]["times"] == steps and 7.9 < charges[-1]["after"] <= 8


def test_this_hosts_records_and_ledger_are_shown_with_the_plan_and_not_in_it(
    desk: Path, config: SessionConfig
) -> None:
    plan = make_plan(config)
    fresh = outlook(config, plan, 0)
    assert fresh["rows"] == rows_of(desk / "hospital.csv")
    assert fresh["ledgers"]["train"]["before"] == 0 and fresh["ledgers"]["train"]["fits"]
    assert not (desk / "sccvfl-ledgers").exists(), "nothing is written"
    folder = desk / "sccvfl-ledgers" / "party-0"
    folder.mkdir(parents=True)
    records = RecordSet(np.arange(5, dtype=np.uint64))
    budget = Budget.open(folder / LEDGER, 8.0, 1e-5)
    event = noised_event("sketch-0", COUNTS, NoiseLevel(2.0, "dealer+holder", 3), records.digest)
    spent = budget.charge(event, "an earlier run", records).after
    later = outlook(config, plan, 0)["ledgers"]["train"]
    assert later["before"] == pytest.approx(spent) and later["after"] > 8 and not later["fits"]
    assert "DOES NOT FIT" in "\n".join(plan_lines(plan, outlook(config, plan, 0)))
    assert make_plan(config).digest == plan.digest
    twice = replace(config, jobs=("discovery", "train"), options={**config.options, "ledger": "fresh"})
    ledgers = outlook(twice, make_plan(twice), 0)["ledgers"]
    assert ledgers["discovery"]["fits"] and not ledgers["train"]["fits"], "jobs of one ledger add up"
    other = make_plan(replace(config, options={**config.options, "epsilon": 4.0}))
    assert "its cap is epsilon 8" in outlook(config, other, 0)["ledgers"]["train"]["problem"]


def test_people_read_who_what_to_whom_and_at_what_price(config: SessionConfig) -> None:
    plan = make_plan(config)
    text = "\n".join(plan_lines(plan, outlook(config, plan, 1)))
    for wanted in (
        "plan of session: selftest, train, evaluate",
        f"party-1   clinic           b.example:7100             {config.certificates['party-1'][:16]}",
        "label at hospital; protected: s at clinic",
        "records: 303",
        "policy card: version 1, nobody has approved it: chol=M",
        "to party-0, party-1, party-2: noisy tables of its own columns by group",
        "train charges 5 releases: epsilon 8.00 of 8",
        "  alone: tables ",
        " (3), head ",
        "  alone: evaluation ",
        "train takes about",
        "predictions: decisions to party-0 alone, for at most 1000 people in all, once for each person",
        "more people need a new approval",
        "estimated from runs with default options",
        spoken(plan.digest),
    ):
        assert wanted in text, (wanted, text)


def test_a_plan_says_in_words_that_answers_have_decisions_in_other_groups_and_reasons(config):
    asked = replace(config, options={**config.options, "what_if": True, "reasons": True})
    plan = make_plan(asked)
    lines = list(plan_lines(plan, outlook(asked, plan, 1)))
    what = "decisions and certificates and decisions in other groups and names of columns as reasons"
    assert any(line.startswith(f"predictions: {what} to party-0 alone") for line in lines)
    openings = {one["name"]: one["to"] for one in plan.sections["predictions"]["openings"]}
    assert openings["decisions in other groups"] == openings["reasons"] == ["party-0"]


@pytest.mark.parametrize("more", [{"predictions": 1001}, {"scores": True}, {"receiver": 1}, {"what_if": True}])
def test_a_plan_lists_the_answers_about_new_people(config: SessionConfig, more: Record) -> None:
    before, after = make_plan(config), make_plan(replace(config, options={**config.options, **more}))
    assert {"session", "predictions"} <= changed(before, after)
    texts = [
        [line for line in plan_lines(plan, outlook(config, plan, 1)) if "predict" in line] for plan in (before, after)
    ]
    assert texts[0] != texts[1], "people read the difference"
    default = make_plan(replace(config, options={**config.options, "predictions": 1000}))
    assert changed(before, default) == {"session"}
    assert make_plan(replace(config, jobs=("selftest",))).sections["predictions"] is None


def test_the_self_test_gets_its_own_options_alone(config: SessionConfig) -> None:
    given = replace(config, options={**config.options, "seed": 3})
    assert job_config(given, "selftest").options == {"seed": 3}
    assert job_config(given, "train").options == given.options
    with pytest.raises(ConfigError, match="named twice"):
        make_plan(replace(config, jobs=("train", "train")))
    with pytest.raises(ConfigError, match="none that a consortium plans"):
        make_plan(replace(config, jobs=("bench-ops",)))


def test_the_program_writes_the_plan(
    desk: Path, certificates: Path, config: SessionConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["plan", "session.toml", "--rank", "0", "--certs", str(certificates), "--out", "plan.json"]
    assert main(given) == 0
    assert "party 2 (payer): no approval of the plan is in approvals/" in capsys.readouterr().out
    written = json.loads((desk / "plan.json").read_text())
    assert written["digest"] == make_plan(config).digest and written["here"]["rows"] == 303
    assert main(["plan", "session.toml", "--json", "--rows", "20000", "--round-trip", "20"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["digest"] == written["digest"] and output["here"]["rows"] == 20000
    total = {job: one["total"] for job, one in output["here"]["estimates"].items()}
    assert total["train"]["seconds"] > 0.02 * total["train"]["rounds"] > 0
