"""Where a release in secret meets its price: one object makes the event, charges it, and sets the noise.

Every party keeps its own ledger. Before a release each party asks its own ledger, and in one exchange they tell
each other yes or no. If all say yes, each charges (on disk), draws noise of the event's sigma and opens. Opening a
value needs the shares of all, so it is out only after every party has charged. If one says no, all raise
BudgetError together: nothing is charged or opened, and the run may continue without the release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accounting.budget import Budget, BudgetError, Quote
from accounting.calibration import check_target
from accounting.events import Event, Mechanism, Sensitivity
from accounting.ledger import LedgerError, LedgerFull, comparable
from accounting.records import RecordSet
from protocols.errors import LocalError, ProtocolError
from protocols.operations.noise import NoiseKind, deviation
from protocols.records.releases import Receipt
from protocols.session.runtime import Session
from secure_sccvfl.privacy.noise import NoiseLevel, noised_event

_LINE = 2048
"""Bytes of a ledger's line in the comparison between parties."""


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """Turn a refusal of the budget into a one-line error for the people here; a full disk is told as what it is."""
    try:
        yield
    except LedgerFull as error:
        raise error.reason from error
    except (BudgetError, LedgerError) as error:
        raise LocalError(str(error)) from error


@dataclass(frozen=True)
class Paid:
    """A charged event, from which noise and sample are drawn, and the receipt that opening needs."""

    event: Event
    receipt: Receipt


class Charger:
    """This party's ledger, the records of a run, and the noise of every release about them.

    multiplier: joint deviation of the hidden copies of noise over the sensitivity to a replaced record. run: the
    name of the run in the ledger. It is unlike any other (`Session.agree_on_name`), since charging a name again is
    free. A run that resumes keeps its name and must not add new noise to what it has released
    (`accounting.budget`). noise: who makes it. The noise drawn must be of this kind, since the price counts its
    hidden copies. reserve: the share of the cap that this run leaves for later ones. paid: what it has charged, by
    the name of the charge. alike: whether all parties charge the same records; otherwise each charges all its own
    that the release may be about.
    """

    def __init__(
        self,
        session: Session,
        budget: Budget,
        multiplier: float,
        run: str,
        records: RecordSet,
        noise: NoiseKind = "dealer+holder",
        *,
        reserve: float = 0.0,
        alike: bool = True,
    ) -> None:
        if not multiplier > 0:
            raise ValueError(f"the noise multiplier must be positive, got {multiplier}")
        self._session, self.budget, self.multiplier, self._run = session, budget, multiplier, run
        self.records, self.noise, self._alike = records, noise, alike
        self.limit = budget.terms.epsilon * (1 - reserve)
        self.paid: dict[str, Paid] = {}

    def check(self, rows: int) -> None:
        """Refuse a cap that promises nothing for this many records."""
        check_target(self.budget.terms.epsilon, self.budget.terms.delta, rows)

    def deviation(self, sensitivity: Sensitivity) -> float:
        """Standard deviation of all copies of noise in a release."""
        return deviation(self.noise, self.event("deviation", sensitivity).sigma, self._session.parties)

    def catch_up(self) -> bool:
        """Run by all parties together when a run resumes: every party gets the charge that a fault cut short.

        A fault during charging leaves some parties one line ahead. Nothing was released then. But from now on all
        count what one has paid: the ledgers agree again, and no charge is forgotten. Returns whether they had
        differed. Where each party charges its own records, nothing is told of these: each charges its own.
        """
        (last,) = comparable([self.budget.last_line], own_records=not self._alike)
        own = json.dumps(last).encode().ljust(_LINE)
        if len(own) > _LINE:
            raise ProtocolError("the last line of the ledger is too long to be compared")
        lines = [json.loads(text) for text in self._session.swap_bytes("last charge", own)]
        longer = [line for line in lines if line["index"] == last["index"] + 1 and line["kind"] == "charge"]
        if self._alike:
            for line in lines:
                self.budget.catch_up(line, [self.records])
        elif longer:
            missed = Event.from_dict({**longer[0]["event"], "records": self.records.digest})
            self.budget.charge(missed, longer[0]["key"], self.records)
        return len({json.dumps(line, sort_keys=True) for line in lines}) > 1

    def event(
        self, name: str, sensitivity: Sensitivity, sampling: float = 1.0, mechanism: Mechanism = "gaussian"
    ) -> Event:
        """The release as it will be charged."""
        tail = name.rpartition("-")[2]
        level = NoiseLevel(self.multiplier, self.noise, self._session.parties)
        refresh = int(tail) if tail.isdigit() else 0
        return noised_event(name, sensitivity, level, self.records.digest, refresh, sampling, mechanism)

    def ask(
        self, name: str, sensitivity: Sensitivity, sampling: float = 1.0, mechanism: Mechanism = "gaussian"
    ) -> tuple[Event, Quote]:
        """Run by all parties together: a release as it would be charged. All raise BudgetError if one refuses."""
        event = self.event(name, sensitivity, sampling, mechanism)
        quote = self.budget.ask(event, self.records)
        allowed = quote.allowed and quote.after <= self.limit
        refused = [rank for rank, yes in enumerate(self._session.tell_all("budget", int(allowed))) if not yes]
        if refused:
            kept = f", less a reserve of {quote.cap - self.limit:g}" if self.limit < quote.cap else ""
            own = "" if allowed else f"; epsilon would be {quote.after:.4f} of {quote.cap:g}{kept} here"
            raise BudgetError(
                f"{name}: refused by the ledger of party {refused[0]}{own}; nothing was charged, "
                "release nothing more about these records"
            )
        return event, quote

    def charge(
        self,
        name: str,
        sensitivity: Sensitivity,
        sampling: float = 1.0,
        pays: str | None = None,
        mechanism: Mechanism = "gaussian",
    ) -> Paid:
        """Run by all parties together, before the release; returns the paid event and its receipt.

        Noise and sample of the release must be drawn from the event: its sigma for each copy, its sampling. `pays`
        is the event that the release declares, if that differs from the name of the charge.
        """
        event, quote = self.ask(name, sensitivity, sampling, mechanism)
        try:
            charge = f"{self._run} {name}"
            self.budget.charge(event, charge, self.records, self.limit)
        except BudgetError as error:  # another process was faster; the other parties have charged, so all must stop
            raise ProtocolError(f"{name}: the ledger changed while the release was agreed on") from error
        self._session.activity.facts |= {"epsilon": quote.after, "cap": quote.cap}
        self.paid[name] = Paid(event, Receipt(name if pays is None else pays, charge))
        return self.paid[name]
