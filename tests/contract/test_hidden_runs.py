"""Whole jobs at parties whose records only partly overlap, over real sessions: stop, resume, evaluate, predict."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.ledger import comparable, read_ledger
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.data.splits import SHARES
from secure_sccvfl.launch.run_mpc import main
from secure_sccvfl.metrics import noisy
from secure_sccvfl.protocols.alignment.interface import UNION
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.records.chain import read_chain, unused_name
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.releases.ledgers import EVALUATIONS
from secure_sccvfl.releases.record_key import RecordKey
from secure_sccvfl.runs.alignment import AlignJob, part_bounds, split_records
from secure_sccvfl.runs.console import WRONG_USE
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.jobs import Progress, agreed_plan, make_job
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import REFUSED_FILE, UNDECIDED, PredictJob
from secure_sccvfl.runs.scoring import fewest_records
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.options import RunOptions, prediction_options
from tests.support.overlap import COLUMNS, heart_rows, holders, write_overlap
from tests.support.sessions import run_session

PARTIES = 3
UNLIKE = {"cost": 0, "crypten_operations": 0}
"""What two evaluations with the same figures may differ in."""
ADDRESSES = tuple(f"127.0.0.1:{7000 + rank}" for rank in range(PARTIES))
ROOMY = {"epsilon": 60.0, "refreshes": 0, "lambdas": [1.0], "take_lambda": 1.0, "evaluation_epsilon": 60.0}
"""A cap that leaves little noise: these tests are about who is counted, and Heart is small."""


LEFT = {f"p{row['id']}" for row in heart_rows(3)}
"""Records that a party no longer has."""
STANDARD_ERRORS = 6.3
"""A normal value is further off than this with chance 3e-10."""


class Stopped(Exception):
    """A fault at a chosen step."""


def quiet(step: str, number: int, total: int) -> None:
    pass


def jobs(kind: Any, dataset: Path, per_party: Sequence[dict[str, Any]] = ({}, {}, {}), **options: Any) -> list[Any]:
    """The job of each party, from session files that differ in `per_party` alone."""
    given = {"dataset": str(dataset), **ROOMY, **options}
    return [
        kind(SessionConfig(parties=ADDRESSES, options={**given, **more}), rank) for rank, more in enumerate(per_party)
    ]


def run(party_jobs: Sequence[Any], folder: Path, progress: Progress = quiet) -> list[dict[str, Any]]:
    for log in list(folder.glob("party-*/releases.jsonl")):  # of an earlier session
        log.rename(unused_name(log))
    plan = party_jobs[0].plan()
    return run_session(lambda session: party_jobs[session.rank].run(session, progress), PARTIES, plan, folder=folder)


def refused(party_jobs: Sequence[Any], folder: Path, session: str = "run") -> str:
    """What the parties say when they stop."""
    with pytest.raises(ExceptionGroup) as stopped:
        run(party_jobs, folder / session)
    return "; ".join(map(str, stopped.value.exceptions))


def opened(folder: Path) -> list[str]:
    logs = [read_chain(path) for path in sorted(folder.glob("party-0/releases*.jsonl"))]
    return [entry["release"] for log in logs for entry in log]


@pytest.fixture(scope="module")
def resumed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in the middle of training, and then resumed to its end."""
    folder = tmp_path_factory.mktemp("hidden")
    dataset = write_overlap(folder / "data")

    def stop(step: str, number: int, total: int) -> None:
        if step == "training" and number > 0:
            raise Stopped

    with pytest.raises(ExceptionGroup) as stopped:
        run(jobs(TrainJob, dataset), folder / "run", stop)
    assert stopped.value.subgroup(Stopped) is not None
    before = opened(folder / "run")
    write_overlap(folder / "data", left_out=LEFT)
    assert "cannot resume: the run began with other records" in refused(jobs(TrainJob, dataset, resume=True), folder)
    assert opened(folder / "run") == before
    write_overlap(folder / "data")
    results = run(jobs(TrainJob, dataset, resume=True), folder / "run")
    (folder / "results.json").write_text(json.dumps(results, default=str))
    return folder


def truth(dataset: Path) -> dict[str, int]:
    """How many records all parties have, by part."""
    parts = [own_part(dataset, rank, 0) for rank in range(PARTIES)]
    return {
        name: len(set.intersection(*(set(p.ids[getattr(p.split, name)].tolist()) for p in parts)))
        for name in ("train", "validation", "test")
    }


@pytest.mark.chance(3e-10)
def test_a_stopped_run_continues_and_reports_a_noisy_number_of_common_records(resumed_run: Path) -> None:
    results = json.loads((resumed_run / "results.json").read_text())
    rows, common = results[0]["rows"], truth(resumed_run / "data" / "own.toml")
    assert all(result["ok"] and result["align"] == "hidden" and result["rows"] == rows for result in results)
    ledger = read_ledger(resumed_run / "data" / "sccvfl-ledgers" / "party-0" / "ledger.jsonl")[0]
    sigma = next(line["event"]["sigma"] for line in ledger if "event" in line)
    copies, cells, tables = 2, 78, 10
    error = sigma * (copies * cells) ** 0.5 / tables
    joined = common["train"] + common["validation"]  # a private model is trained with both
    assert abs(rows["train"] - joined) < STANDARD_ERRORS * error + 1
    names = opened(resumed_run / "run")
    assert names.count("records") == 1 and names.count(UNION) == 4, "two parts in each of two sessions, one count"
    assert "alignment" not in names and "validation summary" not in names


def test_each_party_charges_its_own_records_for_the_same_releases(resumed_run: Path) -> None:
    ledgers = [
        read_ledger(resumed_run / "data" / "sccvfl-ledgers" / f"party-{rank}" / "ledger.jsonl")[0]
        for rank in range(PARTIES)
    ]
    assert len({json.dumps(comparable(lines, own_records=True)) for lines in ledgers}) == 1
    assert len({line["event"]["records"] for lines in ledgers for line in lines if "event" in line}) == PARTIES
    assert comparable(ledgers[0], own_records=False) != comparable(ledgers[1], own_records=False)


@pytest.mark.chance(3e-10)
def test_the_common_test_records_are_evaluated_and_others_are_refused(resumed_run: Path) -> None:
    dataset = resumed_run / "data" / "own.toml"
    figures = run(jobs(EvaluateJob, dataset, model=str(resumed_run / "run")), resumed_run / "evaluation")
    exact, deviation = truth(dataset)["test"], figures[0]["evaluation"]["deviation"]
    assert all(f["metrics"] == figures[0]["metrics"] and f["records"] == figures[0]["records"] for f in figures)
    assert abs(figures[0]["records"] - exact) < STANDARD_ERRORS * deviation + 1 and "acc" in figures[0]["metrics"]
    write_overlap(resumed_run / "data", left_out=LEFT)
    try:
        message = refused(jobs(EvaluateJob, dataset, model=str(resumed_run / "run")), resumed_run, "again")
    finally:
        write_overlap(resumed_run / "data")
    assert "not those that the model was trained with" in message
    assert opened(resumed_run / "again") == []


def test_a_repeated_evaluation_reveals_no_budget_of_others(
    resumed_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of the third party were charged before, in a run whose records the others do not have."""
    shutil.copytree(resumed_run / "data", tmp_path / "data")
    shutil.copytree(resumed_run / "run", tmp_path / "run")
    for kept in [*tmp_path.glob("run/party-*/model/evaluation.json"), *tmp_path.rglob("evaluation.jsonl*")]:
        kept.unlink()
    ledgers, part = (
        tmp_path / "data" / "sccvfl-ledgers" / "party-2",
        own_part(resumed_run / "data" / "own.toml", 2, 0),
    )
    records = RecordKey.from_bytes((ledgers / "records.key").read_bytes()).record_set(part.ids[part.split.test])
    budget = Budget.open(ledgers / EVALUATIONS, 60.0, 1e-5)
    budget.charge(Event("evaluation", 1.0, 4.0, records.digest), "before evaluation", records)
    sent: list[bytes] = []
    plain = Session.swap_texts
    monkeypatch.setattr(Session, "swap_texts", lambda s, name, text: sent.append(text) or plain(s, name, text))
    options = {"model": str(tmp_path / "run")}
    first, second = (run(jobs(EvaluateJob, tmp_path / "data" / "own.toml", **options), tmp_path / k) for k in "ab")
    assert [one["evaluation"]["releases_in_ledger"] for one in first] == [1, 1, 2]
    assert first[2]["evaluation"]["epsilon_rdp"] > first[0]["evaluation"]["epsilon_rdp"]
    assert [one | UNLIKE for one in second] == [one | UNLIKE for one in first] and opened(tmp_path / "b") == []
    assert any(b"deviation" in text for text in sent) and not any(b"epsilon" in text for text in sent)


def test_too_few_test_records_are_refused_before_they_are_paid_for_where_that_can_be_known(
    resumed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The common records are a part of a party's own. If those were enough and these are not, it is paid for once."""
    monkeypatch.setattr(noisy.noise, "noise_share", lambda party, kind, sigma, rows, of: np.zeros((rows, 1), int))
    dataset, model = resumed_run / "data" / "own.toml", resumed_run / "few"
    shutil.copytree(resumed_run / "run", model)
    for kept in model.glob("party-*/model/evaluation.json"):
        kept.unlink()
    with pytest.raises(DataError, match=r"own test records, and figures of common ones need .* or train with align"):
        jobs(EvaluateJob, dataset, model=str(model), evaluation_epsilon=0.5)
    ledger = resumed_run / "data" / "sccvfl-ledgers" / "party-0" / EVALUATIONS
    (job, *_), before = jobs(EvaluateJob, dataset, model=str(model)), ledger.read_bytes() if ledger.exists() else b""
    fewest = min(len(own_part(dataset, rank, 0).split.test) for rank in range(PARTIES))
    noise = fewest_records(job.options, job.data.schema, job.sums) - job.options.evaluation.min_group
    options = {"model": str(model), "min_group": fewest - noise}
    assert truth(dataset)["test"] < fewest
    message = refused(jobs(EvaluateJob, dataset, **options), resumed_run, "few-1")
    assert "test records are common to all parties, and figures need" in message and "bring more records" in message
    paid = ledger.read_bytes()
    assert paid != before and opened(resumed_run / "few-1").count("evaluation") == 1
    assert "paid for once, and on record" in refused(jobs(EvaluateJob, dataset, **options), resumed_run, "few-2")
    assert ledger.read_bytes() == paid and opened(resumed_run / "few-2") == []


def test_figures_and_what_they_are_compared_with_are_those_of_the_common_test_records(
    resumed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise: the model and the majority, as a plain computation gives them."""
    dataset, run_folder = resumed_run / "data" / "own.toml", resumed_run / "unnoised"
    shutil.copytree(resumed_run / "run", run_folder)
    for kept in run_folder.glob("party-*/model/evaluation.json"):
        kept.unlink()
    monkeypatch.setattr(noisy.noise, "noise_share", lambda party, kind, sigma, rows, of: np.zeros((rows, 1), int))
    options = {"model": str(run_folder), "min_group": 5}
    figures = run(jobs(EvaluateJob, dataset, **options), resumed_run / "judged")[0]
    parts = [own_part(dataset, rank, 0) for rank in range(PARTIES)]
    ids = sorted(set.intersection(*(set(p.ids[p.split.test].tolist()) for p in parts)))
    rows = [np.array([{n: k for k, n in enumerate(p.ids.tolist())}[name] for name in ids]) for p in parts]
    models = [
        load_model(run_folder / f"party-{p.rank}" / "model", Layout.of(p.schema.features[p.rank])) for p in parts
    ]
    encoded = [
        m.encoder(p.party.take(party_rows).inputs) for m, p, party_rows in zip(models, parts, rows, strict=True)
    ]
    assert parts[0].label is not None
    label, shown = parts[0].label[rows[0]], np.hstack(encoded)
    codes = parts[1].protected[0].codes
    assert codes is not None

    def decided(weights: list[Any], biases: list[Any]) -> np.ndarray:
        logits = shown @ combined(weights) + combined(biases)
        return np.asarray(logits[:, 0] > 0)

    whole = decided([m.weight for m in models], [m.bias for m in models])
    near = 1.5 / len(ids)  # a logit next to 0 may fall on the other side
    assert figures["records"] == len(ids), "nobody else is counted"
    assert figures["metrics"]["acc"] == pytest.approx((whole == label).mean(), abs=near)
    assert figures["metrics"]["positive_rate"] == pytest.approx(whole.mean(), abs=near)
    assert set(figures["baselines"]) == {"majority"}, "a second head would be a second model of the same records"
    assert figures["baselines"]["majority"]["acc"] == pytest.approx(max(label.mean(), 1 - label.mean()), abs=1e-6)
    for group, rates in enumerate(figures["groups"]):
        of_group = whole[codes[rows[1]] == group]
        if "positive_rate" in rates["rates"]:
            assert rates["rates"]["positive_rate"]["value"] == pytest.approx(of_group.mean(), abs=1.5 / len(of_group))
            assert rates["rates"]["positive_rate"]["rows"] == len(of_group)
    assert any("positive_rate" in rates["rates"] for rates in figures["groups"])
    assert {"fr_own", "fr_null_own"} <= set(figures["metrics"])


def test_a_new_record_is_decided_if_all_parties_hold_it_and_others_reveal_nothing(
    resumed_run: Path,
) -> None:
    for align, scores in (("hidden", False), ("hidden", True), ("revealed", False)):
        folder = resumed_run / f"predicted-{align}-{scores}"
        people = [{**row, "id": f"{align}-{scores}-{row['id']}"} for row in heart_rows(40)]  # each is answered once
        files = []
        for party in COLUMNS:
            files.append(resumed_run / f"new-{party}.csv")
            with files[-1].open("w", newline="") as file:
                writer = csv.DictWriter(file, ["id", *COLUMNS[party]], extrasaction="ignore")
                writer.writeheader()
                writer.writerows(row for n, row in enumerate(people) if party in holders(n))
        given = [{"records": str(path)} for path in files]
        options = {"model": str(resumed_run / "run"), "scores": scores, "align": align}
        options |= {"align_bounds": [50.0, 60.0, 70.0]} if scores else {}
        party_jobs = jobs(PredictJob, resumed_run / "data" / "own.toml", given, **options)
        results = run(party_jobs, folder)
        assert not scores or {one["records"] for one in results} == {180}, "as many places as the bounds allow"
        with (folder / "party-0" / "predictions.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        hospital_ids = [row["id"] for n, row in enumerate(people) if "hospital" in holders(n)]
        assert sorted(line["id"] for line in lines) == sorted(hospital_ids)
        alone = {row["id"] for n, row in enumerate(people) if len(holders(n)) == 1}
        assert {line["id"] for line in lines if line["decision"] == UNDECIDED} == alone & set(hospital_ids)
        assert all(line["decision"] in ("0", "1", UNDECIDED) for line in lines)
        assert not scores or all((line["logit 1"] == "") == (line["id"] in alone) for line in lines)
        assert not (folder / "party-1" / "predictions.csv").exists(), "the holder of the label receives them"


@pytest.mark.filterwarnings("ignore:clinic. no readable record")
def test_nobody_but_the_receiver_learns_that_the_only_new_record_cannot_be_read(resumed_run: Path) -> None:
    """A party takes part with one record, of which it can read its cells or not; the others see the same."""
    (row,) = [row for n, row in enumerate(heart_rows(40)) if len(holders(n)) == PARTIES][:1]
    seen = []
    for cell in (row["cp"], "?"):
        files = [resumed_run / f"one-{party}.csv" for party in COLUMNS]
        for path, columns in zip(files, COLUMNS.values(), strict=True):
            cells = [str(cell if name == "cp" else row[name]) for name in columns]
            path.write_text("\n".join([",".join(["id", *columns]), ",".join([row["id"], *cells])]) + "\n")
        folder = resumed_run / f"one-{len(seen)}"
        given = [{"records": str(path)} for path in files]
        results = run(
            jobs(PredictJob, resumed_run / "data" / "own.toml", given, model=str(resumed_run / "run")), folder
        )
        seen.append(
            [
                (one["refused"], sorted(p.name for p in folder.glob(f"party-{r}/*.csv")))
                for r, one in enumerate(results)
            ]
        )
    owner = next(rank for rank, columns in enumerate(COLUMNS.values()) if "cp" in columns)
    (third,) = {0, 1, 2} - {0, owner}
    assert [one[owner] for one in seen] == [(0, []), (1, [REFUSED_FILE])], "its own people are told"
    assert [one[0] for one in seen] == [(0, ["predictions.csv"]), (1, ["predictions.csv", REFUSED_FILE])]
    assert seen[0][third] == seen[1][third] == (0, [])


def test_what_people_approve_beforehand_covers_what_each_job_opens(resumed_run: Path) -> None:
    """Settings that are left out follow the data: own records meet in secret, and the plan says so."""
    dataset, new = resumed_run / "data" / "own.toml", resumed_run / "new.csv"
    columns = ["id", *dict.fromkeys(name for party_columns in COLUMNS.values() for name in party_columns)]
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(heart_rows(5))
    model = {"model": str(resumed_run / "run")}
    of_jobs = {AlignJob: {}, TrainJob: {}, EvaluateJob: model, PredictJob: {**model, "records": str(new)}}
    for align in ("hidden", "revealed"):
        for kind, more in of_jobs.items():
            if kind is EvaluateJob and align != "hidden":  # the model was trained with it
                continue
            options = {**more, **({} if align == "hidden" else {"align": align})}
            (first, *_), given = jobs(kind, dataset, **options), {"dataset": str(dataset), **ROOMY, **options}
            config = SessionConfig(
                parties=tuple(f"127.0.0.1:{7000 + rank}" for rank in range(PARTIES)), options=given
            )
            declared, needed = kind.public_plan(config).releases, first.plan().releases  # type: ignore[attr-defined]
            assert declared.keys() == needed.keys() and all(declared[name].covers(needed[name]) for name in needed), (
                kind
            )
            assert (UNION in declared) == (align == "hidden") and ("alignment" in declared) is False, kind
    first, *_ = jobs(PredictJob, dataset, **model, records=str(new), scores=True)
    pins = {f"party-{rank}": "0" * 64 for rank in range(PARTIES)} | {"dealer": "0" * 64}
    config = SessionConfig(parties=ADDRESSES, job="predict", options={"dataset": str(dataset)}, certificates=pins)
    with pytest.raises(ConfigError, match="predict would open 'predictions' otherwise than the approved plan says"):
        agreed_plan(config, first)  # scores where people approved decisions
    assert agreed_plan(replace(config, options={**config.options, "scores": True}), first).releases


def test_revealed_records_are_those_of_files_that_were_aligned_before(tmp_path: Path) -> None:
    dataset = write_overlap(tmp_path / "own")
    before = write_overlap(tmp_path / "aligned", only_common=True)
    options = RunOptions.of({"dataset": str(dataset), "align": "revealed"})
    parts = [own_part(dataset, rank, 0) for rank in range(PARTIES)]
    plan = jobs(AlignJob, dataset, align="revealed")[0].plan()
    aligned = run_session(
        lambda s: split_records(s, options, parts[s.rank], quiet), PARTIES, plan, folder=tmp_path / "a"
    )
    for rank, data in enumerate(aligned):
        wanted = own_part(before, rank, 0)
        assert data.ids.tolist() == wanted.ids.tolist()
        assert data.party.inputs.tobytes() == wanted.party.inputs.tobytes() and data.party.present is None
        assert (data.label is None) == (wanted.label is None) == (rank != 0)
        assert data.label is None or data.label.tobytes() == wanted.label.tobytes()
        for name in ("train", "validation", "test"):
            assert getattr(data.split, name).tolist() == getattr(wanted.split, name).tolist()
        for mine, theirs in zip(data.protected, wanted.protected, strict=True):
            assert (mine.codes is None) == (theirs.codes is None) == (rank != 1)
            assert mine.codes is None or mine.codes.tolist() == theirs.codes.tolist()


def test_ids_that_change_between_phases_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    """Between a stop and its resumption, and between training and evaluation. `hidden`: `resumed_run` and above."""
    dataset = write_overlap(tmp_path / "data")

    def stop(step: str, number: int, total: int) -> None:
        if step == "training" and number > 0:
            raise Stopped

    with pytest.raises(ExceptionGroup):
        run(jobs(TrainJob, dataset, align="revealed"), tmp_path / "run", stop)
    before = opened(tmp_path / "run")
    write_overlap(tmp_path / "data", left_out=LEFT)
    message = refused(jobs(TrainJob, dataset, align="revealed", resume=True), tmp_path)
    assert "cannot resume: the run began with other records" in message and opened(tmp_path / "run") == before
    write_overlap(tmp_path / "data")
    run(jobs(TrainJob, dataset, align="revealed", resume=True), tmp_path / "run")
    write_overlap(tmp_path / "data", left_out=LEFT)
    message = refused(jobs(EvaluateJob, dataset, align="revealed", model=str(tmp_path / "run")), tmp_path, "later")
    assert "not those that the model was trained with" in message and opened(tmp_path / "later") == []


@pytest.mark.chance(1e-9)  # at this cap the noise of a count has a deviation of 1, and 20 records are needed
def test_empty_intersections_and_ids_in_other_spellings_are_distinguished(tmp_path: Path) -> None:
    """With `exact` and `revealed` the run stops before anything is computed, with `hidden` after one small charge.

    A rule for ids makes them alike.
    """
    dataset = write_overlap(tmp_path / "own", only_common=True)
    clinic = dataset.parent / "clinic.csv"
    header, *lines = clinic.read_text().splitlines()
    written = [f"00{name.upper()} ,{rest}" for name, rest in (line.split(",", 1) for line in lines)]
    clinic.write_text("\n".join([header, *written]) + "\n")
    for align, message in (
        ("revealed", "no record is common to all parties"),
        ("exact", "clinic holds other records"),
    ):
        assert message in refused(jobs(TrainJob, dataset, align=align), tmp_path, align)
        assert not {name for name in opened(tmp_path / align) if name.startswith("sketch")}
    assert "too few to go on; are the ids written by the same rule?" in refused(
        jobs(TrainJob, dataset), tmp_path, "hidden"
    )
    assert set(opened(tmp_path / "hidden")) == {UNION, "columns", "features", "first count"}
    for rank in range(PARTIES):
        lines = read_ledger(tmp_path / "own" / "sccvfl-ledgers" / f"party-{rank}" / "ledger.jsonl")[0]
        assert [line["event"]["name"] for line in lines if "event" in line] == ["first count"]
    rule = 'id = { columns = ["id"], case = "lower", zeros = "strip" }'
    dataset.write_text(dataset.read_text().replace('id = "id"', rule))
    parts = [own_part(dataset, rank, 0) for rank in range(PARTIES)]
    assert parts[0].ids.tolist() == parts[1].ids.tolist() == parts[2].ids.tolist()
    clinic.write_text(clinic.read_text() + clinic.read_text().splitlines()[-1] + "\n")
    with pytest.raises(DataError, match=r"clinic.*twice"):
        own_part(dataset, 1, 0)


def test_what_cannot_work_on_hidden_records_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = str(write_overlap(tmp_path))
    wrong: dict[str, dict[str, Any]] = {
        "mode dp": {"mode": "dp"},
        "exact evaluation": {"evaluation": "exact"},
        "conditional scores": {"conditional": True},
        "table_kind clipped": {"sketch": "clipped"},
    }
    for what, more in wrong.items():
        message = f"align = hidden does not work with {what}: use align = psi or pre-aligned, or change that setting"
        with pytest.raises(ConfigError) as refusal:
            RunOptions.of({"dataset": dataset, "align": "hidden", **more})
        assert str(refusal.value) == message
        options = {"dataset": dataset, "align": "hidden", **more}
        config = SessionConfig(parties=ADDRESSES, job="train", options=options)
        with pytest.raises(
            ConfigError, match="align = hidden does not work with"
        ):  # as a host does, before it connects
            make_job(config, 0)
        assert RunOptions.of({"dataset": dataset, **more}).data.align == "exact"
        flags = [word for name, value in more.items() for word in (f"--{name}", *([] if value is True else [value]))]
        out = tmp_path / "never"
        assert main(["--dataset", dataset, "--align", "hidden", *flags, "--out", str(out)]) == WRONG_USE
        assert message in capsys.readouterr().err and not out.exists(), "no process was started"
    assert RunOptions.of({"dataset": dataset}).data.align == "hidden" and RunOptions.of({}).data.align == "exact"
    with pytest.raises(ConfigError, match="pooled"):
        RunOptions.of({"align": "hidden", "evaluation": "noisy"})


@pytest.mark.parametrize("phase", ["alignment", "discovery and warm-up"])
def test_a_run_that_stops_before_its_first_checkpoint_opened_nothing_of_records(phase: str, tmp_path: Path) -> None:
    dataset = write_overlap(tmp_path / "own")

    def stop(step: str, number: int, total: int) -> None:
        if step == phase:
            raise Stopped

    with pytest.raises(ExceptionGroup):
        run(jobs(TrainJob, dataset), tmp_path / "run", stop)
    assert set(opened(tmp_path / "run")) <= {UNION, "features", "columns"}
    assert "no checkpoint in common: start the run again" in refused(jobs(TrainJob, dataset, resume=True), tmp_path)


def test_an_alignment_by_itself_reports_sizes_and_own_counts(tmp_path: Path) -> None:
    dataset = write_overlap(tmp_path / "own")
    results = run(jobs(AlignJob, dataset), tmp_path / "aligned")
    parts = [own_part(dataset, rank, 0) for rank in range(PARTIES)]
    union = len(set().union(*(set(p.ids[p.split.train].tolist()) for p in parts)))
    for part, result in zip(parts, results, strict=True):
        assert result["places"]["train"] == union and result["own records"]["all"] == len(part.ids)
    assert opened(tmp_path / "aligned") == [UNION, UNION]
    bounds = [300.0, 260.0, 280.0]
    for result in run(jobs(AlignJob, dataset, align_bounds=bounds), tmp_path / "bounded"):
        bounds_of_parts = [part_bounds(bounds, share) for share in SHARES[:2]]
        assert [result["places"][name] for name in ("train", "validation")] == [sum(b) for b in bounds_of_parts if b]
    kept = prediction_options({"dataset": str(dataset), "align_bounds": bounds, "epsilon": 3.0})
    assert kept == {"dataset": str(dataset), "align_bounds": bounds, "align": "hidden"}, "at a prediction too"
    with pytest.raises(ConfigError, match="one for each of 3 parties"):
        RunOptions.of({"dataset": str(dataset), "align_bounds": [300.0]}).check(PARTIES)


def test_rows_spread_records_and_clear_the_rest(tmp_path: Path) -> None:
    data = own_part(write_overlap(tmp_path), 1, 0)
    rows = data.split.train[:5]
    part = data.spread(rows, Aligned(8, np.array([6, 0, 3, 1, 7])))
    (party,) = part.parties
    assert party.present is not None and party.present.nonzero()[0].tolist() == [0, 1, 3, 6, 7]
    assert (party.inputs[[6, 0, 3, 1, 7]] == data.party.inputs[rows]).all()
    assert (
        party.with_record.inputs == data.party.inputs[rows[[1, 3, 2, 0, 4]]]
    ).all() and party.with_record.present is None
    for block in party.bins().values():
        assert not block[[2, 4, 5]].any() and block[[0, 1, 3, 6, 7]].any(axis=1).all()
    assert (replace(party, present=None).bins()["age"].sum(axis=1) == 1).all()
