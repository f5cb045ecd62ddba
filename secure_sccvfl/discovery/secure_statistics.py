"""The secure engine for statistics of s: one instance per party process.

| step | who holds what before | what each learns |
|---|---|---|
| `release` | owners: columns; holders: groups | an owner: the noisy results of its own features |
| `projected` | the noisy sums, still shared | all: the default score of each feature (`scores.py`) |
| `publish` | an owner: other scores that follow from the above | all: these scores |

Every secret value is a CrypTen tensor. A table is the owners' columns times the one-hot groups of their holder:
`features.group_sums(member, bound)`, which is X^T S. Its noise is a tensor too, which is added before the opening.

The noise-free table stays a shared tensor, so a repeated release about the same data costs noise and an opening, no
product. An owner notices changed data, and these are multiplied again. Each party checks its own inputs, and the
parties announce whether all inputs are valid before anything is charged. A release is charged before its noise is
drawn (`Charger`), and both the charge and the noise read the same event.

With hidden alignment (`membership`), a sum is over the records that all parties have. Before the first release the
number of these records is opened with much noise, at a small cost (`first count`). If there are too few, all parties
abort and have been charged for that number only. The first noisy tables of bins then give a better number at no cost.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2
from typing import Any

import numpy as np

from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.discovery.cached_releases import COMMON, CachedRelease, CachedReleases, Keep
from secure_sccvfl.discovery.scores import Opened, shares
from secure_sccvfl.discovery.statistics import (
    Arrays,
    Counts,
    Groups,
    GroupSums,
    Released,
    Secret,
    Shape,
    Statistic,
    Tables,
    as_sensitivity,
    check_groups,
    column_slices,
    open_to_all,
)
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.alignment.interface import AlignmentError
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.records.releases import Receipt
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS
from secure_sccvfl.protocols.session.rows import RowSource, part_of
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.releases.catalogue import FIRST_COUNT, GROUP_SIZES, HSIC, PRESENT, Columns, Kind, owner_title
from secure_sccvfl.releases.charging import Charger

REFUSED, NEW, KNOWN = range(3)
FEWEST, SURE = 20, 4.0
"""A noisy number of common records below the first, or so many of its deviations, stops a run."""
ONE_RECORD = Sensitivity(replaced=1.0, added=1.0)
"""What a record moves in a number of records."""
_CHUNK = 1 << 14
_LIFTED, _SHARE_BITS = 4, FRACTION_BITS
"""Fractional bits of lifted tables, and of the shares of groups that are projected out."""
_LARGEST = 2.0**61
"""Of whole numbers that are summed, and of their sums."""
_SUM_BITS, _FINE = 29, 12
"""Bits of a sum of counts that are squared at most, with the fractional bits that they have where they are few."""


class SecureStatistics:
    """One party's steps in every statistic of s of one run, about one set of records."""

    def __init__(
        self,
        session: Session,
        columns: Columns,
        holders: Sequence[int],
        rows: int,
        charger: Charger,
        membership: MembershipMask | None = None,
        *,
        keep: Keep | None = None,
        cached: CachedReleases | None = None,
    ) -> None:
        """keep: called with what was opened. cached: releases to answer from; then nothing is opened or charged."""
        charger.check(rows)
        self._membership, self._keep, self._cached = membership, keep, cached
        self._session, self._columns, self._holders = session, columns, tuple(holders)
        self._rows, self._charger = rows, charger
        self._tables: dict[object, tuple[bytes, Secret]] = {}
        self._derived: tuple[Statistic, Secret, Secret] | None = None
        self._noisy: dict[int, tuple[int, Secret]] = {}

    def deviation(self, sensitivity: float | Sensitivity) -> float:
        """Standard deviation of all noise contributions in a release; a number: the norm of counts."""
        return self._charger.deviation(as_sensitivity(sensitivity))

    def release(self, statistic: Statistic, columns: Arrays, groups: Groups, counts: Counts) -> Released:
        """Check, multiply, charge, add noise and open each owner's rows to that owner; see `Statistics.release`."""
        name, membership = statistic.name, self._membership
        if self._cached is not None:
            return self._cached.released(statistic)
        if membership is not None and statistic.refused_hidden:
            raise DataError(f"{statistic.refused_hidden} need the exact number of records, which is secret here")
        layout = statistic.layout(self._columns)
        shape = Shape(self._rows, [width for widths in layout.values() for width in widths.values()], counts)
        moved, unit = statistic.sensitivity(shape), statistic.unit(shape)
        largest = statistic.largest(shape) + 12 * self.deviation(moved) / unit
        if largest >= 2**62:
            raise RangeError(f"{name}: sums of {largest:.2g} do not fit the ring; use more records, or leave it out")
        table = self._table(statistic, layout, columns, groups, shape, largest)
        exact = self._results(statistic, table, shape)
        if membership is not None and not membership.has_noisy_count:
            event = self._charger.event(name, moved)
            self._charger.ask(event)  # for nothing, if the ledger refuses what comes after it
            self.first_count(membership)
        paid = self._charger.charge(name, moved, mechanism=statistic.mechanism)
        layout, counts = statistic.results(layout, counts)
        holders = [(holder,) for holder, count in zip(self._holders, counts, strict=True) for _ in range(count)]
        noisy = exact + self._noise(paid.event, unit, len(exact), holders)
        if statistic.counts_records:
            if membership is not None:
                self._count(membership, noisy, layout, counts, self.deviation(moved))
            many, before = self._noisy.get(len(noisy), (0, 0))
            self._noisy = {len(noisy): (many + 1, noisy + before)}
        opened, party_widths = self._open(paid.receipt, layout, noisy, unit), layout[self._session.rank]
        rows = dict(zip(party_widths, column_slices(party_widths.values()), strict=True))
        tables = tuple({k: opened[rows[k], part] for k in party_widths} for part in column_slices(counts))
        numbers = statistic.numbers(shape, self.deviation(moved))
        if self._keep is not None:
            common = {} if membership is None else {COMMON: membership.count}
            release = CachedRelease(paid.receipt.charge, paid.event, tables, statistic.features, numbers | common)
            self._keep(name, release)
        return Released(tables, numbers)

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> dict[str, int]:
        return {k: width for party_widths in self._layout(tabled).values() for k, width in party_widths.items()}

    def _layout(self, tabled: tuple[str, ...]) -> Columns:
        return GroupSums("", 1.0, tabled or None).layout(self._columns)

    def _results(self, statistic: Statistic, table: Secret, shape: Shape) -> Secret:
        """The results of a table without noise; repeated releases of the same table compute them once."""
        kind = replace(statistic, name="")
        if self._derived is None or self._derived[0] != kind or self._derived[1] is not table:
            self._derived = (kind, table, statistic.of_table(self._session, table, shape))
        return self._derived[2]

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        """Seven rounds (`scores.py`); see `Statistics.projected`.

        The tables are those opened to their owners, as shares with all their noise. A run that resumes, or
        uses cached releases, no longer has shares of them: each owner shares its own as it was opened to it.
        """
        session, features = self._session, self.bins(tables, tabled)
        spread = 12 * self.deviation(float(np.sqrt(len(features) * len(counts)))) * sum(counts)
        sum_bits = ceil(log2(2 * releases * (self._rows + spread)))  # bits of a row's sum, in halves
        if sum_bits > _SUM_BITS:
            raise RangeError("tables of this many records cannot be squared: choose another score")
        every = self._summed(tables, releases, counts, self._layout(tabled))
        rows, parts = column_slices(features.values()), column_slices(counts)
        some = min(len(rows), 1 << (_SUM_BITS - sum_bits))  # tables whose sum is in range; all have the same groups
        unit = 2 * releases  # in which the shares are
        sizes = open_to_all(session, every[: rows[some - 1].stop].sum(0), GROUP_SIZES.name) / (unit * some)
        with session.measure("hsic"):
            cleared = every.rescale(_LIFTED) @ _projection([sizes[part] for part in parts])
            whole = cleared.rescale(min(_FINE, _SUM_BITS - sum_bits))
            squares, pieces = whole.square(), [*parts, slice(sum(counts), sum(counts) + 1)]
            sums = crypten.stack([squares[row, piece].sum() for row in rows for piece in pieces])
            values = open_to_all(session, sums.reshape(len(rows), len(pieces)), HSIC.name) / unit**2
        *squared, marginals = (dict(zip(features, column.tolist(), strict=True)) for column in values.T)
        return tuple(Opened(values, marginals, sizes[part]) for values, part in zip(squared, parts, strict=True))

    def _summed(self, tables: Tables, releases: int, counts: Counts, layout: Columns) -> Secret:
        """Twice the sum of the noisy tables of all releases."""
        session, rows = self._session, sum(sum(widths.values()) for widths in layout.values())
        many, summed = self._noisy.get(rows, (0, None))
        if many != releases:
            blocks = []
            for rank in sorted(layout):
                shape = (sum(layout[rank].values()), sum(counts))
                names = layout[rank] if rank == session.rank else ()
                mine = [np.hstack([part[k] for part in tables]) * releases for k in names]
                local_rows = np.vstack(mine) if mine else np.zeros(shape)
                blocks.append(session.owned(local_rows, owner=rank, shape=shape, bits=0))
            summed = crypten.cat(blocks) + session.zeros((rows, sum(counts)), 0)
        return summed.rescale(WIDE_BITS).with_fraction(WIDE_BITS - 1)

    def first_count(self, membership: MembershipMask) -> float:
        """Open the number of common records with much noise, for a small charge; abort if it is too small.

        Returns the noisy number, which all parties learn.
        """
        paid = self._charger.charge(FIRST_COUNT.charged_as(), ONE_RECORD)
        holders = set(self._holders)
        total = membership.tensor(self._session).sum().reshape(1) + self._noise(paid.event, 1.0, 1, [holders])[0]
        error = noise.deviation(self._charger.noise, paid.event.sigma, self._session.parties, len(holders))
        return self._enough(total, FIRST_COUNT, 1, error, paid.receipt)

    def _count(
        self, membership: MembershipMask, noisy: Secret, layout: Columns, counts: Sequence[int], deviation: float
    ) -> None:
        """Open once the number of common records by the noisy tables of bins: each counts all of them.

        It follows from the tables, which are paid for. All abort if there are too few, before a table is opened.
        """
        if membership.has_noisy_count:
            return
        tables = sum(len(party_widths) for party_widths in layout.values()) * len(counts)
        error = deviation * noisy.nelement() ** 0.5 / tables
        membership.set_count(round(self._enough(noisy.sum().reshape(1), PRESENT, tables, error)))

    def _enough(self, total: Secret, kind: Kind, each: int, error: float, receipt: Receipt | None = None) -> float:
        """Open a noisy number of records, each counted this often; all abort if there are too few."""
        number = float(open_to_all(self._session, total, kind.name, receipt)[0]) / each
        if number < max(FEWEST, SURE * error):
            raise AlignmentError(
                f"about {max(0, round(number))} records are common to all parties, give or take {round(2 * error)}: "
                f"too few to go on; are the ids written by the same rule?"
            )
        return number

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        return self._session.announce(values, self._session.declared(name))

    def _table(
        self, statistic: Statistic, layout: Columns, columns: Arrays, groups: Groups, shape: Shape, largest: float
    ) -> Secret:
        """The noise-free table, multiplied again only if some party's data changed. largest: bound on a noisy sum."""
        session, counts = self._session, shape.counts
        agreed = dict(layout[session.rank])
        if {k: v.shape[1] for k, v in columns.items()} != agreed:  # public, so this is a programming error
            raise DataError(f"party {session.rank}: columns differ from the public ones {agreed}")
        held = [j for j, holder in enumerate(self._holders) if holder == session.rank]
        key = (tuple((rank, tuple(part.items())) for rank, part in layout.items()), tuple(counts), largest >= 2**30)
        error: DataError | None = None
        digest = b""
        try:
            whole = statistic.whole({k: columns[k] for k in agreed}, shape)
            codes = {j: check_groups(groups[j], counts[j], self._rows) for j in held}
            digest = _digest([*whole.values(), *codes.values()])
        except DataError as problem:
            error = problem
        unchanged = key in self._tables and self._tables[key][0] == digest
        states = session.tell_all("statistic input", REFUSED if error else KNOWN if unchanged else NEW)
        if error is not None:
            raise error
        if REFUSED in states:
            name, refusing = statistic.name, states.index(REFUSED)
            raise DataError(f"{name}: party {refusing} refused its own input; nothing was charged")
        if NEW in states:
            with session.measure("group table"):
                multiply = self._multiply if self._membership is None else self._multiply_present
                if session.active:
                    if not statistic.counts_records or self._membership is not None:
                        raise DataError(f"{statistic.name}: active security covers tables of bins of aligned records")
                    multiply = self._multiply_committed
                self._tables[key] = (digest, multiply(layout, whole, codes, counts, largest))
        return self._tables[key][1]

    def _features(self, layout: Columns, local_columns: Arrays, rows: slice) -> Secret:
        """The columns of all parties, each known to its owner."""
        session, count, blocks = self._session, rows.stop - rows.start, []
        for rank in range(session.parties):
            for name, width in layout.get(rank, {}).items() or [("", 0)]:
                values = np.zeros((count, 0), np.int8)
                if rank == session.rank and name:
                    values = _whole(part_of(local_columns[name], rows.start, rows.stop))
                blocks.append(session.tall.owned(values, owner=rank, shape=(count, width), bits=0, limit=_LARGEST))
        return crypten.cat(blocks, dim=1)

    def _members(
        self, codes: Mapping[int, np.ndarray], counts: Sequence[int], of: Sequence[int], rows: slice
    ) -> Secret:
        """The one-hot groups of these attributes side by side, each known to its holder."""
        session = self._session
        blocks = []
        for j in of:
            one = one_hot(codes[j][rows], counts[j], np.int8) if j in codes else None
            shape = (rows.stop - rows.start, counts[j])
            blocks.append(session.tall.owned(one, owner=self._holders[j], shape=shape, bits=0))
        return crypten.cat(blocks, dim=1)

    def _multiply(
        self, layout: Columns, local_columns: Arrays, codes: Mapping[int, np.ndarray], counts: Counts, largest: float
    ) -> Secret:
        """One product for each holder, all of its attributes at once; columns in order of the attributes."""
        rows = slice(0, self._rows)
        features = self._features(layout, local_columns, rows)
        tables: dict[int, Secret] = {}
        for holder in sorted(set(self._holders)):
            held = [j for j, rank in enumerate(self._holders) if rank == holder]
            sums = features.group_sums(self._members(codes, counts, held, rows), bound=min(largest, _LARGEST))
            for j, part in zip(held, column_slices([counts[j] for j in held]), strict=True):
                tables[j] = sums[:, part]
        return crypten.cat([tables[j] for j in range(len(counts))], dim=1)

    def _multiply_committed(
        self, layout: Columns, local_columns: Arrays, codes: Mapping[int, np.ndarray], counts: Counts, largest: float
    ) -> Secret:
        """The same with active security: of shares that owners have proven to be one-hot rows, each of them once.

        Features that training has committed to before are those of training. Two rounds at most, and one for each
        chunk of rows.
        """
        session = self._session
        names = [(rank, name, width) for rank in sorted(layout) for name, width in layout[rank].items()]
        new = [
            [(name, width) for r, name, width in names if r == rank and (r, name) not in session.committed]
            for rank in range(session.parties)
        ]
        self._commit(new, local_columns)
        groups = [
            [
                (f"s {j}", counts[j])
                for j, holder in enumerate(self._holders)
                if holder == rank and (rank, f"s {j}") not in session.committed
            ]
            for rank in range(session.parties)
        ]
        self._commit(groups, {f"s {j}": one_hot(code, counts[j], np.int64) for j, code in codes.items()})
        features = crypten.cat([session.committed[rank, name] for rank, name, _ in names], dim=1)
        members = crypten.cat([session.committed[holder, f"s {j}"] for j, holder in enumerate(self._holders)], dim=1)
        table: Secret = 0
        for start in range(0, self._rows, _CHUNK):
            table = features[start : start + _CHUNK].t() @ members[start : start + _CHUNK] + table
        return table

    def _commit(self, blocks: Sequence[Sequence[tuple[str, int]]], local: Arrays) -> None:
        """Put one-hot blocks of each party (name and width) under masks and prove their form; one round."""
        if not any(blocks):
            return
        session, of_all = self._session, []
        for some in blocks:
            ends = np.cumsum([0, *(width for _, width in some)]).tolist()
            of_all.append(list(pairwise(ends)))
        own = [_whole(local[name]) for name, _ in blocks[session.rank]]
        bits = np.concatenate(own, axis=1).astype(np.int64) if own else np.zeros((self._rows, 0), np.int64)
        widths = [sum(width for _, width in some) for some in blocks]
        for rank, tensor in enumerate(session.proven_bits(bits, widths, of_all)):
            for (name, _), (low, high) in zip(blocks[rank], of_all[rank], strict=True):
                session.committed[rank, name] = tensor[:, low:high]

    def _multiply_present(
        self, layout: Columns, local_columns: Arrays, codes: Mapping[int, np.ndarray], counts: Counts, largest: float
    ) -> Secret:
        """The same over the records that all parties have; the holders' one-hots are weighted under MPC first.

        For each chunk of rows one round to put columns under masks of their owners, and one for the product.
        """
        session, membership = self._session, self._membership
        if membership is None:
            raise DataError("no party knows which records are common")

        def groups_of(rows: slice) -> Secret:
            members = self._members(codes, counts, range(len(counts)), rows)
            members = members + session.tall.zeros((rows.stop - rows.start, sum(counts)), 0)
            return membership.of_rows(rows).masked(session, members)

        table: Secret = 0
        whole = groups_of(slice(0, self._rows)) if session.shards is None else None
        each = _CHUNK if session.shards is None else _CHUNK * session.shards.count
        for at in range(0, self._rows, each):
            rows = slice(at, min(at + each, self._rows))
            groups = groups_of(rows) if whole is None else whole[rows]
            pinned = self._features(layout, local_columns, rows).pinned()
            table = pinned.t() @ groups + table
            session.forget(pinned)
        return table

    def _noise(self, event: Event, unit: float, rows: int, holders: Sequence[Collection[int]]) -> Secret:
        """Independent noise contributions, each of the event's sigma, counted in `unit`s."""
        return self._session.noise_table(self._charger.noise, event.sigma / unit, rows, holders, 0)

    def _open(self, receipt: Receipt, layout: Columns, noisy: Secret, unit: float) -> np.ndarray:
        """Open each owner's rows to that owner only, in the same two rounds; no rows for a party without any."""
        pairs, low = [], 0
        for rank, party_widths in layout.items():
            high = low + sum(party_widths.values())
            if high > low:
                pairs.append((noisy[low:high], self._session.declared(owner_title(receipt.event, rank))))
            low = high
        opened = [one for one in self._session.open_each(pairs, receipt) if one is not None]
        return opened[0].numpy().astype(float) * unit if opened else np.zeros((0, noisy.size(1)))


def _whole(columns: Any) -> Any:
    """Integers in as few bytes as possible; those that a worker makes take few there."""
    if isinstance(columns, RowSource):
        return columns
    small = columns.size == 0 or (columns.min() >= 0 and columns.max() <= np.iinfo(np.int8).max)
    return columns.astype(np.int8 if small else np.int64)


def _projection(sizes: Sequence[np.ndarray]) -> np.ndarray:
    """I - 1 q^T for the groups of each attribute, side by side, and a last column that sums those of the first.

    q has _SHARE_BITS, so that a product is exact. No request to the dealer depends on it.
    """
    counts = [len(size) for size in sizes]
    projection = np.zeros((sum(counts), sum(counts) + 1))
    for (low, high), size in zip(pairwise(np.cumsum([0, *counts]).tolist()), sizes, strict=True):
        projection[low:high, low:high] = np.eye(high - low) - np.rint(shares(size) * 2**_SHARE_BITS) / 2**_SHARE_BITS
    projection[: counts[0], -1] = 1.0
    return projection


def _digest(arrays: Sequence[Any]) -> bytes:
    digest = hashlib.blake2b()
    for array in arrays:
        if isinstance(array, RowSource):
            digest.update(pickle.dumps(array))
            continue
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
