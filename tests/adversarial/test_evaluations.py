"""Evaluating a model again and again, with other seeds, splits, records or files, tells nothing more.

Before, every seed made other records the "test part" of the same model, exactly and for free: 158 evaluations gave
every label and every s of 120 records, training records included. Withdrawing one record and evaluating again gave
its label and s.
"""

import json
import shutil

import pytest

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.files import content_digest, read_model
from secure_sccvfl.runs.train import TrainJob
from tests.support.own_data import heart_rows, jobs_of, run_jobs, write_own
from tests.support.sessions import stopping
from tests.support.two_parties import opened

SHORT = {"refreshes": 0, "warmup": 4, "steps": 10, "lambdas": [8.0]}


def evaluate(folder, options):
    return run_jobs(jobs_of(EvaluateJob, options), folder, deadline=60.0)


def ledgers(folder):
    """Every line that was charged anywhere below a folder."""
    return {str(path): path.read_text() for path in sorted((folder / "sccvfl-ledgers").rglob("*.jsonl"))}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """Own data, a model trained on them, and its evaluation."""
    home = tmp_path_factory.mktemp("own")
    data = write_own(home, heart_rows())
    run = home / "run"
    run_jobs(jobs_of(TrainJob, {"dataset": str(data), **SHORT}), run)
    options = {"dataset": str(data), "model": str(run)}
    return home, data, run, options, evaluate(home / "first", options)


def test_two_hundred_other_seeds_open_nothing(consortium):
    """All refused before a process connects: the attacker has the one noisy evaluation that everybody has."""
    home, _, _, options, _ = consortium
    before = ledgers(home)
    for seed in range(1, 201):
        with pytest.raises(ConfigError, match="trained with seed = 0"):
            jobs_of(EvaluateJob, {**options, "seed": seed})
    assert ledgers(home) == before


def test_what_all_evaluations_together_tell_of_a_record_is_what_one_tells(consortium):
    """The same model on the same records again: the recorded figures, nothing opened, nothing charged."""
    home, _, _, options, first = consortium
    before = ledgers(home)
    for number in range(3):
        again = evaluate(home / f"again-{number}", options)
        spent = {"cost": None, "crypten_operations": None}
        assert [r | spent for r in again] == [r | spent for r in first]
        assert opened(home / f"again-{number}") == []
    assert ledgers(home) == before
    assert opened(home / "first") == ["alignment: places", "columns", "evaluation"]


@pytest.mark.chance(5e-10)  # noise is a multiple of 2^-32: each of two counts is whole with that chance
def test_the_attackers_equations_have_no_exact_right_hand_side(consortium):
    """Rates times the number of records are no whole numbers any more, and their noise is that which was paid for."""
    _, data, _, _, first = consortium
    rows = len(own_part(data, 0, 0).split.test)
    figures = first[0]
    assert figures["evaluation"]["kind"] == "noisy"
    assert figures["evaluation"]["epsilon_rdp"] <= figures["evaluation"]["cap"]
    assert figures["noise"]["acc"] * rows > 1.96 * 1.5, "at least three records' worth of noise, either way"
    counts = [
        figures["metrics"][name] * rows for name in ("acc", "positive_rate") if 0 < figures["metrics"][name] < 1
    ]
    assert all(abs(count - round(count)) > 1e-10 for count in counts)


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
        jobs_of(EvaluateJob, {**options, **changed})
    assert "\n" not in str(refused.value)
    assert ledgers(home) == before


@pytest.mark.parametrize("withdrawn", [0, 150])
def test_a_withdrawn_record_is_not_evaluated_around(consortium, tmp_path, withdrawn):
    """The set is not the model's any more, whichever part the record was in: nothing is opened, nothing charged."""
    home, _, _, options, _ = consortium
    less = heart_rows()
    del less[withdrawn]
    shutil.copytree(home / "sccvfl-ledgers", tmp_path / "sccvfl-ledgers")
    path = write_own(tmp_path, less)
    before = ledgers(tmp_path)
    with stopping("the records are not those"):
        evaluate(tmp_path / "evaluation", {**options, "dataset": str(path)})
    assert opened(tmp_path / "evaluation") == []
    assert ledgers(tmp_path) == before


def forge(folder, **changes):
    """Change a model's file as its owner can, digests and all."""
    facts, arrays = read_model(folder)
    facts.pop("digest", None)
    for key, value in changes.items():
        if key in facts:
            facts[key] = value
        else:
            facts["held_out"][key] = value
    facts["digest"] = content_digest(facts, arrays)
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
        evaluate(tmp_path / "evaluation", {**options, "model": str(forged)})
    expected = "the parts of the model differ" if who == (0,) else "the records are not those"
    assert expected in str(refused.value.exceptions)
    assert opened(tmp_path / "evaluation") == []
    assert ledgers(home) == before


@pytest.fixture
def one_record_less(consortium, tmp_path):
    """The same consortium with the last record withdrawn, and its ledgers."""
    home, *_ = consortium
    shutil.copytree(home / "sccvfl-ledgers", tmp_path / "sccvfl-ledgers")
    return tmp_path, write_own(tmp_path, heart_rows()[:-1])


def test_one_record_less_does_not_reset_the_training_budget(one_record_less):
    folder, path = one_record_less
    before = ledgers(folder)
    with stopping("release nothing more about these records"):
        run_jobs(jobs_of(TrainJob, {"dataset": str(path), **SHORT}), folder / "run")
    assert not any(name.startswith("sketch") for name in opened(folder / "run"))
    assert ledgers(folder) == before


def test_one_record_less_does_not_reset_the_test_budget(consortium, one_record_less):
    """Another set of test records, but nearly all of them have paid before: what they have spent adds up."""
    *_, first = consortium
    folder, path = one_record_less
    for ledger in folder.glob("sccvfl-ledgers/party-*/ledger.jsonl*"):
        ledger.unlink()  # so that training is allowed here
    run_jobs(jobs_of(TrainJob, {"dataset": str(path), **SHORT}), folder / "run")
    again = evaluate(folder / "evaluation", {"dataset": str(path), "model": str(folder / "run")})
    spent = [figures[0]["evaluation"]["epsilon_rdp"] for figures in (first, again)]
    alone = epsilon_of(Budget.open(folder / "sccvfl-ledgers/party-0/evaluation.jsonl", 4.0, 1e-5).events[:1], 1e-5)
    assert spent[0] == pytest.approx(alone)
    assert spent[1] > 1.3 * alone, "two releases about the same people"
