"""For how many people a model may answer, and which answers a receiver gives from its log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.config.rules import PREDICTIONS
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.encoders import PlainEncoder
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.session.saving import restore_share
from secure_sccvfl.protocols.steps.choice import REFUSED, REPEATED, SHOWN
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.releases.prediction_log import NO_LIMIT, open_log
from secure_sccvfl.releases.record_key import RecordKey
from secure_sccvfl.runs.answers import LACKS, NO_SCORES, Contents
from secure_sccvfl.runs.model_files import HeldOut, PartyModel, load_model, save_model
from secure_sccvfl.runs.predict import ELSEWHERE, LOST, Answers, Asked, allowed_predictions
from secure_sccvfl.training.modes.options import RunOptions

ADDRESSES = ("127.0.0.1:7000", "127.0.0.1:7001")
PINS = {node: "0" * 64 for node in ("party-0", "party-1", "dealer")}


def model(predictions: int | None, *, pooled: bool = False) -> PartyModel:
    one, held_out = restore_share(np.zeros((1, 1), np.int64), HEAD_BITS), HeldOut("iid", pooled, "noisy", {})
    facts = ("r", 0, 2, "s", "binary", 1.0, 1.0, {}, GeneratorConfig(), 0, held_out)
    return PartyModel(*facts, PlainEncoder(Layout(()), np.zeros(1)), (), one, one[0], predictions=predictions)


def allowed(trained: PartyModel, options: dict[str, Any], **settings: Any) -> int:
    config = SessionConfig(parties=ADDRESSES, options=options, **settings)
    run_options = RunOptions.of_flat(pooled=trained.held_out.pooled, **{"predictions": PREDICTIONS, **options})
    return allowed_predictions(config, run_options, trained)


def test_the_number_is_that_of_the_training_unless_all_approved_another() -> None:
    assert allowed(model(5), {}) == allowed(model(5), {"predictions": 5}) == 5
    assert allowed(model(5), {"predictions": 9}, certificates=PINS) == 9
    for settings in ({}, {"certificates": PINS, "approval": "none"}):
        with pytest.raises(ConfigError, match=r"may answer for 5 people: another number \(9\) needs a session file"):
            allowed(model(5), {"predictions": 9}, **settings)


def test_models_of_earlier_versions_have_the_default(tmp_path: Path) -> None:
    for predictions in (None, 5):
        save_model(model(predictions), tmp_path)
        assert ("predictions" in json.loads((tmp_path / "model.json").read_text())) == (predictions is not None)
        assert load_model(tmp_path, Layout(())).predictions == predictions
    assert allowed(model(None), {}) == PREDICTIONS and allowed(model(None, pooled=True), {}) == NO_LIMIT
    assert model(5).public() != model(6).public(), "parts of a model that allow different numbers do not fit"


@pytest.mark.parametrize("predictions", [0, -1])
def test_own_data_have_a_limit(predictions: int) -> None:
    assert RunOptions.of({"dataset": "german"}).privacy.predictions == NO_LIMIT
    assert RunOptions.of({"dataset": "german", "pooled": False}).privacy.predictions == PREDICTIONS
    with pytest.raises(ConfigError, match="predictions must be at least 1"):
        RunOptions.of({"dataset": "german", "pooled": False, "predictions": predictions})


def test_a_receiver_keeps_what_was_opened_and_returns_what_is_on_record(tmp_path: Path) -> None:
    """Five people: opened now, refused by another party, not held by all, answered before, and lost."""
    ids, columns = np.array(list("abcde")), np.arange(10.0).reshape(5, 2)
    new: Any = SimpleNamespace(ids=ids, columns=[columns], readable=np.ones(5, bool))
    with open_log(tmp_path, "run", RecordKey(os.urandom(32))) as log:
        names = log.names(ids.tolist())
        log._append({"kind": "asked", "records": {names[3]: log.digests(names, columns)[3]}})
        log._append({"kind": "opening"})
        log.answer({names[3]: [0.0, 1.0]}, [])
        for scores, poor in ((False, False), (True, True)):
            asked = Asked.of(log, new, "")
            shown = asked.readable & asked.fresh
            values, held = np.array([[1.0], [0.0], [0.0], [0.0], [0.0]]), np.array([True, True, False, True, True])
            marks = np.array([SHOWN if asked.fresh[0] else REPEATED, REFUSED, SHOWN, REPEATED, REPEATED])
            log._append({"kind": "asked", "records": asked.people(np.flatnonzero(shown))})
            log._append({"kind": "opening"})
            answers = Answers(values, held)
            answers.settle(log, asked, shown, marks, Contents(scores, 1, {}))
            assert {why: ids[rows].tolist() for why, rows in answers.why.items()} == {
                ELSEWHERE: ["b"],
                NO_SCORES: ["a", "d"] if poor else [],
                **{why: [] for why in LACKS.values()},
                LOST: ["e"],
            }
            assert poor or answers.values[:, 0].tolist() == [1, 0, 0, 1, 0]
            assert answers.held.tolist() == [True, True, False, True, True]
            assert set(log.decided) == {names[0], names[3]}, "about the others nothing was opened now"
            assert set(log.answers) == {names[0], names[3]}
