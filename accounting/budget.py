"""A cap on what may be released about one set of records. Ask first, charge, and only then release.

A charge is on disk when `charge` returns; the release follows it. If the process dies in between, the charge
stays: more may have been paid than was released, never less. The file belongs to the data: a second run
starts from what is spent, and processes that charge at the same time wait for each other's lock and read the
file anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accounting.accountant import Epsilons, epsilon_of, epsilons
from accounting.calibration import check_target
from accounting.events import Event
from accounting.ledger import Book, Entry, FileLedger, Ledger, LedgerError, MemoryLedger, digest_of

VERSION = 1


class BudgetError(RuntimeError):
    """A release would cost more than the cap, or is not covered by it; nothing was charged."""

    for_operator = True


@dataclass(frozen=True)
class Terms:
    """What a budget is about: which records, and the cap. The first line of its ledger."""

    records: str
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.records:
            raise ValueError("a budget needs the digest of its records")
        check_target(self.epsilon, self.delta)
        for field in ("epsilon", "delta"):
            object.__setattr__(self, field, float(getattr(self, field)))


@dataclass(frozen=True)
class Charge:
    """One charged release: the event, and the key it is known by."""

    key: str
    event: Event


@dataclass(frozen=True)
class Quote:
    """What a release costs: Rényi epsilon before and after it, and whether that fits the cap."""

    before: float
    after: float
    cap: float

    @property
    def allowed(self) -> bool:
        return self.after <= self.cap


class Budget:
    """The cap of one set of records and the ledger of what was charged to it."""

    def __init__(self, ledger: Ledger, terms: Terms) -> None:
        self.terms = terms
        self._ledger = ledger
        with ledger.locked() as book:
            if not book.entries:
                book.append({"kind": "terms", "version": VERSION, **asdict(terms)})
            self._check(book)

    @classmethod
    def open(cls, path: Path, records: str, epsilon: float, delta: float, n: int | None = None) -> Budget:
        """Create the ledger, or continue it if it is for these records and this cap. n: number of records."""
        check_target(epsilon, delta, n)
        return cls(FileLedger(path), Terms(records, epsilon, delta))

    @classmethod
    def in_memory(cls, records: str, epsilon: float, delta: float) -> Budget:
        """A budget that ends with the process: for simulations on public data."""
        return cls(MemoryLedger(), Terms(records, epsilon, delta))

    def ask(self, event: Event) -> Quote:
        """What the release would cost now; nothing is written."""
        self._about_these_records(event)
        return self._quote(self.charges, event)

    def charge(self, event: Event, key: str) -> Quote:
        """Pay for a release about to be made, or raise BudgetError.

        Charging a key again is free, so that a run that resumes does not pay twice: use a key again only to
        send the very value that was noised under it, or when nothing was sent. New noise needs a new key.
        """
        self._about_these_records(event)
        if not key:
            raise ValueError(f"{event.name}: a charge needs a key")
        with self._ledger.locked() as book:
            charges = self._check(book)
            for number, known in enumerate(charges):
                if known.key == key:
                    if known.event != event:
                        raise BudgetError(
                            f"{event.name}: key {key!r} already paid for another release, {known.event.name}"
                        )
                    return self._quote(charges[:number], event)
            quote = self._quote(charges, event)
            if not quote.allowed:
                raise BudgetError(
                    f"{event.name}: epsilon would be {quote.after:.4f}, the cap is {self.terms.epsilon:g} "
                    f"({quote.before:.4f} is spent); release nothing more about these records"
                )
            book.append({"kind": "charge", "key": key, "event": event.to_dict()})
            return quote

    @property
    def charges(self) -> tuple[Charge, ...]:
        with self._ledger.locked() as book:
            return self._check(book)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(charge.event for charge in self.charges)

    @property
    def spent(self) -> Epsilons:
        return epsilons(self.events, self.terms.delta)

    @property
    def head_digest(self) -> str:
        """Stands for all that was charged, in its order; parties compare it."""
        with self._ledger.locked() as book:
            return digest_of(book.entries)

    @property
    def last_line(self) -> Entry:
        """The last line of the ledger, by which another party finds out that it lacks just this one."""
        with self._ledger.locked() as book:
            return dict(book.entries[-1])

    def catch_up(self, line: Entry) -> None:
        """Charge what another ledger has charged, if its line is the one that would follow here."""
        if line["previous"] == self.head_digest and line["kind"] == "charge":
            self.charge(Event.from_dict(line["event"]), line["key"])

    def _quote(self, charges: tuple[Charge, ...], event: Event) -> Quote:
        paid = [charge.event for charge in charges]
        delta = self.terms.delta
        return Quote(epsilon_of(paid, delta), epsilon_of([*paid, event], delta), self.terms.epsilon)

    def _about_these_records(self, event: Event) -> None:
        if event.records != self.terms.records:
            raise BudgetError(f"{event.name}: is about other records than this budget; open the budget of those")

    def _check(self, book: Book) -> tuple[Charge, ...]:
        terms, charges = read_account(book.entries)
        if terms.records != self.terms.records:
            raise BudgetError("the ledger is about other records; a budget belongs to the data it was opened for")
        if terms != self.terms:
            raise BudgetError(
                f"the ledger's cap is epsilon {terms.epsilon:g} at delta {terms.delta:g}, not {self.terms.epsilon:g} "
                f"at {self.terms.delta:g}; a cap is set once, before the first release"
            )
        return charges


def read_account(entries: Sequence[Entry]) -> tuple[Terms, tuple[Charge, ...]]:
    """Terms and charges of a ledger whose chain is intact, or LedgerError where they make no sense."""
    if not entries:
        raise LedgerError("the ledger is empty: nothing was charged to it")
    try:
        first, *rest = entries
        if first["kind"] != "terms" or first["version"] != VERSION:
            raise ValueError("unknown version")
        terms = Terms(first["records"], first["epsilon"], first["delta"])
        charges = []
        for entry in rest:
            if entry["kind"] != "charge":
                raise ValueError("unknown line")
            charges.append(Charge(entry["key"], Event.from_dict(entry["event"])))
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"the ledger has a line that is no charge ({type(error).__name__}); nothing was charged"
        ) from None
    keys = [charge.key for charge in charges]
    if len(set(keys)) != len(keys) or any(charge.event.records != terms.records for charge in charges):
        raise LedgerError("the ledger charges a key twice, or for other records; nothing was charged")
    return terms, tuple(charges)
