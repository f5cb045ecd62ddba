"""The budget of every record: what may be released about it. Ask first, charge, and only then release.

A charge is on disk when `charge` returns; the release follows it. If the process dies in between, the charge stays:
more may have been paid than was released, never less. The ledger belongs to the consortium. It holds every set of
records that was ever charged, and a second run starts from the budget that each of its records has consumed.
Processes that charge at the same time wait for each other's lock and read the file again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accounting.account import RAISED, VERSION, Account, Charge, Raised, Terms, read_account
from accounting.accountant import Epsilons, epsilon_of
from accounting.calibration import check_target
from accounting.events import Event
from accounting.ledger import Book, Entry, FileLedger, Ledger, MemoryLedger, digest_of, states_of
from accounting.records import RecordSet


class BudgetError(RuntimeError):
    """A release would cost more than the budget, or is not covered by it; nothing was charged."""

    for_operator = True


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
        with ledger.locked() as book:
            if not book.entries:
                book.append({"kind": "terms", "version": VERSION, **asdict(terms)})
            self._read(book)

    @classmethod
    def open(cls, path: Path, epsilon: float, delta: float, n: int | None = None) -> Budget:
        """Create the ledger, or continue it if it has this budget. n: number of records."""
        check_target(epsilon, delta, n)
        return cls(FileLedger(path), Terms(epsilon, delta))

    @classmethod
    def in_memory(cls, epsilon: float, delta: float) -> Budget:
        """A budget that ends with the process: for simulations on public data."""
        return cls(MemoryLedger(), Terms(epsilon, delta))

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
        with self._ledger.locked() as book:
            account = self._read(book)
            for number, known in enumerate(account.charges):
                if known.key == key:
                    if known.event != event:
                        raise BudgetError(
                            f"{event.name}: key {key!r} already paid for another release, {known.event.name}"
                        )
                    return _quote(account.until(number), event, records)
            quote = _quote(account, event, records)
            if quote.after > (most := min(limit, quote.cap)):
                raise BudgetError(
                    f"{event.name}: epsilon would be {quote.after:.4f}, the cap is {most:g} "
                    f"({quote.before:.4f} is spent); release nothing more about these records"
                )
            self._ledger.sets.keep(records)
            book.append({"kind": "charge", "key": key, "event": event.to_dict()})
            return quote

    def raise_cap(self, raised: Raised) -> Budget:
        """The same ledger under a higher budget, which is a line of it when this returns, or BudgetError.

        The caller has checked the signatures. A decision that the ledger already has changes nothing.
        """
        decision = raised.decision
        with self._ledger.locked() as book:
            account = read_account(book.entries, self._ledger.sets)
            if decision not in [known.decision for known in account.raised]:
                why = decision.misfit(account.terms.epsilon, account.terms.delta, states_of(book.entries))
                if why is not None:
                    raise BudgetError(f"the decision on the cap {why}; the cap stays")
                book.append({"kind": RAISED, **raised.to_dict()})
                account = read_account(book.entries, self._ledger.sets)
        return Budget(self._ledger, account.terms)

    def paid(self, key: str) -> bool:
        """Whether a release of this key was charged."""
        return any(charge.key == key for charge in self.charges)

    @property
    def account(self) -> Account:
        with self._ledger.locked() as book:
            return self._read(book)

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

    def spent_on(self, records: RecordSet) -> Epsilons:
        """Three readings of the largest budget consumption among these records."""
        return self.account.spent(records)

    @property
    def head_digest(self) -> str:
        """Stands for all charges in their order; parties compare it."""
        with self._ledger.locked() as book:
            return digest_of(book.entries)

    @property
    def last_line(self) -> Entry:
        """The last line of the ledger. From it another party finds out that it lacks just this one."""
        with self._ledger.locked() as book:
            return dict(book.entries[-1])

    def catch_up(self, line: Entry, own: Sequence[RecordSet]) -> None:
        """Charge what another ledger has charged, if its line is the one that would follow here.

        own: the sets that this party makes of its own ids. A line about another set is refused: this party cannot
        check whom it charges.
        """
        if line["previous"] != self.head_digest or line["kind"] != "charge":
            return
        event = Event.from_dict(line["event"])
        known = {records.digest: records for records in (*self.account.sets.values(), *own)}
        if event.records not in known:
            raise BudgetError(f"{event.name}: another party's ledger charges records that this one does not have")
        self.charge(event, line["key"], known[event.records])

    def _read(self, book: Book) -> Account:
        account = read_account(book.entries, self._ledger.sets)
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
