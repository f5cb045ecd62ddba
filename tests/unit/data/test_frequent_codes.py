"""Frequent codes of the public dictionary have a bin and a column of their own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import secure_sccvfl as scc
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party_data import benchmark_schema
from secure_sccvfl.evaluation.examples import decoded
from secure_sccvfl.models.encoders import public_square

ENTRY = {"name": "job", "kind": "code", "edges": [0, 100, 200], "missing": True}
FREQUENT = {**ENTRY, "frequent": [50, 150]}


def test_a_frequent_code_leaves_its_cut_and_reads_back() -> None:
    feature = Feature.of(FREQUENT)
    values = np.array([50, 51, 150, 199, np.nan])
    assert feature.bins == 5 and feature.bin_index(values).tolist() == [2, 0, 3, 1, 4]
    assert Feature.of(ENTRY).bin_index(values).tolist() == [0, 0, 1, 1, 2], "without them as before"
    layout = Layout.of([feature])
    for row, at in zip(layout.encode(values[:, None]), feature.bin_index(values), strict=True):
        again = np.array([[decoded(layout.blocks[0], row)]])
        assert layout.encode(again).argmax() == at, "the middle of a cut is no frequent code"
    assert public_square(layout.blocks[0]) == 1 - 1 / 5
    assert Feature.of(feature.entry()) == feature


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**ENTRY, "frequent": [250]}, "frequent code 250 lies outside 0..200"),
        ({**ENTRY, "frequent": [50, 50]}, "a frequent code is listed twice"),
        ({**ENTRY, "frequent": "50"}, "frequent must be a list of public codes"),
        ({**ENTRY, "kind": "number", "frequent": [50]}, "frequent is for kind code"),
    ],
)
def test_what_cannot_be_frequent_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Feature.of(entry)


def made(**more: Any) -> Dataset:
    """Codes of which two decide the label, in cuts whose other codes do not."""
    rng = np.random.default_rng(0)
    code = np.where(rng.random(2000) < 0.5, rng.choice([50, 150], 2000), rng.integers(0, 200, 2000))
    late = rng.random(2000) < np.where(np.isin(code, [50, 150]), 0.9, 0.1)
    bank = pd.DataFrame({"id": range(2000), "amount": rng.random(2000), "late": late.astype(int)})
    office = pd.DataFrame({"id": range(2000), "job": code, "old": rng.choice(["no", "yes"], 2000)})
    features = {"amount": {"kind": "number", "low": 0, "high": 1}, "job": {**ENTRY, **more}}
    data = scc.load(
        frames={"bank": bank, "office": office},
        label=("bank", "late", [0, 1]),
        protected=("office", "old", ["no", "yes"]),
        features=features,
    )
    return data.dataset


def test_frequent_codes_are_learned_and_covered_by_the_digest() -> None:
    plain, finer = made(), made(frequent=[50, 150])
    assert benchmark_schema(plain).digest() != benchmark_schema(finer).digest()
    accuracy = {
        name: scc.train(data, 8.0, private_model=False, lambdas=(0.0,)).evaluate()["value"]["acc"]
        for name, data in (("plain", plain), ("finer", finer))
    }
    assert accuracy["finer"] > 0.85 > 0.65 > accuracy["plain"], accuracy
