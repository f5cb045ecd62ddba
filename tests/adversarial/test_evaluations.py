"""Evaluating a model again and again, with other seeds, splits, records or files, tells nothing more.

Before, every seed made other records the "test part" of the same model, exactly and for free: 158 evaluations gave
every label and every s of 120 records, training records included. Withdrawing one record and evaluating again gave
its label and s.
"""

import json
import shutil

import pytest

from protocols.config import ConfigError
from secure_sccvfl.model_files import _digest, _read
from secure_sccvfl.party_data import own_part
from secure_sccvfl.score_jobs import EvaluateJob
from secure_sccvfl.train_job import TrainJob
from tests.harness import local_config, run_session
from tests.own_data import heart_rows, write_own

PARTIES = 3
SHORT = {"refreshes": 0, "warmup": 4, "steps": 10, "lambdas": [8.0]}


def config_of(options):
    config, listeners = local_config(PARTIES, options=options)
    for listener in listeners:
        listener.close()
    return config


def run_jobs(make, folder, options):
    """One job at every party, as threads with real sockets, each with its own folder."""
    config = config_of(options)
    jobs = [make(config, rank) for rank in range(PARTIES)]
    return run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None),
        PARTIES,
        jobs[0].plan(),
        folder=folder,
        deadline=60.0,
    )


def opened(folder):
    """Names of what a session opened, by its log."""
    log = folder / "party-0" / "releases.jsonl"
    return [json.loads(line)["release"] for line in log.read_text().splitlines()] if log.exists() else []


def ledgers(folder):
    """Every line that was charged anywhere below a folder."""
    return {
        str(p): p.read_text()
        for p in sorted(folder.rglob("*.jsonl"))
        if p.name in ("ledger.jsonl", "evaluation.jsonl")
    }


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """Own data, a model trained on them, and its evaluation."""
    home = tmp_path_factory.mktemp("own")
    data = write_own(home, heart_rows())
    run = home / "run"
    run_jobs(TrainJob, run, {"dataset": str(data), **SHORT})
    options = {"dataset": str(data), "model": str(run)}
    return home, data, run, options, run_jobs(EvaluateJob, home / "first", options)


def test_two_hundred_other_seeds_open_nothing(consortium):
    """All refused before a process connects: the attacker has the one noisy evaluation that everybody has."""
    home, _, _, options, _ = consortium
    before = ledgers(home)
    for seed in range(1, 201):
        with pytest.raises(ConfigError, match="trained with seed = 0"):
            EvaluateJob(config_of({**options, "seed": seed}), seed % PARTIES)
    assert ledgers(home) == before


def test_what_all_evaluations_together_tell_of_a_record_is_what_one_tells(consortium):
    """The same model on the same records again: the recorded figures, nothing opened, nothing charged."""
    home, _, _, options, first = consortium
    before = ledgers(home)
    for number in range(3):
        again = run_jobs(EvaluateJob, home / f"again-{number}", options)
        assert [{**r, "cost": None} for r in again] == [{**r, "cost": None} for r in first]
        assert opened(home / f"again-{number}") == []
    assert ledgers(home) == before
    assert opened(home / "first") == ["columns", "evaluation"]


def test_the_attackers_equations_have_no_exact_right_hand_side(consortium):
    """Rates times the number of records are no whole numbers any more, and their noise is that which was paid for."""
    home, data, _, options, first = consortium
    rows = len(own_part(data, 0, 0).split.test)
    told = first[0]
    assert told["evaluation"]["kind"] == "noisy"
    assert told["evaluation"]["epsilon_rdp"] <= told["evaluation"]["cap"]
    assert told["noise"]["acc"] * rows > 1.96 * 1.5, "at least three records' worth of noise, either way"
    counts = [told["metrics"][name] * rows for name in ("acc", "positive_rate") if 0 < told["metrics"][name] < 1]
    assert all(abs(count - round(count)) > 1e-9 for count in counts)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": "shift"}, "trained with split = 'iid'"),
        ({"pooled": True}, "trained with pooled = False"),
        ({"evaluation": "exact"}, "trained with evaluation = 'noisy'"),
        ({"evaluation_epsilon": 0.0}, "epsilon must be finite and positive"),
    ],
)
def test_other_settings_are_refused_in_one_line(consortium, changed, message):
    home, _, _, options, _ = consortium
    before = ledgers(home)
    with pytest.raises(ConfigError, match=message) as refused:
        EvaluateJob(config_of({**options, **changed}), 0)
    assert "\n" not in str(refused.value)
    assert ledgers(home) == before


@pytest.mark.parametrize("withdrawn", [0, 150])
def test_a_withdrawn_record_is_not_evaluated_around(consortium, tmp_path, withdrawn):
    """The set is not the model's any more, whichever part the record was in: nothing is opened, nothing charged."""
    home, data, run, options, _ = consortium
    less = heart_rows()
    del less[withdrawn]
    shutil.copytree(home / "sccvfl-ledgers", tmp_path / "sccvfl-ledgers")
    path = write_own(tmp_path, less)
    before = ledgers(tmp_path)
    with pytest.raises(ExceptionGroup) as refused:
        run_jobs(EvaluateJob, tmp_path / "evaluation", {**options, "dataset": str(path)})
    assert "the records are not those" in str(refused.value.exceptions)
    assert opened(tmp_path / "evaluation") == []
    assert ledgers(tmp_path) == before


def forge(folder, **changes):
    """Change a model's file as its owner can, digests and all."""
    facts, arrays = _read(folder)
    facts.pop("digest")
    for key, value in changes.items():
        if key in facts:
            facts[key] = value
        else:
            facts["held_out"][key] = value
    facts["digest"] = _digest(facts, arrays)
    (folder / "model.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("who", [(0,), (0, 1, 2)], ids=["one party's", "every party's"])
def test_a_forged_model_file_is_refused(consortium, tmp_path, who):
    """One forged part differs from the others'; with all of them forged, the records are not those it names."""
    home, _, run, options, _ = consortium
    forged = tmp_path / "forged"
    shutil.copytree(run, forged)
    for rank in who:
        forge(forged / f"party-{rank}" / "model", seed=7)
        (forged / f"party-{rank}" / "model" / "evaluation.json").unlink()
    before = ledgers(home)
    with pytest.raises(ExceptionGroup) as refused:
        run_jobs(EvaluateJob, tmp_path / "evaluation", {**options, "model": str(forged)})
    expected = "parts of the model differ" if who == (0,) else "the records are not those"
    assert expected in str(refused.value.exceptions) or "records differ" in str(refused.value.exceptions)
    assert opened(tmp_path / "evaluation") == []
    assert ledgers(home) == before


def test_a_model_trained_anew_on_nearly_the_same_records_pays_again(consortium, tmp_path):
    """One record less is another set, but its records have spent what they have spent: charges add up."""
    home, _, _, options, first = consortium
    shutil.copytree(home / "sccvfl-ledgers", tmp_path / "sccvfl-ledgers")
    path = write_own(tmp_path, heart_rows()[:-1])
    run = tmp_path / "run"
    with pytest.raises(ExceptionGroup) as refused:  # the whole training budget of these records is spent
        run_jobs(TrainJob, run, {"dataset": str(path), **SHORT})
    assert "release nothing more about these records" in str(refused.value.exceptions)
    assert not any(name.startswith("sketch") for name in opened(run))
