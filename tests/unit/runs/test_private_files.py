"""What only its owner may read is so from the first byte on, whatever the umask."""

import csv
import os
import stat
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Attribute
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.models.encoders import PlainEncoder
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.session.runtime import tensor_of
from secure_sccvfl.protocols.session.saving import restore_share
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.protocols.steps.second_order import Curved, Plan, Slope
from secure_sccvfl.runs import model_files
from secure_sccvfl.runs.model_files import PartyModel, save_model
from secure_sccvfl.runs.predict import CHANGED, ELSEWHERE, UNDECIDED, PredictJob, read_new_records
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.modes import base
from secure_sccvfl.training.modes.dp import DpSeen
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.shared import (
    SharedBatch,
    SharedDraws,
    SharedGrid,
    SharedHead,
    SharedOptimizer,
    SharedPenalty,
    Weights,
)


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def modes(monkeypatch):
    """Modes of files at the moment at which arrays are written to them."""
    seen = []

    def savez(file, **arrays):
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))

    for module in (base, model_files):
        monkeypatch.setattr(module.np, "savez", savez)
    return seen


HELD_OUT = model_files.HeldOut("iid", True, "exact", {})


def test_shares_of_a_model(tmp_path, modes):
    encoder = PlainEncoder(Layout(()), np.zeros(1))
    one = restore_share(np.zeros((1, 1), np.int64), HEAD_BITS)
    facts = ("r", 0, 2, "s", "binary", 1.0, 1.0, {}, GeneratorConfig(), 0, HELD_OUT)
    model = PartyModel(*facts, encoder, (), one, one[0])
    save_model(model, tmp_path)
    assert modes == [0o600]


def test_gradients_that_were_shown(tmp_path, modes):
    base.keep_gradients(tmp_path, (DpSeen(np.zeros((1, 1)), np.zeros(1)),))
    assert modes == [0o600]


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_predictions(tmp_path, task):
    ids = np.array(["01", "02", "3"])
    job = SimpleNamespace(
        schema=SimpleNamespace(task=task, classes=("a", "b"), outputs=1, own_id=lambda rank: "id"),
        receiver=0,
        new=SimpleNamespace(in_file=np.array([2, 1, 0]), take=lambda rows: SimpleNamespace(written=ids[rows])),
        options=RunOptions(),
        aware=None,
        _in_words=lambda new, opened: {},
        named={"card": "3", "mask": "ab", "approved": "2026-01-31"},
    )
    job.lines = partial(PredictJob.lines, job)
    decided, held = np.array([True, False, True]), np.array([True, True, False])
    PredictJob._write(job, tmp_path / "predictions.csv", np.ones((3, 1)), decided, held)
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", "3", "01"], "ids and order of the file; none refused"
    assert lines[0].endswith(",card,mask,approved") and all(x.endswith(",3,ab,2026-01-31") for x in lines[1:])
    assert [UNDECIDED in line for line in lines] == [False, True, False], (
        "nothing is reported of a record that not all hold"
    )
    assert stat.S_IMODE((tmp_path / "predictions.csv").stat().st_mode) == 0o600


def one_column():
    features, s = ((Feature("x", "number", 0, 2),),), (Attribute("s", "bank", (), None),)
    return Schema("d", "binary", ("0", "1"), features, ("bank",), 0, s)


def test_what_was_refused(tmp_path):
    (tmp_path / "new.csv").write_text("id,x\n003,1\n02,9\n1,1\n")
    schema = replace(one_column(), id_rule=IdRule(("id",), drop_leading_zeros=True))
    new = read_new_records(tmp_path / "new.csv", schema, 0, uses_s=False)
    assert new.ids.tolist() == ["1", "2", "3"], "as the parties compare them"
    new.write(tmp_path, {CHANGED: np.array([False, False, True]), ELSEWHERE: np.array([True, True, True])})
    with (tmp_path / "refused.csv").open(newline="") as file:
        lines = [*csv.reader(file)]
    assert lines[0] == ["id", "column", "why"]
    reasons = [["003", "", CHANGED], ["02", "x", "outside the public range 0..2"], ["1", "", ELSEWHERE]]
    assert lines[1:] == reasons, "ids and order of the file"
    assert stat.S_IMODE((tmp_path / "refused.csv").stat().st_mode) == 0o600


def test_a_file_in_which_no_record_can_be_read_is_no_reason_to_stop(tmp_path):
    """With one new record a stop would tell everybody that this party cannot read it."""
    (tmp_path / "new.csv").write_text("id,x\na,9\n")
    with pytest.warns(DataWarning, match="no readable record in 'new.csv': see refused.csv"):
        new = read_new_records(tmp_path / "new.csv", one_column(), 0, uses_s=False)
    assert new.ids.tolist() == ["a"] and not new.readable.any() and 0 <= new.party.inputs.min() <= 1


def test_a_file_that_was_open_to_all_is_closed_before_it_is_written(tmp_path):
    (tmp_path / "old").touch(0o666)
    with open(tmp_path / "old", "w", opener=private) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


def test_handles_with_shares_show_nothing_when_printed():
    share, row = (tensor_of(np.full(shape, 123456789, np.int64), 24) for shape in ((1, 1), (1,)))
    weights = Weights(share, row, share, row)
    plain = np.full((1, 1), 0.987654321)
    chosen = SharedDraws((share,), np.zeros(1, int))
    handles = [
        weights,
        chosen,
        SharedHead(weights, plain[0], "binary", 1, share, share),
        SharedBatch(plain, plain[0], share),
        MembershipMask(np.full(1, 123456789, np.int64), 1),
        SharedPenalty(chosen, share, (plain[0],)),
        SharedOptimizer(1, SharedBatch(plain, plain[0], share), Step(0.1, 0.5), plain[0], share, share),
        SharedGrid(
            *(1, 1, SharedBatch(plain, plain[0], share)),
            Plan(((1.0, 0.0),), ((1.0, 0.0),), (0,), 0.25, 0.5, (1.5,), 1.0, 0.2, (1.5,)),
            *(plain[0], share, share, ()),
            Curved(share, share),
        ),
        Slope(share, share, 1.0),
    ]
    assert not any(figure in repr(handle) for handle in handles for figure in ("123456789", "0.987"))
