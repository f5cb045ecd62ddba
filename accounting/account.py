"""What a ledger says: its budget, decisions to raise it, its charges, and the budget that each record has consumed.

A record has consumed the composition of the releases that it was part of. So the costs of overlapping sets add up
where they overlap, and those of disjoint sets do not. One record more or less resets nothing for the others. A
budget is about the record that has consumed most.

A budget is set before the first release. Afterwards only all parties together can raise it (`CapDecision`). Their
decision names the ledger by a hash of its lines, so it fits one ledger of each party (`accounting.ledger.states_of`),
and the old budget, so it counts once. It becomes a line of every party's ledger, with the signatures, which
`secure_sccvfl/releases/caps.py` checks. A decision never lowers a budget: what was released stays released.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from accounting.accountant import Epsilons, Price, epsilon_against_dealer, epsilon_of, epsilons, price_of
from accounting.calibration import check_target
from accounting.events import Event
from accounting.ledger import START, Entry, LedgerError, Sets, states_of
from accounting.records import RecordSet, memberships

VERSION = 2
RAISED = "cap"
"""The kind of the ledger's line."""
Reading = Callable[[Sequence[Event], float], float]
"""An epsilon of events at this delta."""


@dataclass(frozen=True)
class Terms:
    """The budget of every record. It is the first line of the ledger, or the last decision to raise it."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_target(self.epsilon, self.delta)
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))


@dataclass(frozen=True)
class CapDecision:
    """What the parties sign. ledger: the name of its file. head: a hash of its lines. date: as people write it."""

    ledger: str
    before: float
    after: float
    delta: float
    head: str
    reason: str
    date: str

    def __post_init__(self) -> None:
        for name in ("before", "after", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        check_target(self.before, self.delta)
        check_target(self.after, self.delta)
        if self.after <= self.before:
            raise ValueError(f"a cap is only raised: {self.after:g} is not above {self.before:g}")
        if not all(
            isinstance(text, str) and text.strip() for text in (self.ledger, self.head, self.reason, self.date)
        ):
            raise ValueError("a decision on a cap needs the name of its ledger, a head, a reason and a date")

    @property
    def message(self) -> bytes:
        """What is signed."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.message).hexdigest()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CapDecision:
        """From data that have its fields among others; a missing one is a KeyError."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})

    def misfit(self, cap: float, delta: float, heads: Collection[str]) -> str | None:
        """Why the decision is not about a ledger with this budget and these hashes, or None."""
        if self.head not in heads:
            return "is about another ledger, or another state of it"
        if (self.before, self.delta) != (cap, delta):
            return f"raises a cap of {self.before:g} at delta {self.delta:g}; here it is {cap:g} at {delta:g}"
        return None


@dataclass(frozen=True)
class Raised:
    """A decision as a ledger holds it. signed: a certificate (PEM) and a signature for each party's place."""

    decision: CapDecision
    signed: Mapping[str, Mapping[str, str]]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.decision), "signed": {place: dict(one) for place, one in sorted(self.signed.items())}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Raised:
        signed = {
            str(place): {"certificate": str(one["certificate"]), "signature": str(one["signature"])}
            for place, one in data["signed"].items()
        }
        return cls(CapDecision.from_dict(data), signed)


@dataclass(frozen=True)
class Charge:
    """One charged release: the event, and the key it is known by."""

    key: str
    event: Event


@dataclass(frozen=True)
class Account:
    """A ledger in its current state, with the sets of records that its charges are about.

    raised: the decisions of all parties that led to the current budget.
    """

    terms: Terms
    charges: tuple[Charge, ...]
    sets: Mapping[str, RecordSet] = field(repr=False)
    raised: tuple[Raised, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(charge.event for charge in self.charges)

    def until(self, number: int) -> Account:
        """The account after its first `number` charges."""
        return replace(self, charges=self.charges[:number])

    def histories(self, records: RecordSet | None = None) -> list[tuple[Event, ...]]:
        """Every distinct list of releases that a record of this set was part of.

        Without a set, every charged record counts. Lists with the same prices count as one. So do sets that were
        charged equally. This keeps the number of lists small however many runs there were.
        """
        charged: dict[str, list[Event]] = {}
        for event in self.events:
            charged.setdefault(event.records, []).append(event)
        if not charged:
            return [()]
        alike: dict[frozenset[tuple[_Kind, int]], list[str]] = {}
        for digest, events in charged.items():
            alike.setdefault(_kinds(events), []).append(digest)
        if records is None:
            records = RecordSet.union([self.sets[digest] for digest in charged])
        found = memberships(records, [[self.sets[digest] for digest in same] for same in alike.values()])
        one_of = [charged[same[0]] for same in alike.values()]
        return [
            tuple(event for events, times in zip(one_of, row, strict=True) for event in events * times)
            for row in found.tolist()
        ]

    def most(self, reading: Reading) -> float:
        """The largest reading of any record."""
        return max(reading(events, self.terms.delta) for events in self.histories())

    def dearest(self, records: RecordSet | None = None) -> tuple[Event, ...]:
        """The releases of the record that has consumed most, by the accountant that decides."""
        return max(self.histories(records), key=lambda events: epsilon_of(events, self.terms.delta))

    def spent(self, records: RecordSet | None = None) -> Epsilons:
        """Three readings of the largest budget consumption of any of these records."""
        return epsilons(self.dearest(records), self.terms.delta)


TABLES, GRAM, HEAD, GRADIENTS, EVALUATION = "tables", "gram", "head", "gradients", "evaluation"
"""The parts of what a record pays for. The last one is paid by held-out records, from a ledger of their own."""


def part_of(name: str) -> str:
    """The part of a training ledger that a charge of this name belongs to."""
    if name.startswith("head"):
        return HEAD
    if name.startswith("gram"):
        return GRAM
    return GRADIENTS if name.startswith("dp gradient") else TABLES


@dataclass(frozen=True)
class Part:
    """What the releases of one part cost a record if they were alone. The whole costs less than the sum of its parts.

    dealer: against a dealer who reads what was released; infinite if nothing holds.
    """

    name: str
    releases: int
    alone: Epsilons
    dealer: float


def by_part(events: Sequence[Event], *, held_out: bool = False) -> dict[str, list[Event]]:
    """One record's releases by part, in the order in which they were first charged.

    held_out: whether they are in the ledger of held-out records, which pay for evaluations alone.
    """
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(EVALUATION if held_out else part_of(event.name), []).append(event)
    return found


def parts(events: Sequence[Event], delta: float, *, held_out: bool = False) -> list[Part]:
    """What each part of one record's releases costs alone."""
    return [
        Part(name, sum(e.count for e in own), epsilons(own, delta), epsilon_against_dealer(own, delta))
        for name, own in by_part(events, held_out=held_out).items()
    ]


_Kind = tuple[Price, Price, int, int]


def _kinds(events: Sequence[Event]) -> frozenset[tuple[_Kind, int]]:
    """Everything that a reading of these events depends on."""
    counts: Counter[_Kind] = Counter()
    for event in events:
        counts[price_of(event), price_of(event, "added"), event.copies, event.dealer_copies] += event.count
    return frozenset(counts.items())


def read_account(entries: Sequence[Entry], sets: Sets) -> Account:
    """The account of a ledger whose chain is intact; LedgerError where it makes no sense or lacks a set."""
    if not entries:
        raise LedgerError("the ledger is empty: nothing was charged to it")
    try:
        first, *rest = entries
        if first["kind"] != "terms":
            raise ValueError("no terms")
        if first["version"] != VERSION:
            raise LedgerError(_other_version(first["version"]))
        terms = Terms(first["epsilon"], first["delta"])
        charges, raised, states = [], list[Raised](), states_of(entries)
        for number, entry in enumerate(rest, 1):
            if entry["kind"] == RAISED:
                before = {START, *states[:number], *states[len(entries) : len(entries) + number]}
                raised.append(_raised(entry, terms, before))
                terms = Terms(raised[-1].decision.after, terms.delta)
            elif entry["kind"] == "charge":
                charges.append(Charge(entry["key"], Event.from_dict(entry["event"])))
            else:
                raise ValueError("unknown line")
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"the ledger has a line that is no charge ({type(error).__name__}); nothing was charged"
        ) from None
    keys = [charge.key for charge in charges]
    if len(set(keys)) != len(keys):
        raise LedgerError("the ledger charges a key twice; nothing was charged")
    digests = {charge.event.records for charge in charges}
    loaded = {digest: sets.load(digest) for digest in sorted(digests)}
    return Account(terms, tuple(charges), loaded, tuple(raised))


def _raised(entry: Entry, terms: Terms, heads: Collection[str]) -> Raised:
    found = Raised.from_dict(entry)
    if (why := found.decision.misfit(terms.epsilon, terms.delta, heads)) is not None:
        raise LedgerError(f"the ledger has a decision on its cap that {why}; nothing was charged")
    return found


def _other_version(version: object) -> str:
    if version == 1:
        return (
            "the ledger is of version 1, which counted one set of records and only those added; nothing was charged: "
            "keep it, read it with the release that made it, and subtract what it spent from the cap of a new folder"
        )
    return f"the ledger is of version {version!r}, this program reads version {VERSION}; nothing was charged"
