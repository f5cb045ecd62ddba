"""The Statistics seam under MPC: one instance per party process.

| step | who holds what before | what each learns |
|---|---|---|
| `group_sums` | owners: columns; holders: groups | an owner: the noisy sums of its own columns |
| `clipped_sums` | the same | an owner: the noisy tables of its own columns, each scaled to a public length |
| `residual_dependence` | owners: kernel features; holders: groups | an owner: one noisy number per own feature |
| `projected` | the noisy sums, still shared | all: the default score of each feature (`projected.py`) |
| `publish` | an owner: other scores that follow from the above | all: these scores |

Every secret value is a CrypTen tensor. A table is the owners' columns times the one-hot groups of their holder:
`features.group_sums(member, bound)`, which is X^T S. Its noise is a tensor too, which is added before the opening.

The noise-free table stays a shared tensor. So a refresh on the same data costs noise and an opening, no product. An
owner notices changed data, and these are multiplied anew. Each party checks its own inputs. The parties tell each
other whether all inputs are valid before anything is charged. A release is charged before its noise is drawn
(`Charger`). The charge matches the noise: both read the event.

Where records overlap in secret (`presence`), a sum is over those that all parties have. Before the first of them the
number of these records is opened with much noise, which costs little (`first count`). Too few stop all: the parties
have paid for that number alone. The first noisy tables of bins then tell the number better, for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from math import ceil, inf, log2
from typing import Any

import numpy as np

from accounting.events import Event, Sensitivity
from protocols.alignment.presence import Presence
from protocols.alignment.seam import AlignmentError
from protocols.errors import RangeError
from protocols.operations import noise
from protocols.records.releases import Receipt
from protocols.ring import FRACTION_BITS, WIDE_BITS
from protocols.session.runtime import Session, crypten
from protocols.steps.clipping import clip, divided
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.discovery.hsic import Grid
from secure_sccvfl.discovery.inputs import (
    as_sensitivity,
    check_columns,
    check_groups,
    clipped_sensitivity,
    clipping_of,
    row_bound,
)
from secure_sccvfl.discovery.projected import shares
from secure_sccvfl.discovery.statistics import Arrays, Clipped, Counts, Groups, Opened, Tables, Widths
from secure_sccvfl.releases.catalogue import FIRST_COUNT, GROUP_SIZES, HSIC, PRESENT, Columns, Kind, owner_title
from secure_sccvfl.releases.charging import Charger

REFUSED, NEW, KNOWN = range(3)
FEWEST, SURE = 20, 4.0
"""A noisy number of common records below the first, or so many of its deviations, stops a run."""
Secret = Any
"""A CrypTen tensor."""
ONE_RECORD = Sensitivity(replaced=1.0, added=1.0)
"""What a record moves in a number of records."""
_CHUNK = 1 << 14
_LIFTED, _SHARE_BITS = 4, FRACTION_BITS
"""Fractional bits of lifted tables, and of the shares of groups that are projected out."""
_LARGEST = 2.0**61
"""Of whole numbers that are summed, and of their sums."""
_ROOM, _FINE = 29, 12
"""Bits of a sum of counts that are squared at most, with the fractional bits that they have where they are few."""


class SecureStatistics:
    """One party's part in every statistic of s of one run, about one set of records."""

    def __init__(
        self,
        session: Session,
        columns: Columns,
        holders: Sequence[int],
        rows: int,
        charger: Charger,
        presence: Presence | None = None,
    ) -> None:
        charger.check(rows)
        self._presence = presence
        self._session, self._columns, self._holders = session, columns, tuple(holders)
        self._rows, self._charger = rows, charger
        self._tables: dict[object, tuple[bytes, Secret]] = {}
        self._scaled: tuple[Secret, Secret] | None = None
        self._noisy: dict[int, tuple[int, Secret]] = {}

    def deviation(self, sensitivity: float | Sensitivity) -> float:
        """Standard deviation of all copies of noise in a release; a number: to which a record adds at most this."""
        return self._charger.deviation(as_sensitivity(sensitivity))

    def group_sums(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str, sensitivity: float, widths: Widths = None
    ) -> Tables:
        """Noisy sums of whole-number columns by group, at their owner; see `Statistics.group_sums`.

        `widths`: the features of this release and their columns, where they are not the bins of all.
        """
        layout = self._layout(widths)
        bound = row_bound(sensitivity, sum(len(own) for own in layout.values()), len(counts))
        room = self._rows * bound + 12 * self.deviation(sensitivity)
        if room >= 2**62:
            raise RangeError(f"{name}: sums up to {room:.2g} do not fit the ring")
        own = self._own(layout, columns)
        table = self._table(name, layout, own, groups, counts, room, lambda: check_columns(own, self._rows, bound))
        moved = Sensitivity.of_counts(sensitivity)
        if self._presence is not None and not self._presence.known:
            self._charger.ask(name, moved)  # for nothing, if the ledger refuses what comes after it
            self.first_count(self._presence)
        paid = self._charger.charge(name, moved)
        noisy = table + self._noise(paid.event, 1.0, len(table), self._spread(counts))
        if self._presence is not None and (widths is None or isinstance(widths, tuple)):
            self._count(self._presence, noisy, layout, counts, self.deviation(sensitivity))
        if widths is None or isinstance(widths, tuple):
            many, before = self._noisy.get(len(noisy), (0, 0))
            self._noisy = {len(noisy): (many + 1, noisy + before)}
        opened = self._open(paid.receipt, layout, noisy)
        return self._apart(None if opened is None else opened.astype(float), own, counts)

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> dict[str, int]:
        return {k: width for own in self._layout(tabled or None).values() for k, width in own.items()}

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        """Seven rounds (`projected.py`); see `Statistics.projected`.

        The tables are those that were opened to their owners, as shares with all their noise. A run that resumes, or
        uses kept tables, has no shares of them any more: there each owner brings its own as it was opened to it.
        """
        session, features = self._session, self.bins(tables, tabled)
        spread = 12 * self.deviation(float(np.sqrt(len(features) * len(counts)))) * sum(counts)
        room = ceil(log2(2 * releases * (self._rows + spread)))  # bits of a row's sum, in halves
        if room > _ROOM:
            raise RangeError("tables of so many records cannot be squared: choose another score")
        every = self._summed(tables, releases, counts, self._layout(tabled or None))
        rows = [slice(low, high) for low, high in pairwise(np.cumsum([0, *features.values()]).tolist())]
        parts = [slice(a, b) for a, b in pairwise(np.cumsum([0, *counts]).tolist())]
        some = min(len(rows), 1 << (_ROOM - room))  # tables whose sum is in range; all have the same groups
        summed = session.open(every[: rows[some - 1].stop].sum(0), session.declared(GROUP_SIZES.name))
        if summed is None:
            raise DataError("the sizes of groups must go to every party")
        unit = 2 * releases  # in which the shares are
        sizes = summed.numpy().astype(float) / (unit * some)
        with session.measure("hsic"):
            cleared = every.rescale(_LIFTED) @ _projection([sizes[part] for part in parts])
            whole = cleared.rescale(min(_FINE, _ROOM - room))
            squares, places = whole.square(), [*parts, slice(sum(counts), sum(counts) + 1)]
            sums = crypten.stack([squares[row, place].sum() for row in rows for place in places])
            opened = session.open(sums.reshape(len(rows), len(places)), session.declared(HSIC.name))
        if opened is None:
            raise DataError("scores must go to every party")
        found = opened.numpy().astype(float) / unit**2
        *squared, marginals = (dict(zip(features, column.tolist(), strict=True)) for column in found.T)
        return tuple(Opened(own, marginals, sizes[part]) for own, part in zip(squared, parts, strict=True))

    def _summed(self, tables: Tables, releases: int, counts: Counts, layout: Columns) -> Secret:
        """Twice the sum of the noisy tables of all releases."""
        session, rows = self._session, sum(sum(own.values()) for own in layout.values())
        many, summed = self._noisy.get(rows, (0, None))
        if many != releases:
            blocks = []
            for rank in sorted(layout):
                shape = (sum(layout[rank].values()), sum(counts))
                mine = (
                    [np.hstack([part[k] for part in tables]) * releases for k in layout[rank]]
                    if rank == session.rank
                    else []
                )
                own = np.vstack(mine) if mine else np.zeros(shape)
                blocks.append(session.own(own, owner=rank, shape=shape, bits=0))
            summed = crypten.cat(blocks) + session.zeros((rows, sum(counts)), 0)
        return summed.rescale(WIDE_BITS).with_fraction(WIDE_BITS - 1)

    def first_count(self, presence: Presence) -> float:
        """Pay a little for how many records all parties have, and stop if they are too few to pay more for.

        Returns the noisy number, which all parties learn.
        """
        paid = self._charger.charge(FIRST_COUNT.charged_as(), ONE_RECORD)
        holders = set(self._holders)
        total = presence.marks(self._session).sum().reshape(1) + self._noise(paid.event, 1.0, 1, [holders])[0]
        error = noise.deviation(self._charger.noise, paid.event.sigma, self._session.parties, len(holders))
        return self._enough(total, FIRST_COUNT, 1, error, paid.receipt)

    def _count(
        self, presence: Presence, noisy: Secret, layout: Columns, counts: Sequence[int], deviation: float
    ) -> None:
        """Open how many records all parties have, once, as far as noisy tables of bins tell: each counts all of them.

        It follows from the tables, which are paid for. All stop if there are too few, before a table is opened.
        """
        if presence.known:
            return
        tables = sum(len(own) for own in layout.values()) * len(counts)
        error = deviation * noisy.nelement() ** 0.5 / tables
        presence.told(round(self._enough(noisy.sum().reshape(1), PRESENT, tables, error)))

    def _enough(self, total: Secret, kind: Kind, each: int, error: float, receipt: Receipt | None = None) -> float:
        """Open a noisy number of records, of which each counts so often; all stop if there are too few."""
        told = self._session.open(total, self._session.declared(kind.name), receipt)
        if told is None:
            raise DataError("the number of records must go to every party")
        found = float(told[0]) / each
        if found < max(FEWEST, SURE * error):
            raise AlignmentError(
                f"about {max(0, round(found))} records are common to all parties, give or take {round(2 * error)}: "
                f"too few to go on; are the ids written alike, by the same rule?"
            )
        return found

    def clipped_sums(self, columns: Arrays, groups: Groups, counts: Counts, name: str, length: float) -> Clipped:
        """Noisy tables of one-hot columns, each scaled under MPC (`protocols.steps.clipping`), at their owner."""
        self._refuse("tables that are scaled in secret")
        layout = self._layout(None)
        widths = [width for own in layout.values() for width in own.values()]
        clipping = clipping_of(widths, counts, self._rows, length)
        moved = clipped_sensitivity(clipping, len(widths))
        deviation = self._charger.deviation(moved)
        if 12 * deviation / clipping.unit >= 2**61:
            raise RangeError(f"{name}: noise beyond the ring; scale to a larger length")
        own = self._own(layout, columns)
        table = self._table(name, layout, own, groups, counts, inf, lambda: check_columns(own, self._rows, 1.0))
        if self._scaled is None or self._scaled[0] is not table:
            with self._session.measure("clipping"):
                self._scaled = (table, clip(self._session, table, widths, clipping))
        paid = self._charger.charge(name, moved, mechanism="paper")
        noise = self._noise(paid.event, clipping.unit, len(table), self._spread(counts))
        opened = self._open(paid.receipt, layout, self._scaled[1] + noise)
        tables = self._apart(None if opened is None else opened * clipping.unit, own, counts)
        return Clipped(tables, deviation, clipping.typical / length)

    def _apart(
        self, values: np.ndarray | None, own: Mapping[str, np.ndarray], counts: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], ...]:
        """Own rows by feature, for each attribute; nothing for a party without features."""
        if values is None:
            return tuple({} for _ in counts)
        rows = np.cumsum([0, *(block.shape[1] for block in own.values())])
        return tuple(
            {k: values[low:high, a:b] for k, (low, high) in zip(own, pairwise(rows), strict=True)}
            for a, b in pairwise(np.cumsum([0, *counts]))
        )

    def residual_dependence(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str
    ) -> tuple[dict[str, float], ...]:
        """Noisy HSIC of each feature's kernel features with each attribute; see `secure_sccvfl.discovery.hsic`."""
        self._refuse("conditional scores")
        grid = Grid(self._rows)
        width = next(iter(columns.values())).shape[1]
        layout = self._layout(width)
        own = self._own(layout, columns)
        features = sum(len(part) for part in layout.values())
        sensitivity = grid.joint(width, counts, features)
        scale = grid.unit**2
        if 12 * self._charger.deviation(sensitivity) / scale >= 2**61:
            raise RangeError(f"{name}: so few records need noise beyond the ring; leave this statistic out")
        centred = {k: grid.centred(grid.features(v)) for k, v in own.items() if np.isfinite(v).all()}
        table = self._table(
            name, layout, centred, groups, counts, inf, lambda: check_columns(own, self._rows, 1.0, whole=False)
        )
        blocks = [slice(low, low + width) for low in range(0, width * features, width)]
        parts = [slice(a, b) for a, b in pairwise(np.cumsum([0, *counts]))]
        pieces = [(rows, part) for rows in blocks for part in parts]
        squares = divided(table, grid.divisor).square()
        norms = crypten.stack([squares[piece].sum() for piece in pieces])
        paid = self._charger.charge(name, sensitivity)
        noisy = norms.reshape(features, len(counts)) + self._noise(
            paid.event, scale, features, self._spread([1] * len(counts))
        )
        opened = self._open(paid.receipt, {rank: dict.fromkeys(part, 1) for rank, part in layout.items()}, noisy)
        if opened is None:
            return tuple({} for _ in counts)
        return tuple(dict(zip(own, (opened[:, j] * scale).tolist(), strict=True)) for j in range(len(counts)))

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        """Numbers about own features to all, and those of all."""
        return self._session.announce(values, self._session.declared(name))

    def _refuse(self, what: str) -> None:
        if self._presence is not None:
            raise DataError(f"{what} need the exact number of records, which is secret here")

    def _layout(self, widths: Widths) -> dict[int, dict[str, int]]:
        if widths is None:
            return {rank: dict(own) for rank, own in self._columns.items()}
        if isinstance(widths, tuple):
            return {rank: {k: v for k, v in own.items() if k in widths} for rank, own in self._columns.items()}
        if isinstance(widths, int):
            return {rank: dict.fromkeys(own, widths) for rank, own in self._columns.items()}
        return {rank: {k: widths[k] for k in own if k in widths} for rank, own in self._columns.items()}

    def _own(self, layout: Columns, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Own columns in the agreed order. Names and widths are public: a difference is a programming error."""
        agreed = layout[self._session.rank]
        if {k: v.shape[1] for k, v in columns.items()} != dict(agreed):
            raise DataError(f"party {self._session.rank}: columns differ from the public ones {dict(agreed)}")
        return {k: columns[k] for k in agreed}

    def _spread(self, counts: Sequence[int]) -> list[tuple[int]]:
        """The holder of each column of a table."""
        return [(holder,) for holder, count in zip(self._holders, counts, strict=True) for _ in range(count)]

    def _table(
        self,
        name: str,
        layout: Columns,
        own: Mapping[str, np.ndarray],
        groups: Sequence[AtHolder],
        counts: Sequence[int],
        room: float,
        check: Callable[[], None],
    ) -> Secret:
        """The noise-free table, made anew only if some party's data changed. room: the largest noisy sum."""
        held = [j for j, holder in enumerate(self._holders) if holder == self._session.rank]
        key = (tuple((rank, tuple(part.items())) for rank, part in layout.items()), tuple(counts), room >= 2**30)
        error: DataError | None = None
        digest = b""
        try:
            check()
            codes = {j: check_groups(groups[j], counts[j], self._rows) for j in held}
            digest = _digest([*own.values(), *codes.values()])
        except DataError as problem:
            error = problem
        known = key in self._tables and self._tables[key][0] == digest
        state = REFUSED if error else KNOWN if known else NEW
        states = self._session.tell_all("statistic input", state)
        if error is not None:
            raise error
        if REFUSED in states:
            raise DataError(f"{name}: party {states.index(REFUSED)} refused its own input; nothing was charged")
        if NEW in states:
            with self._session.measure("group table"):
                make = self._multiply if self._presence is None else self._multiply_present
                self._tables[key] = (digest, make(layout, own, codes, counts, room))
        return self._tables[key][1]

    def _features(self, layout: Columns, own: Mapping[str, np.ndarray], rows: slice) -> Secret:
        """The columns of all parties, each known to its owner."""
        session, count, blocks = self._session, rows.stop - rows.start, []
        for rank in range(session.parties):
            for name, width in layout.get(rank, {}).items() or [("", 0)]:
                values = _whole(own[name][rows]) if rank == session.rank and name else np.zeros((count, 0), np.int8)
                blocks.append(session.own(values, owner=rank, shape=(count, width), bits=0, limit=_LARGEST))
        return crypten.cat(blocks, dim=1)

    def _members(self, codes: Mapping[int, np.ndarray], counts: Sequence[int], of: Sequence[int]) -> Secret:
        """The one-hot groups of these attributes side by side, each known to its holder."""
        session = self._session
        blocks = []
        for j in of:
            one = one_hot(codes[j], counts[j], np.int8) if j in codes else None
            blocks.append(session.own(one, owner=self._holders[j], shape=(self._rows, counts[j]), bits=0))
        return crypten.cat(blocks, dim=1)

    def _multiply(
        self,
        layout: Columns,
        own: Mapping[str, np.ndarray],
        codes: Mapping[int, np.ndarray],
        counts: Sequence[int],
        room: float,
    ) -> Secret:
        """One product for each holder, all of its attributes at once; columns in order of the attributes."""
        features = self._features(layout, own, slice(0, self._rows))
        found: dict[int, Secret] = {}
        for holder in sorted(set(self._holders)):
            held = [j for j, rank in enumerate(self._holders) if rank == holder]
            made = features.group_sums(self._members(codes, counts, held), bound=min(room, _LARGEST))
            for j, (low, high) in zip(
                held, pairwise(np.cumsum([0, *(counts[j] for j in held)]).tolist()), strict=True
            ):
                found[j] = made[:, low:high]
        return crypten.cat([found[j] for j in range(len(counts))], dim=1)

    def _multiply_present(
        self,
        layout: Columns,
        own: Mapping[str, np.ndarray],
        codes: Mapping[int, np.ndarray],
        counts: Sequence[int],
        room: float,
    ) -> Secret:
        """The same over the records that all parties have; the holders' one-hots are weighted under MPC first.

        For each chunk of rows one round to put columns under masks of their owners, and one for the product.
        """
        session, presence = self._session, self._presence
        if presence is None:
            raise DataError("no party knows which records are common")
        members = self._members(codes, counts, range(len(counts)))
        groups = presence.kept(session, members + session.zeros((self._rows, sum(counts)), 0))
        table: Secret = 0
        for at in range(0, self._rows, _CHUNK):
            rows = slice(at, min(at + _CHUNK, self._rows))
            pinned = self._features(layout, own, rows).pinned()
            table = pinned.t() @ groups[rows] + table
            session.forget(pinned)
        return table

    def _noise(self, event: Event, unit: float, rows: int, holders: Sequence[Collection[int]]) -> Secret:
        """Copies of noise, each of the event's sigma, counted in `unit`s."""
        return self._session.noise_table(self._charger.noise, event.sigma / unit, rows, holders, 0)

    def _open(self, receipt: Receipt, layout: Columns, noisy: Secret) -> np.ndarray | None:
        """Open each owner's rows to that owner alone, in the same two rounds; None for a party without any."""
        pairs, low = [], 0
        for rank, own in layout.items():
            high = low + sum(own.values())
            if high > low:
                pairs.append((noisy[low:high], self._session.declared(owner_title(receipt.event, rank))))
            low = high
        opened = [one for one in self._session.open_each(pairs, receipt) if one is not None]
        return opened[0].numpy() if opened else None


def _whole(columns: np.ndarray) -> np.ndarray:
    """Whole numbers in as few bytes as they take."""
    small = columns.size == 0 or (columns.min() >= 0 and columns.max() <= np.iinfo(np.int8).max)
    return columns.astype(np.int8 if small else np.int64)


def _projection(sizes: Sequence[np.ndarray]) -> np.ndarray:
    """I - 1 q^T for the groups of each attribute, side by side, and a last column that sums those of the first.

    q has _SHARE_BITS, so that a product is exact. Nothing that is asked of the dealer follows from it.
    """
    counts = [len(one) for one in sizes]
    made = np.zeros((sum(counts), sum(counts) + 1))
    for (low, high), one in zip(pairwise(np.cumsum([0, *counts]).tolist()), sizes, strict=True):
        made[low:high, low:high] = np.eye(high - low) - np.rint(shares(one) * 2**_SHARE_BITS) / 2**_SHARE_BITS
    made[: counts[0], -1] = 1.0
    return made


def _digest(arrays: Sequence[np.ndarray]) -> bytes:
    """Stands for a party's own data, to notice that they changed; never sent."""
    digest = hashlib.blake2b()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
