"""Train, validation and test rows from one seed; copies of a record never straddle a split.

`iid` is stratified by label and group. `shift` moves the protected attribute: more rows of the majority group go to
train, and more rows of the minority go to test (the paper's non-IID setting).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.randomness import stream

SplitKind = Literal["iid", "shift"]
TEST_SHARE = 0.30
VALIDATION_SHARE = 0.20
SHIFT_TEST_SHARE = 0.50


@dataclass(frozen=True)
class Split:
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        parts = [set(p.tolist()) for p in (self.train, self.validation, self.test)]
        if parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2]:
            raise DataError("the parts of a split overlap")

    @property
    def train_and_validation(self) -> np.ndarray:
        return np.sort(np.concatenate([self.train, self.validation]))


PARTS = ("train", "validation", "test")
SHARES = ((1 - TEST_SHARE) * (1 - VALIDATION_SHARE), (1 - TEST_SHARE) * VALIDATION_SHARE, TEST_SHARE)
"""What each part has of all records, on average."""


def expected_rows(train: int, joined: bool = False) -> tuple[int, int, int]:
    """How many records the parts have on average, if so many are in the training part, or in it and validation."""
    if joined:
        return train, 0, round(train * SHARES[2] / (SHARES[0] + SHARES[1]))
    return train, round(train * SHARES[1] / SHARES[0]), round(train * SHARES[2] / SHARES[0])


def expected_training_records(records: int) -> int:
    """How many of so many records a private model is trained with, on average."""
    return round(records * (SHARES[0] + SHARES[1]))


UNSPLIT = Split(*(np.zeros(0, np.int64) for _ in range(3)))


def record_groups(data: Dataset) -> np.ndarray:
    """For each row, the number of the distinct record (features, label, s) that it copies."""
    rows = np.column_stack([data.values, data.label.values, *[a.codes for a in data.protected]])
    _, inverse = np.unique(np.nan_to_num(rows, nan=-1e9), axis=0, return_inverse=True)
    return np.asarray(inverse).reshape(-1)


def _strata(data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Label class (quartile for regression) crossed with the first protected attribute."""
    label = data.label.values[rows]
    if data.task == "regression":
        label = np.searchsorted(np.quantile(label, [0.25, 0.5, 0.75]), label)
    return label.astype(int) * 1000 + data.protected[0].codes[rows]


def _pick(strata: np.ndarray, share: dict[int, float], rng: np.random.Generator) -> np.ndarray:
    """A mask that takes the wanted share of every stratum; the remainder is assigned at random."""
    mask = np.zeros(len(strata), bool)
    for value in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == value))
        exact = share[int(value)] * len(members)
        count = int(exact) + int(rng.random() < exact - int(exact))
        mask[members[:count]] = True
    return mask


def make_split(data: Dataset, kind: SplitKind, seed: int) -> Split:
    """Split distinct records; every copy of a record follows it."""
    if kind not in ("iid", "shift"):
        raise DataError(f"unknown split {kind!r}; use iid or shift")
    group = record_groups(data)
    _, first = np.unique(group, return_index=True)
    rng = stream(seed, "split", data.name, kind)
    strata = _strata(data, first)
    share = dict.fromkeys(np.unique(strata).tolist(), TEST_SHARE)
    if kind == "shift":
        codes = data.protected[0].codes[first]
        major = int(np.bincount(codes).argmax())
        minor_rows = int((codes != major).sum())
        rest = (TEST_SHARE * len(first) - SHIFT_TEST_SHARE * minor_rows) / max(len(first) - minor_rows, 1)
        share = {v: (max(rest, 0.05) if v % 1000 == major else SHIFT_TEST_SHARE) for v in share}
    test = _pick(strata, share, rng)
    inner = np.flatnonzero(~test)
    validation = _pick(strata[inner], dict.fromkeys(share, VALIDATION_SHARE), rng)
    part = np.zeros(len(first), int)
    part[test] = 2
    part[inner[validation]] = 1
    rows = part[group]
    split = Split(*(np.flatnonzero(rows == k) for k in range(3)))
    for name in PARTS:
        picked = getattr(split, name)
        if data.task != "regression" and len(np.unique(data.label.values[picked])) < 2:
            raise DataError(f"the {name} part has one class only; more records are needed")
        if len(np.unique(data.protected[0].codes[picked])) < 2:
            raise DataError(f"the {name} part has one group only; more records are needed")
    return split
