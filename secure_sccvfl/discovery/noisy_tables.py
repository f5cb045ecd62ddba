"""Noisy contingency tables of s as the owners of the columns hold them, and their release."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from secure_sccvfl.data.groups import Structure
from secure_sccvfl.data.party import Attribute, Party
from secure_sccvfl.discovery.statistics import ClippedSums, GroupSums, Statistics, joint_norm


@dataclass(frozen=True)
class NoisyTables:
    """Noisy tables of one protected attribute, averaged over releases, and the noise still in them.

    `records` names the records they are about. `structure`: of the groups.
    """

    attribute: str
    tables: Mapping[str, np.ndarray]
    deviation: float
    releases: int = 1
    records: str = ""
    structure: Structure = ()

    def merged(self, newer: NoisyTables, decay: float = 1.0) -> NoisyTables:
        """Inverse-variance average; older tables of other records count `decay` times as much."""
        if self.deviation == 0 or newer.deviation == 0:
            return newer
        weight = 1.0 if self.records == newer.records else decay
        a, b = weight * self.deviation**-2, newer.deviation**-2
        tables = {k: (a * t + b * newer.tables[k]) / (a + b) for k, t in self.tables.items()}
        deviation = np.hypot(a * self.deviation, b * newer.deviation) / (a + b)
        releases = self.releases + newer.releases
        return replace(newer, tables=tables, deviation=float(deviation), releases=releases)

    def with_marginals(self, parties: Iterable[Party]) -> NoisyTables:
        """The same where every bin sums to its exact count N_k among the records of its owner: less noise.

        T_kg += (N_k - sum_g T_kg) / G for G groups, which leaves 1 - 1/G of the variance. N_k is not differentially
        private in the columns. So this is for what stays at the owner, such as counterfactuals that it shows its own
        people, and for pooled data. Scores, roles and the penalty of a private head follow from the released tables
        alone.
        """
        tables, left = dict(self.tables), 1.0
        for name, counts in (item for party in parties for item in party.bin_counts().items() if item[0] in tables):
            table = tables[name]
            tables[name] = table + (counts - table.sum(axis=1))[:, None] / table.shape[1]
            left = 1 - 1 / table.shape[1]
        return replace(self, tables=tables, deviation=self.deviation * left**0.5)


def shuffled(noisy: NoisyTables, rng: np.random.Generator) -> NoisyTables:
    """Party step, local: tables as if s were permuted over the records, with noise of the same size.

    With s permuted, a table follows from the frequency of each bin and the sizes of groups. Its released
    noisy table shows both, so the owner draws groups of these sizes itself: nothing is opened and nothing charged.
    Own records are not read: what is evaluated with these tables is charged to test records only.
    """
    if not noisy.tables:
        return noisy
    sizes = np.clip(np.mean([table.sum(axis=0) for table in noisy.tables.values()], axis=0), 0.0, None)
    share = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(sizes), 1 / len(sizes))
    tables = {}
    for name, table in noisy.tables.items():
        left = np.rint(np.clip(table.sum(axis=1), 0.0, None)).astype(np.int64)
        ends = np.rint(np.cumsum(share) * left.sum()).astype(np.int64)
        drawn = np.zeros(table.shape)
        for group, count in enumerate(np.diff(ends, prepend=0)):
            drawn[:, group] = rng.multivariate_hypergeometric(left, count)
            left = left - drawn[:, group].astype(np.int64)
        tables[name] = drawn + rng.normal(0.0, noisy.deviation, table.shape)
    return replace(noisy, tables=tables)


def release_tables(
    statistics: Statistics,
    parties: Sequence[Party],
    protected: Sequence[Attribute],
    name: str,
    features: int,
    records: str = "",
    clip: float | None = None,
    tabled: Collection[str] = (),
) -> tuple[NoisyTables, ...]:
    """One release of the tables of features with all protected attributes; each goes to its owner.

    A record counts in one cell of each table, so the joint l2 sensitivity is sqrt(features x attributes).
    `features` counts those of all parties; `parties` are the ones of this process. `clip`: the length to which
    tables are scaled before noise is added, if they are; the result has them scaled back by a public number.
    `tabled`: the features of all parties that the release is about, if it is not about all; then these count.
    """
    bins = {k: block for party in parties for k, block in party.bins().items() if not tabled or k in tabled}
    sensitivity = joint_norm(1.0, len(tabled) or features, len(protected))
    counts, codes = [len(a.groups) for a in protected], [a.codes for a in protected]
    if clip is None:
        tables = statistics.release(GroupSums(name, sensitivity, tuple(tabled) or None), bins, codes, counts).tables
        deviation = statistics.deviation(sensitivity)
    else:
        released = statistics.release(ClippedSums(name, clip), bins, codes, counts)
        scale = released.numbers["counts"]
        deviation = released.numbers["deviation"] * scale
        tables = tuple({k: v * scale for k, v in part.items()} for part in released.tables)
    return tuple(
        NoisyTables(a.name, attribute_tables, deviation, records=records, structure=a.structure)
        for a, attribute_tables in zip(protected, tables, strict=True)
    )
