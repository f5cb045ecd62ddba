"""The budget of every record: what may be released about it. Ask first, charge, and only then release.

A record has consumed the composition of the releases that it was part of. So the costs of overlapping sets add up
where they overlap, and those of disjoint sets do not. One record more or less resets nothing for the others. A
budget is about the record that has consumed most.

A charge is on disk when `charge` returns; the release follows it. If the process dies in between, the charge stays:
more may have been paid than was released, never less. The ledger belongs to the consortium. It holds every set of
records that was ever charged, and a second run starts from the budget that each of its records has consumed.
Processes that charge at the same time wait for each other's lock and read the file again.

A budget is set before the first release. Afterwards only all parties together can raise it (`CapDecision`). Their
decision names the ledger by a hash of its lines, so it fits one ledger of each party (`accounting.ledger.states_of`),
and the old budget, so it counts once. It becomes a line of every party's ledger, with the signatures, which
`secure_sccvfl/releases/ledgers.py` checks. A decision never lowers a budget: what was released stays released.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.accountant import Epsilons, Price, epsilon_of, epsilons, price_of
from secure_sccvfl.accounting.calibration import check_target
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.ledger import (
    START,
    Entry,
    FileLedger,
    Ledger,
    LedgerError,
    ledger_digest,
    read_ledger,
    states_of,
)
from secure_sccvfl.accounting.records import RecordSet, memberships

VERSION = 2
RAISED = "cap"
"""The kind of a ledger's line that raises its budget."""
TABLES, GRAM, HEAD, GRADIENTS, EVALUATION = "tables", "gram", "head", "gradients", "evaluation"
"""Parts of what a record pays for. Held-out records pay for evaluations alone, from a separate ledger."""


class BudgetError(RuntimeError):
    """A release would cost more than the budget, or is not covered by it; nothing was charged."""


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
    """A decision to raise a budget, which all parties sign.

    ledger: the name of its file. head: a hash of its lines. date: as people write it. signed: a certificate (PEM) and
    a signature of each party, by its name ('party-0'); the signatures cover all other fields.
    """

    ledger: str
    before: float
    after: float
    delta: float
    head: str
    reason: str
    date: str
    signed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
    def content(self) -> dict[str, Any]:
        """What is decided: all fields except the signatures."""
        return {name: value for name, value in asdict(self).items() if name != "signed"}

    @property
    def message(self) -> bytes:
        """The bytes that are signed."""
        return json.dumps(self.content, sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.message).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {**self.content, "signed": {party: dict(one) for party, one in sorted(self.signed.items())}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CapDecision:
        """From data that have its fields among others; a missing one is a KeyError."""
        signed = {
            str(party): {"certificate": str(one["certificate"]), "signature": str(one["signature"])}
            for party, one in data["signed"].items()
        }
        return cls(**{one.name: data[one.name] for one in fields(cls)} | {"signed": signed})

    def misfit(self, terms: Terms, heads: Collection[str]) -> str | None:
        """Why the decision is not about a ledger with this budget and these hashes, or None."""
        if self.head not in heads:
            return "is about another ledger, or another state of it"
        if (self.before, self.delta) != (terms.epsilon, terms.delta):
            return (
                f"raises a cap of {self.before:g} at delta {self.delta:g}; here it is {terms.epsilon:g} at "
                f"{terms.delta:g}"
            )
        return None


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
    raised: tuple[CapDecision, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(charge.event for charge in self.charges)

    def until(self, number: int) -> Account:
        """The account after its first `number` charges."""
        return replace(self, charges=self.charges[:number])

    def has(self, decision: CapDecision) -> bool:
        """Whether this decision, with whatever signatures, has raised the budget already."""
        return decision.message in [one.message for one in self.raised]

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
        equal: dict[frozenset[tuple[_Kind, int]], list[str]] = {}
        for digest, events in charged.items():
            equal.setdefault(_kinds(events), []).append(digest)
        if records is None:
            records = RecordSet.union([self.sets[digest] for digest in charged])
        counts = memberships(records, [[self.sets[digest] for digest in same] for same in equal.values()])
        one_of = [charged[same[0]] for same in equal.values()]
        return [
            tuple(event for events, times in zip(one_of, row, strict=True) for event in events * times)
            for row in counts.tolist()
        ]

    def most(self, reading: Callable[[Sequence[Event], float], float]) -> float:
        """The largest value of any record, of a function of its releases and delta."""
        return max(reading(events, self.terms.delta) for events in self.histories())

    def dearest(self, records: RecordSet | None = None) -> tuple[Event, ...]:
        """The releases of the record that has consumed most, by the accountant that decides."""
        return max(self.histories(records), key=lambda events: epsilon_of(events, self.terms.delta))

    def spent(self, records: RecordSet | None = None) -> Epsilons:
        """Three readings of the largest budget consumption of any of these records."""
        return epsilons(self.dearest(records), self.terms.delta)


_Kind = tuple[Price, Price, int, int]


def _kinds(events: Sequence[Event]) -> frozenset[tuple[_Kind, int]]:
    """Everything that a reading of these events depends on."""
    counts: Counter[_Kind] = Counter()
    for event in events:
        counts[price_of(event), price_of(event, "added"), event.copies, event.dealer_copies] += event.count
    return frozenset(counts.items())


def part_of(name: str) -> str:
    """The part of a training ledger that a charge of this name belongs to."""
    if name.startswith("head"):
        return HEAD
    if name.startswith("gram"):
        return GRAM
    return GRADIENTS if name.startswith("dp gradient") else TABLES


def by_part(events: Sequence[Event], *, held_out: bool = False) -> dict[str, list[Event]]:
    """One record's releases by part, in the order in which they were first charged.

    held_out: whether they are in the ledger of held-out records, which pay for evaluations alone.
    """
    parts: dict[str, list[Event]] = {}
    for event in events:
        parts.setdefault(EVALUATION if held_out else part_of(event.name), []).append(event)
    return parts


def account_of(entries: Sequence[Entry], load: Callable[[str], RecordSet]) -> Account:
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
        charges, raised, states = [], list[CapDecision](), states_of(entries)
        for number, entry in enumerate(rest, 1):
            if entry["kind"] == RAISED:
                decision = CapDecision.from_dict(entry)
                before = {START, *states[:number], *states[len(entries) : len(entries) + number]}
                if (why := decision.misfit(terms, before)) is not None:
                    raise LedgerError(f"the ledger has a decision on its cap that {why}; nothing was charged")
                raised.append(decision)
                terms = Terms(decision.after, terms.delta)
            elif entry["kind"] == "charge":
                charges.append(Charge(entry["key"], Event.from_dict(entry["event"])))
            else:
                raise ValueError("unknown line")
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"the ledger has a line that is no charge ({type(error).__name__}); nothing was charged"
        ) from None
    if len({charge.key for charge in charges}) != len(charges):
        raise LedgerError("the ledger charges a key twice; nothing was charged")
    digests = {charge.event.records for charge in charges}
    return Account(terms, tuple(charges), {digest: load(digest) for digest in sorted(digests)}, tuple(raised))


def _other_version(version: object) -> str:
    if version == 1:
        return (
            "the ledger is of version 1, which counted one set of records and only those added; nothing was charged: "
            "keep it, read it with the release that made it, and subtract what it spent from the cap of a new folder"
        )
    return f"the ledger is of version {version!r}, this program reads version {VERSION}; nothing was charged"


def read_account(path: Path) -> Account:
    """The account of the ledger at this path, for reading only."""
    return account_of(read_ledger(path)[0], FileLedger(path).load)


@dataclass(frozen=True)
class Quote:
    """What a release costs the record that pays most: Rényi epsilon before and after it, and whether that fits."""

    before: float
    after: float
    cap: float

    @property
    def allowed(self) -> bool:
        return self.after <= self.cap


class Budget:
    """The budget of every record, and the ledger of what was charged to which of them."""

    def __init__(self, ledger: Ledger, terms: Terms) -> None:
        self.terms = terms
        self._ledger = ledger
        with ledger.locked():
            if not ledger.entries:
                ledger.append({"kind": "terms", "version": VERSION, **asdict(terms)})
            self._read()

    @classmethod
    def open(cls, path: Path, epsilon: float, delta: float, n: int | None = None) -> Budget:
        """Create the ledger, or continue it if it has this budget. n: number of records."""
        check_target(epsilon, delta, n)
        return cls(FileLedger(path), Terms(epsilon, delta))

    @classmethod
    def in_memory(cls, epsilon: float, delta: float) -> Budget:
        """A budget that ends with the process: for simulations on public data."""
        return cls(Ledger(), Terms(epsilon, delta))

    def ask(self, event: Event, records: RecordSet) -> Quote:
        """What the release about these records would cost now; nothing is written."""
        _check_about(event, records)
        return _quote(self.account, event, records)

    def charge(self, event: Event, key: str, records: RecordSet, limit: float = math.inf) -> Quote:
        """Pay for a release about to be made, or raise BudgetError.

        limit: an epsilon below the budget that this charge must keep to, since the rest is for others.

        Charging a key again is free, so that a run that resumes does not pay twice. Use a key again only to send
        the very value that was noised under it, or when nothing was sent. New noise needs a new key.
        """
        _check_about(event, records)
        if not key:
            raise ValueError(f"{event.name}: a charge needs a key")
        with self._ledger.locked() as ledger:
            account = self._read()
            for number, earlier in enumerate(account.charges):
                if earlier.key == key:
                    if earlier.event != event:
                        raise BudgetError(
                            f"{event.name}: key {key!r} already paid for another release, {earlier.event.name}"
                        )
                    return _quote(account.until(number), event, records)
            quote = _quote(account, event, records)
            if quote.after > (most := min(limit, quote.cap)):
                raise BudgetError(
                    f"{event.name}: epsilon would be {quote.after:.4f}, the cap is {most:g} "
                    f"({quote.before:.4f} is spent); release nothing more about these records"
                )
            ledger.keep(records)
            ledger.append({"kind": "charge", "key": key, "event": event.to_dict()})
            return quote

    def raise_cap(self, decision: CapDecision) -> Budget:
        """The same ledger under a higher budget, which is a line of it when this returns, or BudgetError.

        The caller has checked the signatures. A decision that the ledger already has changes nothing.
        """
        with self._ledger.locked() as ledger:
            account = account_of(ledger.entries, ledger.load)
            if not account.has(decision):
                if (why := decision.misfit(account.terms, states_of(ledger.entries))) is not None:
                    raise BudgetError(f"the decision on the cap {why}; the cap stays")
                ledger.append({"kind": RAISED, **decision.to_dict()})
                account = account_of(ledger.entries, ledger.load)
        return Budget(self._ledger, account.terms)

    def paid(self, key: str) -> bool:
        """Whether a release of this key was charged."""
        return any(charge.key == key for charge in self.charges)

    @property
    def account(self) -> Account:
        with self._ledger.locked():
            return self._read()

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self.account.charges

    @property
    def events(self) -> tuple[Event, ...]:
        return self.account.events

    @property
    def spent(self) -> Epsilons:
        """Three readings of the largest budget consumption of any record."""
        return self.account.spent()

    @property
    def head_digest(self) -> str:
        """Stands for all charges in their order; parties compare it."""
        with self._ledger.locked() as ledger:
            return ledger_digest(ledger.entries)

    @property
    def last_line(self) -> Entry:
        """The last line of the ledger. From it another party finds out that it lacks just this one."""
        with self._ledger.locked() as ledger:
            return dict(ledger.entries[-1])

    def catch_up(self, line: Entry, local_sets: Sequence[RecordSet]) -> None:
        """Charge what another ledger has charged, if its line is the one that would follow here.

        local_sets: the sets that this party makes of its own ids. A line about another set is refused: this party
        cannot check whom it charges.
        """
        if line["previous"] != self.head_digest or line["kind"] != "charge":
            return
        event = Event.from_dict(line["event"])
        sets = {records.digest: records for records in (*self.account.sets.values(), *local_sets)}
        if event.records not in sets:
            raise BudgetError(f"{event.name}: another party's ledger charges records that this one does not have")
        self.charge(event, line["key"], sets[event.records])

    def _read(self) -> Account:
        """The account, under the lock."""
        account = account_of(self._ledger.entries, self._ledger.load)
        if account.terms != self.terms:
            raise BudgetError(
                f"the ledger's cap is epsilon {account.terms.epsilon:g} at delta {account.terms.delta:g}, not "
                f"{self.terms.epsilon:g} at {self.terms.delta:g}; a cap is set once, before the first release, and "
                "only all parties together can raise it (sccvfl raise-cap)"
            )
        return account


def _quote(account: Account, event: Event, records: RecordSet) -> Quote:
    delta, histories = account.terms.delta, account.histories(records)
    before = max(epsilon_of(events, delta) for events in histories)
    after = max(epsilon_of([*events, event], delta) for events in histories)
    return Quote(before, after, account.terms.epsilon)


def _check_about(event: Event, records: RecordSet) -> None:
    if event.records != records.digest:
        raise BudgetError(f"{event.name}: is about other records than those to be charged; nothing was charged")
