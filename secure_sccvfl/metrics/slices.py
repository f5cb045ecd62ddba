"""Rates of slices: groups of the protected attribute crossed with another column, under MPC and in plaintext.

Before: decisions and labels of the test records are shared; s and the other column are at their holders. After: every
party knows, for each slice, how many records each rate rests on and how many of them count, or zeros where that is
fewer than `min_group`; and no decision, label, group or cell of a record. Rounds: one product for membership, one for
the counts, one comparison for the floors, one product.

Exact counts of slices are not private: a suppressed slice follows from the total and the others. So they are for data
that may be pooled, with exact evaluation, where floors only hide rates without meaning. Noisy evaluation opens none:
further sums would add noise to all figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_sccvfl.data.features import MISSING, Feature
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Part
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.discovery.statistics import open_to_all
from secure_sccvfl.metrics.exact import SecureEvaluation, Shared
from secure_sccvfl.metrics.rates import RATES, rate_record
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.session.runtime import crypten
from secure_sccvfl.releases.catalogue import SLICES, PlanFacts


@dataclass(frozen=True)
class Crossed:
    """The column that groups are crossed with: its name, who holds it, and the names of its values."""

    name: str
    holder: int
    values: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema, name: str) -> Crossed | None:
        """The column of this name, or the second protected attribute if none is named; None without either."""
        if not name and len(schema.protected) > 1:
            name = schema.protected[1].name
        if not name:
            return None
        for attribute in schema.protected[1:]:
            if attribute.name == name:
                return cls(name, schema.parties.index(attribute.holder), attribute.groups)
        for rank, party_features in enumerate(schema.features):
            for feature in party_features:
                if feature.name == name:
                    return cls(name, rank, _values(feature))
        columns = ", ".join(f.name for party_features in schema.features for f in party_features)
        raise ConfigError(f"slices: no column {name!r}; available: {columns}")

    @classmethod
    def opened(cls, schema: Schema, name: str, *, pooled: bool, exact: bool) -> Crossed | None:
        """The column where counts of slices may be opened: exact figures, two classes, data that may be pooled."""
        return cls.of(schema, name) if pooled and exact and schema.task == "binary" else None

    def member(self, part: Part, rank: int) -> AtHolder:
        """The one-hot of the column at its holder."""
        if rank != self.holder:
            return None
        for attribute in part.protected:
            if attribute.name == self.name and attribute.codes is not None:
                return one_hot(attribute.codes, len(self.values))
        return part.parties[0].bins()[self.name]

    def release(self, parties: int, groups: int) -> Release:
        facts = PlanFacts(
            {r: {} for r in range(parties)}, sizes={"slice counts": 2 * len(RATES) * groups * len(self.values)}
        )
        (release,) = SLICES.releases(facts, detail=self.name)
        return release


def _values(feature: Feature) -> tuple[str, ...]:
    names = (feature.labels or feature.categories) if feature.kind == "category" else feature.bin_names
    return (*names, *([MISSING] if feature.missing else []))


def secret_counts(
    secret: SecureEvaluation,
    logits: Shared,
    label: AtHolder,
    groups: AtHolder,
    count: int,
    crossed: AtHolder,
    by: Crossed,
) -> np.ndarray:
    """Run by all parties: denominators and numerators of each rate (rates x 2 x slices), 0 below the floor."""
    session, rows, width = secret.session, len(logits), len(by.values)
    shown, truth = secret.decisions(logits), secret.truth(label, rows, 1)
    first = secret.member(groups, rows, count)
    second = session.share(crossed, owner=by.holder, shape=(rows, width), bits=0)
    member = (first[:, :, None] * second[:, None, :]).reshape(rows, count * width)
    size, positive, true, hit = secret.counts_of(member, shown, truth)
    below, above = crypten.stack([size, true, size - true]), crypten.stack([positive, hit, positive - hit])
    reportable = 1 - (below < max(secret.min_group, 1))
    counts = crypten.stack([below, above], dim=1) * reportable[:, None]
    opened = open_to_all(session, counts.reshape(-1), SLICES.name)
    return np.rint(opened).astype(int).reshape(len(RATES), 2, count * width)


def plain_counts(
    shown: np.ndarray, label: np.ndarray, codes: np.ndarray, count: int, crossed: np.ndarray, min_group: int
) -> np.ndarray:
    """The same in plaintext. shown: decisions, 0 or 1. count: of groups. crossed: one-hot of the other column."""
    groups = one_hot(codes, count)
    member = (groups[:, :, None] * crossed[:, None, :]).reshape(len(codes), -1)
    cells = [(np.ones(len(codes)), shown), (label, shown * label), (1 - label, shown * (1 - label))]
    counts = np.array([[member.T @ below, member.T @ above] for below, above in cells])
    return np.rint(counts * (counts[:, :1] >= max(min_group, 1))).astype(int)


def slice_table(counts: np.ndarray, groups: Sequence[str], by: Crossed) -> dict[str, Any]:
    """Each slice with its rates and their 95 % intervals (Wilson); `too_few`: rates on too few records."""
    slices = []
    for number, (group, value) in enumerate((g, v) for g in groups for v in by.values):
        below, above = counts[:, 0, number], counts[:, 1, number]
        counts_of = zip(RATES, below.tolist(), above.tolist(), strict=True)
        rates = {rate: rate_record(hits, rows) for rate, rows, hits in counts_of if rows}
        slices.append({"of": [group, value], "rates": rates, "too_few": [r for r in RATES if r not in rates]})
    return {"column": by.name, "slices": slices}
