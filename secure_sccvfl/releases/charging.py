"""Where a release under MPC meets its price: one object makes the event, charges it, and sets the noise.

Every party keeps its own ledger. Before a release each party asks its own ledger, and in one exchange they send
each other yes or no. If all say yes, each charges (on disk), draws noise of the event's sigma and opens. Opening a
value needs the shares of all, so it is out only after every party has charged. If one says no, all raise
BudgetError together: nothing is charged or opened, and the run may continue without the release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget, BudgetError, Quote
from secure_sccvfl.accounting.calibration import HeadBudget, check_target
from secure_sccvfl.accounting.events import Event, Mechanism, Sensitivity
from secure_sccvfl.accounting.ledger import LedgerError, LedgerFull, comparable
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.protocols.errors import LedgerRefusal, ProtocolError
from secure_sccvfl.protocols.operations.noise import NoiseKind, deviation
from secure_sccvfl.protocols.records.releases import Receipt
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import GRAM, HEAD, HEAD_OUTPUT, charge_number
from secure_sccvfl.releases.mechanisms import (
    GramNoise,
    HeadNoise,
    HeadPlan,
    NoiseLevel,
    gram_event,
    noise_of_model,
    noised_event,
    price_head,
)

_AGAIN = 2
"""A party's answer before a release, besides yes (1) and no (0): its ledger already has a charge of this key."""
_OTHERWISE = 2
"""A party's answer about the head of a run that resumes: its ledger has the charge, for other noise."""
ANY_RECORD = Sensitivity.of_counts(1.0)
"""The price of a planned release depends on its noise over what a record moves, and not on the latter."""
_LINE = 2048
"""Bytes of a ledger's line in the comparison between parties."""


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """Turn a refusal of the budget into a one-line error for the people here; a full disk is reported as such."""
    try:
        yield
    except LedgerFull as error:
        raise error.reason from error
    except (BudgetError, LedgerError) as error:
        raise LedgerRefusal(str(error)) from error


@dataclass(frozen=True)
class Paid:
    """A charged event, from which noise and sample are drawn, and the receipt that opening needs."""

    event: Event
    receipt: Receipt


class Charger:
    """This party's ledger, the records of a run, and the noise of every release about them.

    multiplier: joint deviation of the hidden noise contributions over the sensitivity to a replaced record. run: the
    name of this session in the ledger (`releases.ledgers.agree_on_run`). Every charge draws fresh noise, so a charge
    whose key is already in the ledger is refused; a session that resumes a run has a new name. noise: who makes it.
    The noise drawn must be of this kind, since the price counts its hidden copies. reserve: the share of the budget
    that this run leaves for later ones. paid: what it has charged, by name. same_records: whether all
    parties charge the same records; otherwise each charges all its own that the release may be about. heads: what
    private heads are priced by. begun: the name under which they are charged: that of the run's first session, if
    this one resumes it.
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
        same_records: bool = True,
        heads: tuple[HeadPlan, HeadBudget] | None = None,
    ) -> None:
        if not multiplier > 0:
            raise ValueError(f"the noise multiplier must be positive, got {multiplier}")
        self._session, self.budget, self.multiplier, self._run = session, budget, multiplier, run
        self.records, self.noise, self._same_records, self.heads = records, noise, same_records, heads
        self.begun = run
        self.limit = budget.terms.epsilon * (1 - reserve)
        self.paid: dict[str, Paid] = {}

    def _key(self, name: str) -> str:
        """What a charge of this run is called in the ledger."""
        return f"{self._run} {name}"

    def check(self, rows: int) -> None:
        """Refuse a budget that promises nothing for this many records."""
        check_target(self.budget.terms.epsilon, self.budget.terms.delta, rows)

    def deviation(self, sensitivity: Sensitivity) -> float:
        """Standard deviation of all noise contributions in a release."""
        return deviation(self.noise, self.event("deviation", sensitivity).sigma, self._session.parties)

    def catch_up(self) -> bool:
        """Run by all parties together when a run resumes: every party gets the charge that a fault cut short.

        A fault during charging leaves some parties one line ahead. Nothing was released then. But from now on all
        count what one has paid: the ledgers agree again, and no charge is forgotten. Returns whether they had
        differed. Where each party charges its own records, nothing is sent of these: each charges its own.
        """
        (last,) = comparable([self.budget.last_line], own_records=not self._same_records)
        text_sent = json.dumps(last).encode().ljust(_LINE)
        if len(text_sent) > _LINE:
            raise ProtocolError("the last line of the ledger is too long to be compared")
        lines = [json.loads(text) for text in self._session.swap_bytes("last charge", text_sent)]
        longer = [line for line in lines if line["index"] == last["index"] + 1 and line["kind"] == "charge"]
        if self._same_records:
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
        level = NoiseLevel(self.multiplier, self.noise, self._session.parties)
        return noised_event(name, sensitivity, level, self.records.digest, charge_number(name), sampling, mechanism)

    def ask(self, event: Event, key: str = "") -> Quote:
        """Run by all parties together: what a release would cost. All raise BudgetError if one refuses.

        A party refuses what does not fit its budget. It also stops the run if its ledger already has a charge of this
        key: charging it again would cost nothing (`accounting.budget`), and the noise would be new.
        """
        key = key or self._key(event.name)
        name, quote = event.name, self.budget.ask(event, self.records)
        again = self.budget.paid(key)
        allowed = quote.allowed and quote.after <= self.limit and self._leaves_room(event)
        answers = self._session.tell_all("budget", _AGAIN if again else int(allowed))
        if _AGAIN in answers:
            raise ProtocolError(
                f"{name}: the ledger of party {answers.index(_AGAIN)} already has this charge of this run; nothing "
                "was charged or released"
            )
        refused = [rank for rank, yes in enumerate(answers) if not yes]
        if refused:
            reserve = f", less a reserve of {quote.cap - self.limit:g}" if self.limit < quote.cap else ""
            detail = "" if allowed else f"; epsilon would be {quote.after:.4f} of {quote.cap:g}{reserve} here"
            raise BudgetError(
                f"{name}: refused by the ledger of party {refused[0]}{detail}; nothing was charged, "
                "release nothing more about these records"
            )
        return quote

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
        return self._charge(self.event(name, sensitivity, sampling, mechanism), self._key(name), pays)

    def charge_gram(self, moved: Sensitivity) -> GramNoise:
        """Run by all parties together, before it is opened: charge the noisy Gram matrix of records' counterfactuals.

        Its noise is planned with that of the heads: with tables of an earlier run, theirs says nothing about it.
        """
        event = self._gram(moved)
        paid = self._charge(event, self._key(event.name))
        return GramNoise(event.sigma, noise_of_model(self.noise), paid.receipt)

    def _gram(self, moved: Sensitivity) -> Event:
        planned = self.multiplier if self.heads is None else self.heads[1].table_multiplier
        return gram_event(moved, NoiseLevel(planned, self.noise, self._session.parties), self.records.digest)

    def charge_heads(self, count: int) -> HeadNoise:
        """Run by all parties together, before training: charge the private heads of the run, and return their noise.

        Nothing is opened for this charge: what follows from the heads does so later, and is free for these records.
        A run that resumes pays once: its caller has made sure that no party has a model of the run, so nothing can
        have followed from earlier heads. It must draw the noise that was paid for: a session that was charged for
        more of it would make a head of less noise free.
        """
        if self.heads is None:
            raise ValueError("the budget of this run has no share for a private head")
        plan, budget = self.heads
        priced = price_head(plan, budget, count, self.noise, self._session.parties, self.records.digest)
        for event in priced.events:
            if not self._all_paid(event, key := f"{self.begun} {event.name}"):
                self._charge(event, key)
        return priced.noise

    def _leaves_room(self, event: Event) -> bool:
        """Whether the run's private heads, and the Gram matrix that they need, still fit after this release.

        A release that is charged again, after a fault came between its charge and its checkpoint, must not use the
        share of the heads: without them the run could not be finished.
        """
        if self.heads is None or any(event.name.startswith(kind.charged_as()) for kind in (HEAD, HEAD_OUTPUT)):
            return True
        heads = price_head(*self.heads, 1, self.noise, self._session.parties, self.records.digest).events
        account = self.budget.account
        paid = [charge.key for charge in account.charges]
        left = [head for head in heads if f"{self.begun} {head.name}" not in paid]
        if self.heads[0].gram and event.name != GRAM.charged_as():
            left.append(self._gram(ANY_RECORD))
        after = max(
            epsilon_of([*spent, event, *left], account.terms.delta) for spent in account.histories(self.records)
        )
        return after <= self.limit

    def _all_paid(self, event: Event, key: str) -> bool:
        """Run by all parties together: whether every ledger has this charge; ProtocolError if one differs."""
        charged = [charge.event for charge in self.budget.charges if charge.key == key]
        answer = 0 if not charged else 1 if charged == [event] else _OTHERWISE
        answers = self._session.tell_all("charges of the head", answer)
        if _OTHERWISE in answers:
            raise ProtocolError(
                f"{event.name}: the ledger of party {answers.index(_OTHERWISE)} has this charge of this run for "
                "other noise; nothing was charged: train a new run, which is charged"
            )
        return all(answers)

    def _charge(self, event: Event, key: str, pays: str | None = None) -> Paid:
        name, quote = event.name, self.ask(event, key)
        try:
            self.budget.charge(event, key, self.records, self.limit)
        except BudgetError as error:  # another process was faster; the other parties have charged, so all must stop
            raise ProtocolError(f"{name}: the ledger changed while the release was agreed on") from error
        self._session.activity.facts |= {"epsilon": quote.after, "cap": quote.cap}
        self.paid[name] = Paid(event, Receipt(name if pays is None else pays, key))
        return self.paid[name]
