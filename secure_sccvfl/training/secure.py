"""The Engine in secret: the same training code, on shares. One instance per party process.

Each party passes its own blocks and gets back handles that hold shares. Encodings go under masks of their owner
once per scaling of the columns (protocols/steps/head.py). Owners scale their own columns by the root of the
curvature, which makes the plain step the preconditioned one. The penalty is one secret matrix H per lambda:
consistency (a Gram matrix of edits, selected by the secret one-hot of s), guards and ridge. Heads with
squared consistency take second-order steps, all lambdas at once (protocols/steps/second_order.py); the others take
first-order steps, one lambda after another. One bit is opened: whether logits left the range of the sigmoid, or a
head has not settled. Where evaluation is exact, three scalars for each lambda are opened too. Otherwise one head is
chosen in secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from protocols import ring
from protocols.alignment.presence import RATIO_BITS, Presence
from protocols.errors import ProtocolError
from protocols.operations import arithmetic, banded, choice, comparison
from protocols.operations.banded import BandedMatrix
from protocols.operations.noise import noise_share
from protocols.records.releases import Receipt
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session
from protocols.steps import head, second_order
from protocols.steps.aggregation import TooFew, aggregate
from protocols.steps.head import HEAD_BITS, LOGIT_BITS, LOGIT_BOUND, RESIDUAL_BITS, Pace, Weights
from protocols.steps.second_order import MATRIX_BITS, room_to_settle
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.model.table_gram import TableGram
from secure_sccvfl.privacy import releases
from secure_sccvfl.privacy.gram import GramNoise
from secure_sccvfl.privacy.heads import HeadNoise
from secure_sccvfl.privacy.kinds import Kind
from secure_sccvfl.training import shared_measures
from secure_sccvfl.training.descents import edited
from secure_sccvfl.training.descents.first_order import ROOT_BITS, SCALE_BITS, consistency, stepped, times
from secure_sccvfl.training.descents.grid import Bounds, Grid
from secure_sccvfl.training.descents.shared import (
    advanced,
    columns_of,
    every_label,
    gradient_at,
    guessed,
    prepared,
    sharpened,
)
from secure_sccvfl.training.engine import CURVATURE, LARGEST_LOGIT, UNSETTLED, Measures, Step, Target
from secure_sccvfl.training.handles import (
    SharedBatch,
    SharedChoices,
    SharedDescent,
    SharedEdits,
    SharedGrid,
    SharedHead,
    SharedPenalty,
    SharedRows,
)
from secure_sccvfl.training.sharing import counted, share_columns, share_label, with_bias

_TOTAL_BOUND = 2.0**20
_COMPARED = 1 << 19  # values at once: each takes some 200 bytes of memory


class SecureEngine:
    """One party's end of the secret engine."""

    def __init__(self, session: Session, label_holder: int, group_holders: Sequence[int]) -> None:
        self.session = session
        self.label_holder, self.group_holders = label_holder, tuple(group_holders)
        self.widths: tuple[int, ...] = ()
        self._prepared = 0
        self._kept_masks: tuple[BandedMatrix, ...] = ()

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        return self.session.announce(values, self.session.declared(name))

    def total(self, name: str, values: Sequence[float], present: bool = True) -> tuple[float, ...] | None:
        """Three rounds; refused, and so None, if fewer than two parties are present."""
        try:
            summed = aggregate(self.session, values, _TOTAL_BOUND, self.session.declared(name), present=present).total
        except TooFew:
            return None
        if summed is None:
            raise ProtocolError(f"the sums {name!r} must go to every party")
        return tuple(summed.tolist())

    # inputs

    def select(self, choices: Iterable[Blocks], groups: AtHolder, attribute: int = 0) -> SharedRows:
        """One round for each owner of columns and 2^21 words; a party that is owner and holder sends nothing.

        An owner sends its choices under a mask to the holder, which sends it the one-hot of s under another.
        """
        rank, made = self.session.rank, list(choices)
        self._learn_widths(made[0][rank].shape[1])
        (words,) = self.selected([made], groups, attribute).draws
        return SharedRows(words, np.max([np.abs(blocks[rank]).max(axis=0, initial=0.0) for blocks in made], axis=0))

    def bind(
        self,
        encodings: Blocks | SharedRows,
        label: AtHolder,
        ridge: Blocks,
        outputs: int = 1,
        presence: Presence | None = None,
        classes: bool = False,
    ) -> SharedBatch:
        rank = self.session.rank
        own = self._own(encodings)
        rows = len(own.words) if isinstance(own, SharedRows) else len(own)
        if not isinstance(own, SharedRows):
            self._learn_widths(own.shape[1])
        if presence is not None:
            own = counted(self.session.party, self.widths, own, presence)
        shared = share_label(self.session, label, self.label_holder, (rows, outputs), 0 if classes else RESIDUAL_BITS)
        if classes:
            return SharedBatch(own, ridge[rank], np.left_shift(shared, RESIDUAL_BITS), codes=shared)
        return SharedBatch(own, ridge[rank], shared)

    def _own(self, encodings: Blocks | SharedRows) -> np.ndarray | SharedRows:
        """This party's own block, or the rows that s has selected."""
        return encodings if isinstance(encodings, SharedRows) else encodings[self.session.rank]

    def _learn_widths(self, own: int) -> None:
        """Announce the number of own columns, once; it must stay the same."""
        rank = self.session.rank
        if not self.widths:
            widths = self.publish(releases.COLUMNS.name, {str(rank): own})
            self.widths = tuple(int(widths[str(r)]) for r in range(self.session.parties))
        if own != self.widths[rank]:
            raise ValueError(f"encodings have {own} columns, earlier ones {self.widths[rank]}")

    def edits(
        self,
        deltas: Iterable[Iterable[Blocks]],
        groups: AtHolder,
        attribute: int = 0,
        moving: Mapping[int, np.ndarray] | None = None,
        presence: Presence | None = None,
    ) -> SharedEdits:
        found = self.selected(deltas, groups, attribute, moving)
        total = sum(len(chosen) for chosen in found.draws)
        if presence is not None:
            found = replace(found, draws=tuple(presence.kept(self.session.party, one) for one in found.draws))
            total = len(found.draws) * presence.count
        with self.session.measure("gram of edits"):
            raw = banded.gram(self.session.party, found.draws)
            mean = arithmetic.divide(self.session.party, raw, total << (2 * FRACTION_BITS - MATRIX_BITS))
        return SharedEdits(found, edited.spread_out(mean, found.columns, sum(self.widths)))

    def selected(
        self,
        deltas: Iterable[Iterable[Blocks]],
        groups: AtHolder,
        attribute: int = 0,
        moving: Mapping[int, np.ndarray] | None = None,
    ) -> SharedChoices:
        """What s selects of every draw; `moving` as of `Engine.edits`."""
        holder = self.group_holders[attribute]
        return edited.selected(self.session, self.widths, holder, deltas, groups, moving)

    def join(self, edits: Sequence[SharedEdits], guards: Sequence[Blocks]) -> SharedPenalty:
        gram = np.sum([e.gram for e in edits], axis=0)
        if len(edits) > 1:
            gram = arithmetic.divide(self.session.party, gram, len(edits))
        own = tuple(g[self.session.rank] for g in guards)
        chosen = SharedChoices(tuple(d for e in edits for d in e.chosen.draws), edits[0].chosen.columns)
        return SharedPenalty(chosen, gram, own)

    def expected(self, grams: Sequence[Mapping[int, TableGram]], guards: Sequence[Blocks]) -> SharedPenalty:
        """Two rounds: 2 x pairs of groups x columns words, and its size to truncate. A block stays at its owner."""
        party, rank, width = self.session.party, self.session.rank, sum(self.widths)
        share = 1.0 / len(grams)
        with self.session.measure("gram of tables"):
            own = np.concatenate([gram[rank].vectors for gram in grams]) * np.sqrt(share)
            vectors = self._side_by_side(own, HEAD_BITS)
            gram = arithmetic.scaled_bilinear(
                party, "matmul", vectors.T.copy(), vectors, 1 << (2 * HEAD_BITS - MATRIX_BITS)
            )
            at = sum(self.widths[:rank])
            here = slice(at, at + self.widths[rank])
            gram[here, here] += ring.encode(sum(gram_of[rank].within for gram_of in grams) * share, MATRIX_BITS)
        nothing = SharedChoices((), np.zeros(0, int))
        return SharedPenalty(nothing, gram.reshape(width, width), tuple(guard[rank] for guard in guards))

    def noisy_gram(
        self,
        deltas: Sequence[Iterable[Iterable[Blocks]]],
        groups: Sequence[AtHolder],
        moving: Mapping[int, np.ndarray],
        presence: Presence | None,
        charge: Callable[[], GramNoise],
    ) -> np.ndarray:
        """The rounds of `edits` without a division, and two to open m x m words for the m columns that edits reach.

        Before: an owner has the edits of its records for every group, the holder has s. After: all have the sum with
        the noise of the event that was charged, and nothing else. S is exact in the unit of a product, so the noise
        is discrete in that unit.
        """
        party, chosen = self.session.party, []
        for attribute, (made, codes) in enumerate(zip(deltas, groups, strict=True)):
            found = self.selected(made, codes, attribute, moving)
            chosen += [draw if presence is None else presence.kept(party, draw) for draw in found.draws]
        with self.session.measure("gram of edits"):
            summed = banded.gram(party, chosen)
            paid, count = charge(), len(summed)
            summed = summed + noise_share(party, paid.kind, paid.sigma * 2.0**WIDE_BITS, count, [()] * count)
            opened = self._told(summed, WIDE_BITS, releases.GRAM, paid.receipt)
        whole = np.zeros((sum(self.widths),) * 2)
        whole[np.ix_(found.columns, found.columns)] = opened
        return whole

    def head(self, batch: SharedBatch, outputs: int, task: Task) -> SharedHead:
        columns = sum(self.widths)
        zero, bias = np.zeros((columns, outputs), np.int64), np.zeros(outputs, np.int64)
        return SharedHead(Weights(zero, bias, zero, bias), np.ones(self.widths[self.session.rank]), task)

    # training

    def prepare(
        self, batch: SharedBatch, penalty: SharedPenalty | None, step: Step, curvature: Blocks
    ) -> SharedDescent:
        """Scale and mask. All processes prepare the same descent together. Masks of the last descent are dropped."""
        party, rank = self.session.party, self.session.rank
        self._forget(*self._kept_masks)
        self._kept_masks = ()
        scale = 1.0 / np.sqrt(curvature[rank])
        with self.session.measure("mask encodings"):
            rows = self._masked(batch.own, scale)
        with self.session.measure("mask penalty"):
            pull = self._pull(batch, penalty, step, scale)
            square = banded.mask_square(party, np.pad(pull, (0, rows.columns - len(pull))))
        edits = None
        if penalty is not None and step.kind == "l1" and step.lam > 0:
            edits = self._edited_rows(penalty)
        shares = self._side_by_side(scale, SCALE_BITS)
        both = rows.stacked(square)
        self._prepared, self._kept_masks = self._prepared + 1, (rows, both)
        reached = np.zeros(0, int) if penalty is None else penalty.chosen.columns
        return SharedDescent(self._prepared, batch, step, scale, rows, both, edits, reached, shares)

    def steps(
        self, start: SharedHead, descent: SharedDescent | SharedGrid, count: int, *, fine: bool = False
    ) -> SharedHead:
        self._check_last(descent)
        if isinstance(descent, SharedGrid):
            return self._grid_steps(start, descent, count, fine)
        weights, logits = self._scaled(start, descent), start.last_logits
        pace = Pace(descent.step.rate, descent.step.momentum, CURVATURE[start.task])
        with self.session.measure("training step"):
            for _ in self.session.repeat(count, descent.pattern):
                weights, logits = stepped(self.session, weights, descent, pace, start.task)
        return SharedHead(weights, descent.scale, start.task, descent.number, logits)

    def _pull(self, batch: SharedBatch, penalty: SharedPenalty | None, step: Step, scale: np.ndarray) -> Words:
        """Shares of H in scaled columns, HEAD_BITS: ridge, guards, and squared consistency."""
        party = self.session.party
        pull = np.diag(self._side_by_side(batch.ridge * scale**2, HEAD_BITS))
        if penalty is not None and step.guard > 0:
            for guard in penalty.guards:
                direction = self._side_by_side(guard * scale * np.sqrt(step.guard), SCALE_BITS)
                pull = pull + arithmetic.scaled_bilinear(
                    party, "mul", direction[:, None], direction[None, :], 1 << (2 * SCALE_BITS - HEAD_BITS)
                )
        if batch.presence is not None:  # sums over records are divided by another number than that of records
            ratio = batch.presence.ratio(party)
            pull = arithmetic.scaled_bilinear(party, "mul", pull, ratio, 1 << RATIO_BITS)
        if penalty is not None and step.lam > 0 and step.kind == "squared":
            root = self._side_by_side(scale * np.sqrt(step.lam), ROOT_BITS)
            pull = pull + consistency(party, penalty.gram, root)
        return pull

    def _scaled(self, start: SharedHead, descent: SharedDescent | SharedGrid) -> Weights:
        """The head in the columns of this descent."""
        if start.weights.zero or start.descent == self._columns_of(descent):
            return start.weights
        ratio = self._side_by_side(start.scale / descent.scale, SCALE_BITS)
        both = np.concatenate([start.weights.weight, start.weights.velocity], axis=1)
        weight, velocity = np.split(times(self.session.party, both, ratio), 2, axis=1)
        return Weights(weight, start.weights.bias, velocity, start.weights.bias_velocity)

    @staticmethod
    def _columns_of(descent: SharedDescent | SharedGrid) -> int:
        """Number of the descent that has scaled the columns."""
        return descent.columns if isinstance(descent, SharedGrid) else descent.number

    def prepare_grid(
        self,
        batch: SharedBatch,
        penalty: SharedPenalty | None,
        grid: Grid,
        bounds: Bounds,
        noise: HeadNoise | None = None,
    ) -> SharedGrid:
        """About 7 rounds and two for each doubling (protocols/steps/second_order.py)."""
        self._forget(*self._kept_masks)
        self._kept_masks = ()
        self._prepared += 1
        made = prepared(self.session, self.widths, batch, penalty, grid, bounds, self._prepared, noise)
        self._kept_masks = (made.rows, made.masks)
        return made

    def sharpen(self, start: SharedHead, descent: SharedGrid) -> SharedGrid:
        """About 8 rounds and two for each doubling (protocols/steps/second_order.py)."""
        self._check_last(descent)
        self._prepared += 1
        made = sharpened(self.session, descent, self._scaled(start, descent), self._prepared)
        rows, stack = self._kept_masks
        self._forget(stack)
        self._kept_masks = (rows, made.masks)
        return made

    def _check_last(self, descent: SharedDescent | SharedGrid) -> None:
        if descent.number != self._prepared:
            raise ValueError("this descent has ended: another one was prepared, and the masks of this one are gone")

    def _residuals(self, descent: SharedGrid, heads: int, task: Task, fine: bool) -> Callable[[Words, slice], Words]:
        """From the logits of some heads of a grid, and which these are, to the slope of their loss."""
        every = every_label(descent.batch, heads, True) if descent.private is not None else None
        plain = np.tile(descent.batch.label, heads // descent.batch.label.shape[1])

        def residual(logits: Words, here: slice) -> Words:
            if every is not None:
                return shared_measures.residual_of_private(self.session, logits, every[:, here], task, fine)
            return shared_measures.residual_of(self.session, logits, plain[:, here], task)

        return residual

    def _grid_steps(self, start: SharedHead, descent: SharedGrid, count: int, fine: bool) -> SharedHead:
        """Seven rounds for a step of every part of the grid, two where its gradient is known."""
        before = self._scaled(start, descent)
        residual = self._residuals(descent, len(start.weights.bias), start.task, fine)
        if fine:  # these steps ask the dealer for other tuples
            descent = replace(descent, parts=tuple((part, []) for part, _ in descent.parts))
        with self.session.measure("training step"):
            weights, logits, slope = advanced(self.session, before, descent, count, residual)
        if logits is None:
            logits, slope = start.last_logits, start.slope
        return SharedHead(weights, descent.scale, start.task, descent.columns, logits, slope=slope)

    def finish(self, trained: SharedHead, descent: SharedGrid) -> SharedHead:
        """One more gradient (five rounds), a check of eleven, and noise without a round."""
        self._check_last(descent)
        if descent.private is None:
            raise ValueError("this descent is not of private heads")
        party, private, noise = self.session.party, descent.private, descent.private.noise
        before, task = self._scaled(trained, descent), trained.task
        heads = np.concatenate([before.weight, before.bias[None]])
        residual = self._residuals(descent, heads.shape[1], task, True)
        with self.session.measure("finished head"):
            parts = [
                gradient_at(
                    party,
                    descent,
                    heads[:, part.start : part.stop],
                    part.start,
                    lambda logits, here=slice(part.start, part.stop): residual(logits, here),  # type: ignore[misc]
                )[0]
                for part, _ in descent.parts
            ]
            longest = LARGEST_LOGIT[task] / noise.radius
            room, plain = second_order.room_of_private(
                party, np.concatenate(parts, axis=1), heads, private.scales, longest, noise.tolerance
            )
        self._stop_unfinished(room)
        plain = plain + second_order.noise_of_heads(party, noise.kind, noise.output, plain.shape, HEAD_BITS)
        return self.plain_head(plain[:-1], plain[-1], task)

    def apart(self, trained: SharedHead, outputs: int = 1) -> tuple[SharedHead, ...]:
        """Two rounds: the weights are unscaled together."""
        return columns_of(trained, self._plain_weight(trained), outputs)

    # what is opened

    def check_range(self, heads: Sequence[SharedHead], batch: SharedBatch) -> None:
        """Only for classes: a regression uses no sigmoid, and its steps end at the optimum."""
        if heads[0].task == "regression":
            return
        party = self.session.party
        slopes = [one.slope for one in heads if one.slope is not None]
        with self.session.measure("validation"):
            headroom = [head.headroom(party, self._logits(heads, batch), FRACTION_BITS)]
            seen = [one.last_logits for one in heads if one.last_logits is not None]
            headroom += [head.headroom(party, logits, LOGIT_BITS) for logits in seen]
            headroom += [room_to_settle(party, slopes)] if slopes else []
        self.stop_outside(np.concatenate(headroom), bool(slopes))

    def stop_outside(self, headroom: Words, settling: bool = False) -> None:
        """Open whether any headroom is negative, and stop every party if so. `settling`: some of it is of steps."""
        party = self.session.party
        with self.session.measure("validation"):
            parts = np.array_split(headroom, ceil(headroom.size / _COMPARED))
            outside = choice.some(party, np.concatenate([comparison.negative(party, part) for part in parts]))
            found = self._told(outside, 0, releases.RANGE_CHECK)
        if int(found[0]) != 0:
            left = f"logits left the range of the sigmoid (magnitude {LOGIT_BOUND:g})"
            raise ProtocolError(
                f"{UNSETTLED}; or {left}" if settling else f"{left}: lower the rate or raise the ridge"
            )

    def _stop_unfinished(self, room: Words) -> None:
        """Open how many checks of private heads fail, and stop every party if any does; eight rounds."""
        with self.session.measure("validation"):
            failed = comparison.negative(self.session.party, room).sum(keepdims=True)
            found = self._told(failed, 0, releases.RANGE_CHECK)
        if int(found[0]) != 0:
            raise ProtocolError(UNSETTLED)

    def measure(
        self, heads: Sequence[SharedHead], batch: SharedBatch, penalty: SharedPenalty | None, flips: bool = False
    ) -> tuple[Measures, ...]:
        """The rounds of one head, for all of them."""
        if batch.presence is not None:
            raise ProtocolError("means over records that are counted in secret are not opened exactly")
        party, count = self.session.party, len(heads)
        with self.session.measure("validation"):
            logits = self._logits(heads, batch).reshape(batch.rows, count, -1)
            gap = shared_measures.gap_squared(party, penalty, self._weights(heads), count)
            loss = shared_measures.mean_losses(self.session, logits, batch.label, heads[0].task, LOGIT_BOUND)
            spread = shared_measures.variance(party, logits)
            flipped, among = (np.zeros(count, np.int64), 1) if not flips else self._flips(heads, logits, penalty)
            rate = arithmetic.divide(party, np.left_shift(flipped, WIDE_BITS), among)
            seen = self._told(np.stack([loss, spread, gap, rate], axis=1), WIDE_BITS, releases.VALIDATION_SUMMARY)
        rows = np.maximum(seen, 0.0).tolist()
        return tuple(Measures(mean, sq**0.5, gap**0.5, share if flips else None) for mean, sq, gap, share in rows)

    def choose(
        self, heads: Sequence[SharedHead], batch: SharedBatch, penalty: SharedPenalty, target: Target
    ) -> SharedHead:
        """About 20 rounds, seven of them for the rule, and one for each head. Words: as of `measure`."""
        party, task = self.session.party, heads[0].task
        with self.session.measure("choice of lambda"):
            logits = self._logits(heads, batch).reshape(batch.rows, len(heads), -1)
            met = self._meets(heads, logits, penalty, target, batch.presence)
            whole = [np.concatenate([weight, bias[None]]) for weight, bias in map(self.unscaled, heads)]
            kept = choice.first_of(party, whole, met)
        return self.plain_head(kept[:-1], kept[-1], task)

    def _meets(
        self,
        heads: Sequence[SharedHead],
        logits: Words,
        penalty: SharedPenalty,
        target: Target,
        presence: Presence | None,
    ) -> Words:
        """Shares of the bits that say whether each head meets the target."""
        party = self.session.party
        if target.measure == "gap":
            gap = shared_measures.gap_squared(party, penalty, self._weights(heads), len(heads))
            return choice.meets(party, *shared_measures.gap_and_spread(party, gap, logits, presence), target.most)
        flipped, among = self._flips(heads, logits, penalty)
        room = shared_measures.room_for_flips(party, flipped, among, target.most, presence)
        return (1 if party.rank == 0 else 0) - comparison.negative(party, room)

    def best_temperature(self, trained: SharedHead, batch: SharedBatch, temperatures: Sequence[float]) -> int:
        with self.session.measure("temperature"):
            rising = self._rising(trained, batch, temperatures)
            found = np.flatnonzero(self._told(rising, 0, releases.TEMPERATURE_CHOICE))
        return int(found[0]) if len(found) else len(temperatures) - 1

    def with_best_temperature(
        self, trained: SharedHead, batch: SharedBatch, temperatures: Sequence[float]
    ) -> SharedHead:
        """The rounds of `best_temperature` and of a clamp: it does not open whether logits are in range."""
        party = self.session.party
        with self.session.measure("temperature"):
            rising = self._rising(trained, batch, temperatures, clamped=trained.task != "regression")
            inverse = choice.inverse_temperature(party, rising, temperatures, SCALE_BITS)
            weight, bias = self.unscaled(trained)
            whole = np.concatenate([weight, bias[None]])
            kept = arithmetic.scaled_bilinear(party, "mul", whole, inverse[:, None], 1 << SCALE_BITS)
        return self.plain_head(kept[:-1], kept[-1], trained.task)

    def _rising(
        self, trained: SharedHead, batch: SharedBatch, temperatures: Sequence[float], clamped: bool = False
    ) -> Words:
        """Shares of the bits that say whether the loss rises from each temperature to the next."""
        logits, task = self._logits([trained], batch), trained.task
        return shared_measures.rising(self.session, logits, batch.label, task, temperatures, LOGIT_BOUND, clamped)

    def guess(self, descent: SharedGrid, targets: AtHolder, outputs: int, attribute: int) -> SharedHead:
        """Four rounds (protocols/steps/second_order.py)."""
        self._check_last(descent)
        batch, holder = descent.batch, self.group_holders[attribute]
        with self.session.measure("leak"):
            shares = share_label(self.session, targets, holder, (batch.rows, outputs), RESIDUAL_BITS)
            return guessed(self.session.party, descent, shares)

    def recovered(
        self, trained: SharedHead, batch: SharedBatch, groups: AtHolder, attribute: int, count: int, floor: int
    ) -> tuple[float, ...]:
        with self.session.measure("leak"):
            holder, logits = self.group_holders[attribute], self._logits([trained], batch)
            figures = shared_measures.recovered(self.session, logits, groups, holder, count, floor)
            return tuple(self._told(figures, WIDE_BITS, releases.LEAK).tolist())

    def logits(self, trained: SharedHead, encodings: Blocks | SharedRows) -> np.ndarray:
        """Logits at the receivers of predictions; elsewhere an empty array."""
        logits = self.shared_logits(trained, encodings)
        opened = self.session.open(logits, self.session.declared(releases.PREDICTIONS.name))
        return np.zeros((0, logits.size(1))) if opened is None else np.asarray(opened)

    def unscaled(self, trained: SharedHead) -> tuple[Words, Words]:
        """Shares of the head for unscaled columns, HEAD_BITS, and of its bias."""
        return self._plain_weight(trained), trained.weights.bias

    def restored(self, weight: Words, bias: Words, task: Task, widths: Sequence[int]) -> SharedHead:
        """A head from the shares of `unscaled`, which were kept on disk."""
        self.widths = tuple(widths)
        return self.plain_head(weight, bias, task)

    def plain_head(self, weight: Words, bias: Words, task: Task) -> SharedHead:
        """A head outside any descent, for unscaled columns."""
        still, flat = np.zeros_like(weight), np.zeros_like(bias)
        scale = np.ones(self.widths[self.session.rank])
        return SharedHead(Weights(weight, bias, still, flat), scale, task, plain_weight=weight)

    def shared_logits(self, trained: SharedHead, encodings: Blocks | SharedRows, *more: SharedHead) -> Any:
        """The logits of these records as a CrypTen tensor; of more heads next to them, in no round more."""
        with self.session.measure("prediction"):
            masked = self._masked(self._own(encodings))
            logits = self._logits_of([trained, *more], masked)
            self._forget(masked)
        return self.session.wrap(logits, FRACTION_BITS)

    def shared_shift(self, trained: SharedHead, chosen: SharedChoices) -> Any:
        """The change of the logits by the displacements of one draw, as a CrypTen tensor."""
        (shift,) = self._shifts([trained], chosen)
        return self.session.wrap(shift, FRACTION_BITS)

    def _shifts(self, heads: Sequence[SharedHead], chosen: SharedChoices) -> list[Words]:
        """Of every draw: rows x heads, FRACTION_BITS."""
        party, weights = self.session.party, self._weights(heads)[chosen.columns]
        wide = [arithmetic.bilinear(party, "matmul", draw, weights) for draw in chosen.draws]
        return [arithmetic.truncate(party, shift, LOGIT_BITS - FRACTION_BITS) for shift in wide]

    # parts

    def _told(self, words: Words, bits: int, kind: Kind, receipt: Receipt | None = None) -> np.ndarray:
        """Open what every party gets."""
        opened = self.session.open(self.session.wrap(words, bits), self.session.declared(kind.name), receipt)
        if opened is None:
            raise ProtocolError(f"release {kind.name!r} must go to every party")
        return np.asarray(opened)

    def _logits(self, heads: Sequence[SharedHead], batch: SharedBatch) -> Words:
        """Shares of the logits, FRACTION_BITS, of all heads side by side; the batch is masked once, unscaled."""
        if batch.masked is None:
            batch.masked = self._masked(batch.own)
        if batch.seen is None or batch.seen[0] != tuple(heads):
            batch.seen = (tuple(heads), self._logits_of(heads, batch.masked))
        return batch.seen[1]

    def _masked(self, own: np.ndarray | SharedRows, scale: np.ndarray | None = None) -> BandedMatrix:
        """Encodings of all parties under masks of their owners, or selected rows under masks of nobody.

        `scale`: a factor for each own column.
        """
        party, factor = self.session.party, 1.0 if scale is None else scale
        if not isinstance(own, SharedRows):
            return banded.mask_columns(party, ring.encode(own * factor), self.widths)
        banded.check_columns(ring.encode(own.reach * factor))
        words = own.words
        if scale is not None:
            words = head.scaled_columns(party, words, self._side_by_side(scale, SCALE_BITS), SCALE_BITS)
        return banded.mask_rows(party, words if own.presence is None else with_bias(own, words, party.rank))

    def _logits_of(self, heads: Sequence[SharedHead], rows: BandedMatrix) -> Words:
        party = self.session.party
        bias, weights = np.concatenate([one.weights.bias for one in heads]), self._weights(heads)
        if rows.columns > len(weights):  # the last column is that of the bias
            wide = banded.product(party, rows, np.concatenate([weights, bias[None]]))
        else:
            wide = head.logits_of(banded.product(party, rows, weights), bias)
        return arithmetic.truncate(party, wide, LOGIT_BITS - FRACTION_BITS)

    def _weights(self, heads: Sequence[SharedHead]) -> Words:
        """Weights for unscaled columns, side by side."""
        return np.concatenate([self._plain_weight(one) for one in heads], axis=1)

    def _plain_weight(self, trained: SharedHead) -> Words:
        if trained.plain_weight is None:
            scale = self._side_by_side(trained.scale, SCALE_BITS)
            trained.plain_weight = times(self.session.party, trained.weights.weight, scale)
        return trained.plain_weight

    def _flips(self, heads: Sequence[SharedHead], logits: Words, penalty: SharedPenalty | None) -> tuple[Words, int]:
        shifts = [] if penalty is None else self._shifts(heads, penalty.chosen)
        return shared_measures.flips(self.session, logits, [shift.reshape(logits.shape) for shift in shifts])

    def _edited_rows(self, penalty: SharedPenalty) -> BandedMatrix:
        """All selected displacements under one mask."""
        if penalty.masked_rows is None:
            penalty.masked_rows = banded.mask_rows(self.session.party, np.concatenate(penalty.chosen.draws))
        return penalty.masked_rows

    def _forget(self, *talls: BandedMatrix) -> None:
        for number in {number for tall in talls for number in tall.numbers()}:
            self.session.party.tuples.forget(number)

    def _side_by_side(self, own: np.ndarray, bits: int) -> Words:
        """Shares of a vector over all columns, where each party knows its own part. No communication."""
        return share_columns(self.session.party, self.widths, own, bits)
