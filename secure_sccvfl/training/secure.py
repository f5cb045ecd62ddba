"""The Engine in secret: the same training code, on shares. One instance per party process.

Each party passes its own blocks and gets back handles that hold shares. Encodings go under masks
of their owner once per scaling of the columns (protocols/steps/head.py); owners scale their own columns by
the root of the curvature, which makes the plain step the preconditioned one. The penalty is one secret
matrix H per lambda: consistency (a Gram matrix of edits, selected by the secret one-hot of s), guards
and ridge. Per lambda one bit is opened, whether logits left the range of the sigmoid, and where evaluation is exact
three scalars; else heads are compared and one of them is chosen in secret (protocols/operations/choice.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from protocols import ring
from protocols.errors import ProtocolError
from protocols.operations import arithmetic, choice, comparison, series
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from protocols.steps import head
from protocols.steps.aggregation import sum_over_parties
from protocols.steps.head import HEAD_BITS, LOGIT_BITS, LOGIT_BOUND, RESIDUAL_BITS, Pace, Tall, Weights
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import Blocks, Held
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.privacy.releases import COLUMNS, PREDICTIONS, RANGE_CHECK, TEMPERATURE_CHOICE, VALIDATION_SUMMARY
from secure_sccvfl.training.engine import CURVATURE, SIGN_WIDTH, Measures, Step
from secure_sccvfl.training.handles import Batch, Choice, Descent, Edits, Head, Penalty

_SCALE_BITS = 20
_ROOT_BITS = 18
_GRAM_BITS = 28
_TOTAL_BOUND = 2.0**20
_COOLED_ROWS = 1 << 14
"""Logits that are tried at several temperatures at a time."""


class SecureEngine:
    """One party's end of the secret engine."""

    def __init__(
        self,
        session: Session,
        statistics: Statistics | None,
        label_holder: int,
        group_holders: Sequence[int],
    ) -> None:
        self.session, self._statistics = session, statistics
        self.label_holder, self.group_holders = label_holder, tuple(group_holders)
        self.widths: tuple[int, ...] = ()
        self._descent: Descent | None = None

    # statistics of s

    @property
    def statistics(self) -> Statistics:
        if self._statistics is None:
            raise ValueError("this engine scores records; it was given no statistics of s")
        return self._statistics

    def group_sums(
        self,
        columns: Mapping[str, np.ndarray],
        groups: Sequence[Held],
        counts: Sequence[int],
        name: str,
        sensitivity: float,
        widths: Mapping[str, int] | None = None,
    ) -> tuple[dict[str, np.ndarray], ...]:
        return self.statistics.group_sums(columns, groups, counts, name, sensitivity, widths)

    def residual_dependence(
        self, columns: Mapping[str, np.ndarray], groups: Sequence[Held], counts: Sequence[int], name: str
    ) -> tuple[dict[str, float], ...]:
        return self.statistics.residual_dependence(columns, groups, counts, name)

    def deviation(self, sensitivity: float) -> float:
        return self.statistics.deviation(sensitivity)

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        return self.session.announce(values, self.session.declared(name))

    def total(self, name: str, values: Sequence[float]) -> tuple[float, ...]:
        summed = sum_over_parties(self.session, values, _TOTAL_BOUND, self.session.declared(name))
        if summed is None:
            raise ProtocolError(f"the sums {name!r} must go to every party")
        return tuple(summed.tolist())

    # inputs

    def bind(self, encodings: Blocks, label: Held, ridge: Blocks, outputs: int = 1) -> Batch:
        rank = self.session.rank
        own = encodings[rank]
        widths = self.publish(COLUMNS.name, {str(rank): own.shape[1]}) if not self.widths else None
        if widths is not None:
            self.widths = tuple(int(widths[str(r)]) for r in range(self.session.parties))
        if own.shape[1] != self.widths[rank]:
            raise ValueError(f"encodings have {own.shape[1]} columns, earlier ones {self.widths[rank]}")
        plain = None
        if rank == self.label_holder:
            if label is None:
                raise ValueError("the holder of the label needs it")
            plain = np.eye(outputs)[label] if outputs > 1 else np.asarray(label, float)[:, None]
        return Batch(own, ridge[rank], self._held(plain, self.label_holder, (len(own), outputs), RESIDUAL_BITS))

    def selected(self, deltas: Iterable[Iterable[Blocks]], groups: Held, attribute: int) -> tuple[Words, ...]:
        """Shares of the displacement of every record and draw in the direction of its own group."""
        holder, rank = self.group_holders[attribute], self.session.rank
        draws: list[Words] = []
        for by_group in deltas:
            choices = np.stack([ring.encode(blocks[rank]) for blocks in by_group], axis=1)
            rows, count, _ = choices.shape
            one_hot = None
            if rank == holder:
                if groups is None:
                    raise ValueError("the holder of s needs it")
                one_hot = np.eye(count, dtype=np.int64)[groups]
            with self.session.measure("select edits"):
                pieces = [
                    head.select(
                        self.session.party,
                        owner,
                        holder,
                        choices if owner == rank else None,
                        one_hot,
                        (rows, count, width),
                    )
                    for owner, width in enumerate(self.widths)
                ]
            draws.append(np.concatenate(pieces, axis=1))
        if not draws:
            raise ValueError("no draw of counterfactual edits")
        return tuple(draws)

    def edits(self, deltas: Iterable[Iterable[Blocks]], groups: Held, attribute: int = 0) -> Edits:
        draws = self.selected(deltas, groups, attribute)
        total = sum(len(chosen) for chosen in draws)
        with self.session.measure("gram of edits"):
            raw = np.sum([head.gram(self.session.party, chosen) for chosen in draws], axis=0)
            mean = arithmetic.divide(self.session.party, raw, total << (2 * FRACTION_BITS - _GRAM_BITS))
        return Edits(draws, mean)

    def join(self, edits: Sequence[Edits], guards: Sequence[Blocks]) -> Penalty:
        gram = np.sum([e.gram for e in edits], axis=0)
        if len(edits) > 1:
            gram = arithmetic.divide(self.session.party, gram, len(edits))
        own = tuple(g[self.session.rank] for g in guards)
        return Penalty(tuple(d for e in edits for d in e.draws), gram, own)

    def head(self, batch: Batch, outputs: int, task: Task) -> Head:
        columns = sum(self.widths)
        zero, bias = np.zeros((columns, outputs), np.int64), np.zeros(outputs, np.int64)
        return Head(Weights(zero, bias, zero, bias), np.ones(self.widths[self.session.rank]), task)

    # training

    def steps(
        self, start: Head, batch: Batch, penalty: Penalty | None, step: Step, curvature: Blocks, count: int
    ) -> Head:
        descent = self._prepare(batch, penalty, step, curvature)
        weights = self._scaled(start, descent)
        pace = Pace(step.rate, step.momentum, CURVATURE[start.task])
        with self.session.measure("training step"):
            for _ in self.session.repeat(count, descent.pattern):
                weights = self._step(weights, batch, penalty, step, pace, descent, start.task)
        return Head(weights, descent.scale, start.task)

    def _step(
        self,
        weights: Weights,
        batch: Batch,
        penalty: Penalty | None,
        step: Step,
        pace: Pace,
        descent: Descent,
        task: Task,
    ) -> Weights:
        party = self.session.party
        both = head.product(party, descent.both, weights.weight)
        logits = head.logits_of(party, weights, both[: batch.rows])
        pull = both[batch.rows :]
        descent.logits = logits
        residual = self._residual(logits, batch.label, task)
        gradients = head.transposed_products(party, descent.rows, residual)
        if descent.edits is not None and penalty is not None:
            pull = pull + self._smooth_sign_pull(weights, descent, step)
        return head.descend(party, weights, gradients, pull, residual, pace)

    def _residual(self, logits: Words, label: Words, task: Task) -> Words:
        party = self.session.party
        if task == "binary":
            return head.residual_of_sigmoid(party, logits, label)
        if task == "regression":
            return arithmetic.truncate(party, logits, LOGIT_BITS - RESIDUAL_BITS) - label
        usual = arithmetic.truncate(party, logits, LOGIT_BITS - FRACTION_BITS)
        chances = words_of(self.session.wrap(usual, FRACTION_BITS).softmax(dim=1))
        return np.left_shift(chances, RESIDUAL_BITS - FRACTION_BITS) - label

    def _smooth_sign_pull(self, weights: Weights, descent: Descent, step: Step) -> Words:
        """The l1 consistency gradient in scaled columns, 2 HEAD_BITS: D^T tanh(D w / width) / rows."""
        party = self.session.party
        if descent.edits is None:
            raise ValueError("no edits under a mask")
        plain = self._times(weights.weight, descent.scale_shares, _SCALE_BITS)
        shift = arithmetic.truncate(party, head.product(party, descent.edits, plain), LOGIT_BITS - FRACTION_BITS)
        steep = self.session.wrap(shift * round(1 / SIGN_WIDTH), FRACTION_BITS)
        sign = words_of(self.session.tanh(steep))
        narrow = arithmetic.truncate(party, sign, WIDE_BITS - RESIDUAL_BITS)
        pulls = head.transposed_products(party, descent.edits, narrow)
        unit = round(descent.edits.rows * 2 ** (FRACTION_BITS + RESIDUAL_BITS - HEAD_BITS) / step.lam)
        mean = arithmetic.divide(party, pulls, unit).sum(axis=0)
        return np.left_shift(self._times(mean, descent.scale_shares, _SCALE_BITS), HEAD_BITS)

    def _prepare(self, batch: Batch, penalty: Penalty | None, step: Step, curvature: Blocks) -> Descent:
        """Scale and mask for one lambda; every process asks with the same objects at the same time."""
        known = self._descent
        if known is not None and all(
            a is b for a, b in zip(known.key, (batch, penalty, step, curvature), strict=True)
        ):
            return known
        party, rank = self.session.party, self.session.rank
        if known is not None:
            self._forget(known.rows, known.both)
            self._descent = None
        scale = 1.0 / np.sqrt(curvature[rank])
        with self.session.measure("mask encodings"):
            rows = head.mask_columns(party, ring.encode(batch.own * scale), self.widths)
        with self.session.measure("mask penalty"):
            square = head.mask_square(party, self._pull(batch, penalty, step, scale))
        edits = None
        if penalty is not None and step.kind == "l1" and step.lam > 0:
            edits = self._edited_rows(penalty)
        shares = self._side_by_side(scale, _SCALE_BITS)
        key = (batch, penalty, step, curvature)
        self._descent = Descent(key, scale, rows, rows.and_below(square), edits, shares)
        return self._descent

    def _pull(self, batch: Batch, penalty: Penalty | None, step: Step, scale: np.ndarray) -> Words:
        """Shares of H in scaled columns, HEAD_BITS: ridge, guards, and squared consistency."""
        party = self.session.party
        pull = np.diag(self._side_by_side(batch.ridge * scale**2, HEAD_BITS))
        if penalty is None:
            return pull
        if step.guard > 0:
            for guard in penalty.guards:
                direction = self._side_by_side(guard * scale * np.sqrt(step.guard), _SCALE_BITS)
                pull = pull + arithmetic.scaled_bilinear(
                    party, "mul", direction[:, None], direction[None, :], 1 << (2 * _SCALE_BITS - HEAD_BITS)
                )
        if step.lam > 0 and step.kind == "squared":
            pull = pull + self._consistency(penalty, step, scale)
        return pull

    def _consistency(self, penalty: Penalty, step: Step, scale: np.ndarray) -> Words:
        """Shares of lambda times the Gram matrix of the edits in scaled columns, HEAD_BITS."""
        root = self._side_by_side(scale * np.sqrt(step.lam), _ROOT_BITS)
        half = arithmetic.scaled_bilinear(self.session.party, "mul", penalty.gram, root[:, None], 1 << _ROOT_BITS)
        unit = 1 << (_GRAM_BITS + _ROOT_BITS - HEAD_BITS)
        return arithmetic.scaled_bilinear(self.session.party, "mul", half, root[None, :], unit)

    def _scaled(self, start: Head, descent: Descent) -> Weights:
        """The head in the columns of this descent."""
        if start.scale is descent.scale:
            return start.weights
        ratio = self._side_by_side(start.scale / descent.scale, _SCALE_BITS)
        both = np.concatenate([start.weights.weight, start.weights.velocity], axis=1)
        weight, velocity = np.split(self._times(both, ratio, _SCALE_BITS), 2, axis=1)
        return Weights(weight, start.weights.bias, velocity, start.weights.bias_velocity)

    # what is opened

    def check_range(self, trained: Head, batch: Batch) -> None:
        """With two classes only: other tasks use no one-round sigmoid."""
        if trained.task != "binary":
            return
        with self.session.measure("validation"):
            rooms = [head.rooms(self.session.party, self._logits(trained, batch), FRACTION_BITS)]
            if self._descent is not None and self._descent.logits is not None:
                rooms.append(head.rooms(self.session.party, self._descent.logits, LOGIT_BITS))
        self.stop_outside(np.concatenate(rooms))

    def stop_outside(self, rooms: Words) -> None:
        """Open whether any of the rooms that logits have left is negative, and stop every party if so."""
        party = self.session.party
        with self.session.measure("validation"):
            outside = choice.some(party, comparison.negative(party, rooms))
            opened = self.session.open(self.session.wrap(outside, 0), self.session.declared(RANGE_CHECK.name))
        if opened is None or int(opened[0]) != 0:
            raise ProtocolError(
                f"logits left the range of the sigmoid (magnitude {LOGIT_BOUND:g}): lower the rate or raise the ridge"
            )

    def measure(self, trained: Head, batch: Batch, penalty: Penalty | None) -> Measures:
        with self.session.measure("validation"):
            logits = self._logits(trained, batch)
            gap = np.zeros(1, np.int64) if penalty is None else self._gap_squared(trained, penalty)
            loss, variance = self._loss(logits, batch, trained.task), self._variance(logits)
            seen = np.concatenate([loss, variance, gap])
            opened = self.session.open(
                self.session.wrap(seen, WIDE_BITS), self.session.declared(VALIDATION_SUMMARY.name)
            )
        if opened is None:
            raise ProtocolError("the validation summary must go to every party")
        mean, spread, square = (max(float(v), 0.0) for v in opened)
        return Measures(mean, spread**0.5, square**0.5)

    def choose(self, known: Choice | None, trained: Head, batch: Batch, penalty: Penalty, target: float) -> Choice:
        """Some 20 rounds, seven of them of the rule; words to each peer: columns several times, and rows twice."""
        party = self.session.party
        with self.session.measure("choice of lambda"):
            weight, bias = self.unscaled(trained)
            gap, variance = self._gap_squared(trained, penalty), self._variance(self._logits(trained, batch))
            met = choice.meets(party, gap, variance, target)
            if known is None:
                return Choice(met, self._plain_head(weight, bias, trained.task))
            before = known.head.weights
            found, kept = choice.first_kept(
                party,
                known.found,
                np.concatenate([before.weight, before.bias[None]]),
                np.concatenate([weight, bias[None]]),
                met,
            )
        return Choice(found, self._plain_head(kept[:-1], kept[-1], trained.task))

    def chosen(self, known: Choice) -> Head:
        return known.head

    def coolest(self, trained: Head, batch: Batch, temperatures: Sequence[float]) -> int:
        with self.session.measure("temperature"):
            rising = self._rising(trained, batch, temperatures)
            opened = self.session.open(self.session.wrap(rising, 0), self.session.declared(TEMPERATURE_CHOICE.name))
        if opened is None:
            raise ProtocolError("the choice of temperature must go to every party")
        found = np.flatnonzero(np.asarray(opened))
        return int(found[0]) if len(found) else len(temperatures) - 1

    def cooled(self, trained: Head, batch: Batch, temperatures: Sequence[float]) -> Head:
        """As many rounds as `coolest`, and those of a clamp: whether logits are in range is not opened here."""
        party = self.session.party
        with self.session.measure("temperature"):
            rising = self._rising(trained, batch, temperatures, clamped=trained.task == "binary")
            inverse = choice.inverse_temperature(party, rising, temperatures, _SCALE_BITS)
            weight, bias = self.unscaled(trained)
            whole = np.concatenate([weight, bias[None]])
            kept = arithmetic.scaled_bilinear(party, "mul", whole, inverse[:, None], 1 << _SCALE_BITS)
        return self._plain_head(kept[:-1], kept[-1], trained.task)

    def _rising(self, trained: Head, batch: Batch, temperatures: Sequence[float], clamped: bool = False) -> Words:
        """Shares of the bits that say whether the loss rises from each temperature to the next."""
        party = self.session.party
        logits = self._logits(trained, batch)
        if clamped:
            logits = words_of(self.session.clamp(self.session.wrap(logits, FRACTION_BITS), LOGIT_BOUND))
        inverse = np.array([round(2**FRACTION_BITS / t) for t in temperatures], np.int64)
        each = max(1, _COOLED_ROWS // batch.rows)
        parts = []
        for start in range(0, len(temperatures), each):
            cooled = arithmetic.truncate(party, inverse[start : start + each, None, None] * logits, FRACTION_BITS)
            parts.append(self._loss_sums(cooled, batch, trained.task, 2 * LOGIT_BOUND))
        losses = np.concatenate(parts)
        return comparison.negative(party, losses[:-1] - losses[1:])

    def logits(self, trained: Head, encodings: Blocks) -> np.ndarray:
        """Logits at the receivers of predictions; elsewhere an empty array."""
        logits = self.shared_logits(trained, encodings)
        opened = self.session.open(self.session.wrap(logits, FRACTION_BITS), self.session.declared(PREDICTIONS.name))
        return np.zeros((0, logits.shape[1])) if opened is None else np.asarray(opened)

    def unscaled(self, trained: Head) -> tuple[Words, Words]:
        """Shares of the head for columns as they are, HEAD_BITS, and of its bias."""
        return self._plain_weight(trained), trained.weights.bias

    def restored(self, weight: Words, bias: Words, task: Task, widths: Sequence[int]) -> Head:
        """A head from the shares of `unscaled`, kept on disk meanwhile."""
        self.widths = tuple(widths)
        return self._plain_head(weight, bias, task)

    def _plain_head(self, weight: Words, bias: Words, task: Task) -> Head:
        """A head at rest, in columns as they are."""
        still, flat = np.zeros_like(weight), np.zeros_like(bias)
        scale = np.ones(self.widths[self.session.rank])
        return Head(Weights(weight, bias, still, flat), scale, task, {"plain": weight})

    def shared_logits(self, trained: Head, encodings: Blocks) -> Words:
        """Shares of the logits of these records, FRACTION_BITS."""
        own = encodings[self.session.rank]
        batch = Batch(own, np.zeros(0), np.zeros((0, 0), np.int64))
        with self.session.measure("prediction"):
            logits = self._logits(trained, batch)
            self._forget(batch.made["rows"])
        return logits

    def shared_shift(self, trained: Head, displacement: Words) -> Words:
        """Shares of what a displacement does to the logits, FRACTION_BITS."""
        party, weight = self.session.party, self._plain_weight(trained)
        wide = arithmetic.bilinear(party, "matmul", displacement, weight)
        return arithmetic.truncate(party, wide, LOGIT_BITS - FRACTION_BITS)

    # parts

    def _logits(self, trained: Head, batch: Batch) -> Words:
        """Shares of the logits, FRACTION_BITS; the batch is masked once, unscaled."""
        party = self.session.party
        if "rows" not in batch.made:
            batch.made["rows"] = head.mask_columns(party, ring.encode(batch.own), self.widths)
        words = head.product(party, batch.made["rows"], self._plain_weight(trained))
        wide = head.logits_of(party, trained.weights, words)
        return arithmetic.truncate(party, wide, LOGIT_BITS - FRACTION_BITS)

    def _plain_weight(self, trained: Head) -> Words:
        if "plain" not in trained.made:
            scale = self._side_by_side(trained.scale, _SCALE_BITS)
            trained.made["plain"] = self._times(trained.weights.weight, scale, _SCALE_BITS)
        return trained.made["plain"]

    def _loss(self, logits: Words, batch: Batch, task: Task) -> Words:
        """Mean loss, WIDE_BITS."""
        return arithmetic.divide(
            self.session.party, self._loss_sums(logits[None], batch, task, LOGIT_BOUND), batch.rows
        )

    def _loss_sums(self, logits: Words, batch: Batch, task: Task, bound: float) -> Words:
        """Summed loss, WIDE_BITS, of each of several sets of logits with FRACTION_BITS."""
        party, label = self.session.party, batch.label
        if task == "regression":
            target = arithmetic.truncate(party, label, RESIDUAL_BITS - FRACTION_BITS)
            return arithmetic.square(party, logits - target).sum(axis=(1, 2))
        if task == "binary":
            factor = label - (1 << (RESIDUAL_BITS - 1) if self.session.rank == 0 else 0)
            even, odd = series.evaluate(party, "log_cosh", logits, bound), logits
        else:
            factor, even = label, np.zeros_like(logits)
            odd = words_of(self.session.wrap(logits, FRACTION_BITS).log_softmax(dim=2))
        unit = 1 << (RESIDUAL_BITS + FRACTION_BITS - WIDE_BITS)
        return (even - arithmetic.scaled_bilinear(party, "mul", factor, odd, unit)).sum(axis=(1, 2))

    def _variance(self, logits: Words) -> Words:
        party, rows = self.session.party, len(logits)
        middle = arithmetic.divide(party, logits.sum(axis=0), rows)
        return arithmetic.divide(party, _total(arithmetic.square(party, logits - middle)), rows)

    def _gap_squared(self, trained: Head, penalty: Penalty) -> Words:
        """Mean squared shift of the logits under the edits, WIDE_BITS: w^T G w."""
        party = self.session.party
        if "gram" not in penalty.made:
            penalty.made["gram"] = head.mask_square(party, penalty.gram)
        weight = self._plain_weight(trained)
        pulled = arithmetic.truncate(party, head.product(party, penalty.made["gram"], weight), _GRAM_BITS)
        whole = arithmetic.scaled_bilinear(party, "mul", pulled, weight, 1 << (2 * HEAD_BITS - WIDE_BITS))
        return _total(whole)

    def _edited_rows(self, penalty: Penalty) -> Tall:
        """All selected displacements under one mask."""
        if "rows" not in penalty.made:
            party = self.session.party
            whole = np.concatenate(penalty.draws)
            bands = [
                head.mask_square(party, whole[start : start + head.BAND_ROWS])
                for start in range(0, len(whole), head.BAND_ROWS)
            ]
            tall = bands[0]
            for band in bands[1:]:
                tall = tall.and_below(band)
            penalty.made["rows"] = tall
        return penalty.made["rows"]

    def _forget(self, *talls: Tall) -> None:
        for number in {number for tall in talls for number in tall.numbers()}:
            self.session.party.tuples.forget(number)

    def _times(self, values: Words, factors: Words, bits: int) -> Words:
        """Columns of shares times a shared vector with `bits` fractional bits."""
        return arithmetic.scaled_bilinear(self.session.party, "mul", values, factors[:, None], 1 << bits)

    def _side_by_side(self, own: np.ndarray, bits: int) -> Words:
        """Shares of a vector over all columns of which each party knows its own part. No communication."""
        at = sum(self.widths[: self.session.rank])
        shares = self.session.party.zero_share((sum(self.widths),))
        shares[at : at + len(own)] += ring.encode(own, bits)
        return shares

    def _held(self, values: np.ndarray | None, owner: int, shape: tuple[int, ...], bits: int) -> Words:
        """Shares of what one party holds."""
        shares = self.session.party.zero_share(shape)
        if self.session.rank == owner:
            shares += ring.encode(np.asarray(values), bits)
        return shares


def _total(words: Words) -> Words:
    """The sum as an array of one: scalars of numpy warn where the ring wraps."""
    total: Words = words.reshape(-1).sum(keepdims=True)
    return total
