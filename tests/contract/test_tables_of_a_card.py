"""A card that decides every column: tables of M and P alone, validation records in training, and the default epsilon.

What must hold: the plan declares what is opened, the charge is that of the smaller tables, records that a model is
trained with are all charged, and kept tables serve no run that needs more of them.
"""

import json

import numpy as np
import pytest

from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.cached_releases import load_releases
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.default_budget import EPSILON_RULE, default_epsilon, default_words
from secure_sccvfl.releases.mechanisms import CARD_SHARE, SHARE
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.modes.base import mode_plan, spread_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.contract.test_cached_releases import SHORT, files, ledgers, refused, train
from tests.support.own_data import heart_rows, jobs_of, write_own

PRIVATE = TrainConfig(private=True, lambdas=(3.0,))
MEDIATORS = ("chol", "thalach", "slope")


def card_of(names, path, mediators=MEDIATORS, proxies="guard"):
    """A card that decides all these columns; the last mediator is a proxy."""
    roles = {name: "N" for name in names} | dict.fromkeys(mediators[:-1], "M") | {mediators[-1]: "P"}
    decisions = {k: {"role": v, "reason": "test", "evidence": "test"} for k, v in roles.items()}
    card = {"dataset": "own", "version": "1", "owners": ["somebody"], "proxies": proxies, "decisions": decisions}
    path.write_text(json.dumps(card))
    return str(path)


@pytest.fixture(scope="module")
def paid(tmp_path_factory):
    home = tmp_path_factory.mktemp("own")
    data = write_own(home, heart_rows())
    options = {"dataset": str(data), "align": "exact", "reserve": 0.5, **SHORT}
    names = [f.name for features in RunOptions.of(options).schema(3).features for f in features]
    options["card"] = card_of(names, home / "card.json")
    return home, names, options, train(home / "paid", options)


def test_tables_of_other_columns_are_neither_declared_nor_opened_nor_charged(paid):
    home, names, options, results = paid
    run_options = RunOptions.of(options)
    schema = run_options.schema(3)
    assert set(run_options.tabled(schema)) == set(MEDIATORS)
    declared = mode_plan(schema, run_options).releases
    for rank, path in enumerate(files(home)):
        kept = load_releases(path)
        held = [name for name in MEDIATORS if name in schema.bins[rank]]
        for name in ("sketch-0", "sketch-1"):
            release = kept.releases[name]
            assert set(release.parts[0]) == set(held) and set(release.features) == set(MEDIATORS)
            assert release.event.sensitivity == pytest.approx((2 * len(MEDIATORS)) ** 0.5)
        title = f"sketch-0 for party {rank}"
        assert (title in declared) == bool(held)
        assert not held or declared[title].shape[0] == sum(schema.bins[rank][name] for name in held)
    assert results[0]["roles"] == {**dict.fromkeys(names, "N"), "chol": "M", "thalach": "M", "slope": "P"}
    assert set(results[0]["scores"]) == set(results[0]["proposed"]) == set(MEDIATORS), "no evidence of other columns"
    assert spread_of(run_options, schema).heads[0].share == CARD_SHARE
    assert spread_of(RunOptions.of({**options, "card": ""}), schema).heads[0].share == SHARE


def test_every_record_that_a_model_is_trained_with_is_charged(paid):
    home, _, options, results = paid
    split = jobs_of(TrainJob, options)[0].data.split
    trained = len(split.train) + len(split.validation)
    assert results[0]["rows"] == {"train": trained, "validation": 0, "test": len(split.test)}
    lines = [json.loads(line) for line in ledgers(home)["party-0"].splitlines()]
    digests = {line["event"]["records"] for line in lines if line["kind"] == "charge"}
    sets = sorted((home / "sccvfl-ledgers" / "party-0").glob("**/*"))
    (digest,) = digests
    (kept,) = [path for path in sets if digest[:16] in path.name]
    assert kept.stat().st_size == 8 * trained, "a tag of eight bytes for each"


def test_kept_tables_of_a_card_serve_no_run_that_needs_others(paid):
    home, names, options, _ = paid
    before, kept = ledgers(home), {**options, "tables": "kept", "reserve": 0.0}
    more = card_of(names, home / "more.json", ("age", *MEDIATORS))
    messages = refused(home / "more", {**kept, "card": more})
    assert any("tables are of chol, slope, thalach alone" in t and "this run needs age:" in t for t in messages)
    assert any("this run needs all columns:" in line for line in refused(home / "none", {**kept, "card": ""}))
    assert ledgers(home) == before
    fewer = card_of(names, home / "fewer.json", ("chol", "slope"))
    result = train(home / "fewer", {**kept, "card": fewer})[0]
    assert result["roles"]["thalach"] == "N" and set(result["scores"]) == {"chol", "slope"}


def test_kept_tables_of_all_columns_serve_a_card_with_their_own_noise(tmp_path):
    data = write_own(tmp_path, heart_rows())
    options = {"dataset": str(data), "align": "exact", "reserve": 0.5, **SHORT}
    train(tmp_path / "paid", options)
    names = [f.name for features in RunOptions.of(options).schema(3).features for f in features]
    kept = {**options, "tables": "kept", "reserve": 0.0, "card": card_of(names, tmp_path / "card.json")}
    train(tmp_path / "again", kept)
    facts = json.loads((tmp_path / "again" / "party-1" / "model" / "model.json").read_text())["sketches"][0]
    events = load_releases(files(tmp_path)[0]).releases["sketch-0"].event
    assert set(facts["tables"]) <= set(MEDIATORS)
    assert events.sensitivity == pytest.approx((2 * len(names)) ** 0.5)
    assert facts["deviation"] == pytest.approx(events.sigma * events.copies**0.5 / 2**0.5), "of two releases"


def test_only_a_whole_card_leaves_tables_out():
    whole = Roles({"a": "M", "b": "N", "c": "P"})
    assert PRIVATE.tabled(whole, "abc") == ("a", "c")
    assert PRIVATE.tabled(Roles(whole.of, "drop"), "abc") == ("a",), "a proxy that is dropped needs no table"
    assert PRIVATE.tabled(whole, "abcd") == PRIVATE.tabled(None, "abc") == ()
    assert TrainConfig().tabled(whole, "abc") == ("a", "c"), "also for a model without noise"
    assert TrainConfig(generator=GeneratorConfig("masked")).tabled(whole, "abc") == ()
    assert TrainConfig(private=True, discovery=DiscoveryConfig(gain=True)).tabled(whole, "abc") == ()
    assert (
        TrainConfig(private=True, discovery=DiscoveryConfig(score="stable", sketch="clipped")).tabled(whole, "abc")
        == ()
    )


def test_validation_records_stay_apart_where_anything_else_is_made_of_them():
    split = Split(np.array([0, 3]), np.array([1]), np.array([2]))
    assert PRIVATE.training_rows(split).tolist() == [0, 1, 3]
    grid = TrainConfig(private=True, lambdas=(1.0, 3.0))
    assert grid.training_rows(split).tolist() == [0, 3], "means over them are opened exactly"
    assert TrainConfig(private=True, lambdas=(1.0, 3.0), evaluation="noisy").joins
    assert not TrainConfig().joins
    assert not TrainConfig(private=True, lambdas=(3.0,), discovery=DiscoveryConfig(gain=True)).joins


def test_default_epsilon_follows_the_public_number_of_records_alone():
    assert [default_epsilon(n) for n in (None, 0, 4999, 5000, 14999, 15000, 10**6)] == [8, 8, 8, 4, 4, 2, 2]
    assert all(number in EPSILON_RULE for number in ("5,000", "15,000"))
    assert RunOptions().privacy.epsilon == default_epsilon(None)


def test_an_epsilon_that_follows_from_the_number_of_records_says_so():
    assert default_words(4.0, 6000) == "the default for 6,000 training records"
    assert "not public" in default_words(8.0, None) and "5,000" in default_words(8.0, None)
    assert default_words(8.0, 6000) == default_words(4.0, None) == "", "named"
