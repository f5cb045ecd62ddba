"""The Engine under MPC: the same training code, on CrypTen tensors. One instance per party process.

Each party passes its own blocks and gets back objects that hold shares (`shared`). Encodings go under masks of their
owner once per scaling of the columns (protocols/steps/head.py). Owners scale their own columns by the root of the
curvature, which makes the plain step the preconditioned one. The penalty is one secret matrix H per lambda:
consistency (a Gram matrix of counterfactuals, selected by the secret one-hot of s), proxies and ridge. Weights of
linear heads take second-order steps, all lambdas at once; the warm-up takes first-order steps, and a module steps by
CrypTen's autograd (`secure_steps`). One bit is opened: whether logits left the range of the sigmoid, or a head has
not converged. Where evaluation is exact, three scalars for each lambda are opened too. Otherwise one head is chosen
under MPC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import torch

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.models.table_gram import TableGram
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.releases import Receipt
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps import choice, head, second_order
from secure_sccvfl.protocols.steps.aggregation import TooFew, aggregate
from secure_sccvfl.protocols.steps.head import HEAD_BITS, LOGIT_BOUND, RESIDUAL_BITS, Pace, Weights
from secure_sccvfl.protocols.steps.second_order import MATRIX_BITS, Shared, room_to_settle
from secure_sccvfl.releases import catalogue as releases
from secure_sccvfl.releases.catalogue import Kind
from secure_sccvfl.releases.mechanisms import GramNoise, HeadNoise
from secure_sccvfl.training import secure_steps
from secure_sccvfl.training.engine import CURVATURE, LARGEST_LOGIT, UNSETTLED, Measures, Step
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.modules import HeadSpec
from secure_sccvfl.training.proven import TRAINING, Committed, Records, commit, proven_numbers, rows_of
from secure_sccvfl.training.secure_steps import ROOT_BITS, SCALE_BITS, consistency, times
from secure_sccvfl.training.shared import (
    NO_DRAWS,
    Scaled,
    SharedBatch,
    SharedDraws,
    SharedGrid,
    SharedHead,
    SharedModule,
    SharedModuleOptimizer,
    SharedOptimizer,
    SharedPenalty,
    SharedRows,
    in_head_group,
    on_diagonal,
    over_all_columns,
    present_rows,
    selected,
    share_label,
    side_by_side,
    with_bias,
)

Heads = Sequence[Any]
"""Heads of one kind: `SharedHead`, or modules (`SharedModule`)."""
Optimizer = SharedOptimizer | SharedGrid | SharedModuleOptimizer
_TOTAL_BOUND = 2.0**20
_GRAM_BITS, _GRAM_REACH = 18, 3
"""Fraction of the rows of a penalty with active security; owners prove that they are below 2^3 in magnitude."""
_COMPARED = 1 << 19  # values at once: each takes some 200 bytes of memory


class SecureEngine:
    """One party's side of the engine under MPC.

    claim: called before anything that follows from private heads is opened; it raises if they must not be finished.
    """

    def __init__(
        self,
        session: Session,
        label_holder: int,
        group_holders: Sequence[int],
        claim: Callable[[], None] = lambda: None,
    ) -> None:
        self.session, self._claim = session, claim
        self.label_holder, self.group_holders = label_holder, tuple(group_holders)
        self.widths: tuple[int, ...] = ()
        self._prepared = 0
        self._kept_masks: tuple[Shared, ...] = ()
        self._committed: dict[str, Committed] = {}
        """With active security: the records of each part."""

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
        """One round for each owner of columns and 2^21 ring elements; a party that is owner and holder sends nothing.

        An owner sends its choices under a mask to the holder, which sends it the one-hot of s under another.
        """
        rank, per_group = self.session.rank, list(choices)
        self._learn_widths(per_group[0][rank].shape[1])
        (tensor,) = self.selected([per_group], groups, attribute).draws
        return SharedRows(
            tensor, np.max([np.abs(blocks[rank]).max(axis=0, initial=0.0) for blocks in per_group], axis=0)
        )

    def bind(
        self,
        encodings: Blocks | SharedRows,
        label: AtHolder,
        ridge: Blocks,
        outputs: int = 1,
        membership: MembershipMask | None = None,
        classes: bool = False,
        records: Records | None = None,
    ) -> SharedBatch:
        rank = self.session.rank
        encoded = self._local_rows(encodings)
        if self.session.active:
            encoded = self._proven_rows(encoded, records)
        rows = int(encoded.tensor.size(0)) if isinstance(encoded, SharedRows) else len(encoded)
        if not isinstance(encoded, SharedRows):
            self._learn_widths(encoded.shape[1])
        if membership is not None:
            encoded = present_rows(self.session, self.widths, encoded, membership)
        shared = share_label(
            self.session.tall, label, self.label_holder, (rows, outputs), 0 if classes else RESIDUAL_BITS
        )
        if classes:
            return SharedBatch(encoded, ridge[rank], shared.rescale(RESIDUAL_BITS), codes=shared)
        return SharedBatch(encoded, ridge[rank], shared)

    def _proven_rows(self, encoded: np.ndarray | SharedRows, records: Records | None) -> SharedRows:
        """The encodings, computed from what owners commit to at the first call for a part."""
        if isinstance(encoded, SharedRows) or records is None:
            raise ProtocolError("active security covers private heads on plain encodings only")
        self._learn_widths(encoded.shape[1])
        if self.widths != tuple(form.columns for form in records.forms):
            raise ProtocolError("the widths of the parties' encodings are not those of the public description")
        if records.part not in self._committed:
            own = records.forms[self.session.rank].of(records.inputs[self.session.rank])
            self._committed[records.part] = commit(self.session, records.forms, own)
            if records.part == TRAINING:
                self.session.committed |= self._committed[records.part].features(records.forms)
        tensor = rows_of(records.forms, self._committed[records.part])
        return SharedRows(tensor, np.abs(encoded).max(axis=0, initial=0.0))

    def _local_rows(self, encodings: Blocks | SharedRows) -> np.ndarray | SharedRows:
        """This party's own block, or the rows that s has selected."""
        return encodings if isinstance(encodings, SharedRows) else encodings[self.session.rank]

    def _learn_widths(self, columns: int) -> None:
        """Announce the number of own columns, once; it must stay the same."""
        rank = self.session.rank
        if not self.widths:
            widths = self.publish(releases.COLUMNS.name, {str(rank): columns})
            if set(widths) != {str(r) for r in range(self.session.parties)}:
                raise ProtocolError("the parties did not each announce the number of their own columns")
            self.widths = tuple(int(widths[str(r)]) for r in range(self.session.parties))
        if columns != self.widths[rank]:
            raise ValueError(f"encodings have {columns} columns, earlier ones {self.widths[rank]}")

    def counterfactuals(
        self,
        deltas: Iterable[Iterable[Blocks]],
        groups: AtHolder,
        attribute: int = 0,
        moving: Mapping[int, np.ndarray] | None = None,
        membership: MembershipMask | None = None,
    ) -> SharedPenalty:
        selected = self.selected(deltas, groups, attribute, moving)
        total = sum(int(chosen.size(0)) for chosen in selected.draws)
        if membership is not None:
            selected = replace(selected, draws=tuple(membership.masked(self.session, one) for one in selected.draws))
            total = len(selected.draws) * membership.count
        with self.session.measure("gram of edits"):
            mean = (crypten.cat(list(selected.draws)).gram() / total).rescale(MATRIX_BITS, sliced=True)
        return SharedPenalty(selected, over_all_columns(self.session, mean, selected.columns, sum(self.widths)))

    def selected(
        self,
        deltas: Iterable[Iterable[Blocks]],
        groups: AtHolder,
        attribute: int = 0,
        moving: Mapping[int, np.ndarray] | None = None,
    ) -> SharedDraws:
        """The displacements that s selects of every draw; `moving` as in `Engine.counterfactuals`."""
        holder = self.group_holders[attribute]
        return selected(self.session, self.widths, holder, deltas, groups, moving)

    def join(self, penalties: Sequence[SharedPenalty], directions: Sequence[Blocks]) -> SharedPenalty:
        gram, count = penalties[0].gram, len(penalties)
        if count > 1:
            gram = (crypten.stack([one.gram for one in penalties]).sum(0) / count).rescale(MATRIX_BITS, sliced=True)
        chosen = SharedDraws(tuple(d for one in penalties for d in one.chosen.draws), penalties[0].chosen.columns)
        return SharedPenalty(chosen, gram, tuple(one[self.session.rank] for one in directions))

    def table_penalty(self, grams: Sequence[Mapping[int, TableGram]], directions: Sequence[Blocks]) -> SharedPenalty:
        """Two rounds: 2 x pairs of groups x columns elements, and its size to truncate. A block stays local."""
        rank, columns = self.session.rank, self.widths
        share = 1.0 / len(grams)
        with self.session.measure("gram of tables"):
            own_vectors = np.concatenate([gram[rank].vectors for gram in grams]) * np.sqrt(share)
            within = np.sum([gram_of[rank].within for gram_of in grams], axis=0) * share
            if self.session.active:
                gram = self._proven_gram(own_vectors, within)
            else:
                vectors = self._side_by_side(own_vectors, HEAD_BITS)
                gram = (vectors.t() @ vectors).rescale(MATRIX_BITS)
                gram = gram + on_diagonal(self.session, columns, within, MATRIX_BITS)
        return SharedPenalty(NO_DRAWS, gram, tuple(one[rank] for one in directions))

    def _proven_gram(self, own_vectors: np.ndarray, within: np.ndarray) -> Shared:
        """G as a sum of squares whatever owners give: of vectors, and of roots of covariances, with proven ranges."""
        columns, ends = self.widths, np.cumsum([0, *self.widths])
        values, vectors = np.linalg.eigh(within)
        root = np.zeros((max(columns), len(within)))
        root[: len(within)] = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        joined = np.concatenate([own_vectors, root])
        both = proven_numbers(self.session, joined, columns, _GRAM_BITS, _GRAM_REACH)
        rows, roots = both[: len(own_vectors)], both[len(own_vectors) :]
        products = [rows.t() @ rows]
        products += [
            (roots[:, low:high].t() @ roots[:, low:high]).pad((low, ends[-1] - high, low, ends[-1] - high))
            for low, high in pairwise(ends.tolist())
            if high > low
        ]
        return crypten.stack(products).sum(0).rescale(MATRIX_BITS)

    def with_ranges(self, penalty: SharedPenalty, ranges: Blocks) -> SharedPenalty:
        return replace(penalty, ranges=ranges[self.session.rank])

    def noisy_gram(
        self,
        deltas: Sequence[Iterable[Iterable[Blocks]]],
        groups: Sequence[AtHolder],
        moving: Mapping[int, np.ndarray],
        membership: MembershipMask | None,
        charge: Callable[[], GramNoise],
    ) -> np.ndarray:
        """The rounds of `counterfactuals` without a division, and two to open m x m elements for the m moved columns.

        Before: an owner has the counterfactuals of its records for every group, the holder has s. After: all have the
        sum with the noise of the event that was charged, and nothing else. S is exact in the unit of a product, so
        the noise is discrete in that unit.
        """
        chosen: list[Shared] = []
        for attribute, (delta, codes) in enumerate(zip(deltas, groups, strict=True)):
            selected = self.selected(delta, codes, attribute, moving)
            chosen += [
                draw if membership is None else membership.masked(self.session, draw) for draw in selected.draws
            ]
        with self.session.measure("gram of edits"):
            summed = crypten.cat(chosen).gram()
            paid, count = charge(), summed.size(0)
            summed = summed + self.session.noise_table(paid.kind, paid.sigma, count, [()] * count, WIDE_BITS)
            opened = self._opened(summed, releases.GRAM, paid.receipt)
        whole = np.zeros((sum(self.widths),) * 2)
        whole[np.ix_(selected.columns, selected.columns)] = opened
        return whole

    def head(self, batch: SharedBatch, outputs: int, task: Task) -> SharedHead:
        zero = self.session.public(np.zeros((sum(self.widths), outputs)), HEAD_BITS)
        bias = self.session.public(np.zeros(outputs), HEAD_BITS)
        return SharedHead(Weights(zero, bias, zero, bias, True), np.ones(self.widths[self.session.rank]), task)

    def module_head(self, batch: SharedBatch, outputs: int, task: Task, spec: HeadSpec, seed: int) -> SharedModule:
        return secure_steps.first_module(self.session, spec, sum(self.widths), outputs, task, seed)

    def width(self, head: SharedHead) -> int:
        return int(head.weights.weight.size(0))

    def copied(self, head: SharedHead, copies: int) -> SharedHead:
        """No round: shares are repeated."""
        weight, bias = head.weights.weight.repeat(1, copies), head.weights.bias.repeat(copies)
        still, flat = (self.session.public(np.zeros(tuple(one.size())), HEAD_BITS) for one in (weight, bias))
        weights = Weights(weight, bias, still, flat, head.weights.zero)
        return SharedHead(weights, head.scale, head.task, head.optimizer)

    # training

    def first_order(
        self, batch: SharedBatch, penalty: SharedPenalty | None, step: Step, curvature: Blocks
    ) -> SharedOptimizer:
        """Scale and mask. All processes prepare the same optimizer together. Masks of the last one are dropped."""
        rank = self.session.rank
        self._forget(*self._kept_masks)
        self._kept_masks = ()
        scale = 1.0 / np.sqrt(curvature[rank])
        with self.session.measure("mask encodings"):
            rows = self._pinned(batch.encodings, scale)
        with self.session.measure("mask penalty"):
            pull = self._pull(batch, penalty, step, scale)
            more = rows.size(1) - pull.size(1)
            square = pull.pad((0, more, 0, more)).with_fraction(FRACTION_BITS).pinned()
        self._prepared, self._kept_masks = self._prepared + 1, (rows, square)
        return SharedOptimizer(self._prepared, batch, step, scale, rows, square)

    def autograd(
        self, batch: SharedBatch, penalty: SharedPenalty | None, step: Step, ridge: float
    ) -> SharedModuleOptimizer:
        """One round for each counterfactual of a record and each guard: their rows are masked."""
        if batch.membership is not None or isinstance(batch.encodings, SharedRows):
            raise ProtocolError("a module needs rows that all count, and encodings that their owners know")
        self._forget(*self._kept_masks)
        self._kept_masks = ()
        draws = penalty.chosen if penalty is not None and step.lam > 0 else NO_DRAWS
        along = penalty.directions if penalty is not None and step.proxy_penalty > 0 else ()
        with self.session.measure("mask encodings"):
            copies = secure_steps.moved_rows(self.session, self._side_by_side(batch.encodings, FRACTION_BITS), draws)
            copies += [self._pinned(batch.encodings + direction) for direction in along]
            if batch.masked is None:
                batch.masked = self._pinned(batch.encodings)
            rows = crypten.cat([batch.masked, *copies])
        self._prepared, self._kept_masks = self._prepared + 1, tuple(copies)
        weights = step.weights_of(len(draws.draws), len(along))
        return SharedModuleOptimizer(self._prepared, batch, step, ridge, rows, weights)

    def steps(self, start: Any, optimizer: Optimizer, count: int, *, fine: bool = False) -> Any:
        self._check_last(optimizer)
        if isinstance(optimizer, SharedGrid):
            return self._grid_steps(start, optimizer, count, fine)
        with self.session.measure("training step"):
            if isinstance(optimizer, SharedModuleOptimizer):
                for _ in self.session.repeat(count, optimizer.pattern):
                    start = secure_steps.module_step(self.session, start, optimizer)
                return start
            weights, logits = self._scaled(start, optimizer), start.last_logits
            pace = Pace(optimizer.step.rate, optimizer.step.momentum, CURVATURE[start.task])
            for _ in self.session.repeat(count, optimizer.pattern):
                weights, logits = secure_steps.first_order_step(self.session, weights, optimizer, pace, start.task)
        return SharedHead(weights, optimizer.scale, start.task, optimizer.number, logits)

    def _pull(self, batch: SharedBatch, penalty: SharedPenalty | None, step: Step, scale: np.ndarray) -> Shared:
        """H in scaled columns, HEAD_BITS: ridge, range penalty, proxy penalty and consistency."""
        ridge = self._side_by_side(batch.ridge * scale**2, HEAD_BITS)
        pull = ridge.unsqueeze(1) * torch.eye(ridge.size(0), dtype=torch.int64)
        if penalty is not None and penalty.ranges is not None:
            block = penalty.ranges * np.outer(scale, scale)
            pull = pull + on_diagonal(self.session, self.widths, block, HEAD_BITS)
        if penalty is not None and step.proxy_penalty > 0:
            for own_direction in penalty.directions:
                direction = self._side_by_side(own_direction * scale * np.sqrt(step.proxy_penalty), SCALE_BITS)
                pull = pull + (direction[:, None] * direction[None]).rescale(HEAD_BITS)
        if batch.membership is not None:  # sums over records are divided by another number than that of records
            pull = (pull * batch.membership.ratio(self.session)).rescale(HEAD_BITS)
        if penalty is not None and step.lam > 0:
            pull = pull + consistency(penalty.gram, self._side_by_side(scale * np.sqrt(step.lam), ROOT_BITS))
        return pull

    def _scaled(self, start: SharedHead, optimizer: SharedOptimizer | SharedGrid) -> Weights:
        """The head in the columns of this optimizer."""
        if start.weights.zero or start.optimizer == optimizer.columns:
            return start.weights
        ratio = self._side_by_side(start.scale / optimizer.scale, SCALE_BITS)
        both = times(crypten.cat([start.weights.weight, start.weights.velocity], dim=1), ratio)
        count = start.weights.bias.size(0)
        return Weights(both[:, :count], start.weights.bias, both[:, count:], start.weights.bias_velocity)

    def second_order(
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
        shared_grid = secure_steps.prepared(
            self.session, self.widths, batch, penalty, grid, bounds, self._prepared, noise
        )
        self._kept_masks = (shared_grid.rows, shared_grid.stack)
        return shared_grid

    def sharpen(self, start: SharedHead, optimizer: SharedGrid) -> SharedGrid:
        """About 8 rounds and two for each doubling (protocols/steps/second_order.py)."""
        self._check_last(optimizer)
        self._prepared += 1
        refined = secure_steps.sharpened(self.session, optimizer, self._scaled(start, optimizer), self._prepared)
        rows, stack = self._kept_masks
        self._forget(stack)
        self._kept_masks = (rows, refined.stack)
        return refined

    def _check_last(self, optimizer: Optimizer) -> None:
        if optimizer.number != self._prepared:
            raise ValueError("this optimizer has ended: another one was prepared, and the masks of this one are gone")

    def _residuals(self, optimizer: SharedGrid, heads: int, task: Task, fine: bool) -> secure_steps.Residuals:
        every = secure_steps.labels_of(optimizer.batch, heads, optimizer.private is not None)

        def of_heads(here: slice) -> Callable[[Shared], Shared]:
            label = every[:, here]
            if optimizer.private is not None:
                return lambda logits: secure_steps.residual_of_private(logits, label, task, fine)
            return lambda logits: secure_steps.residual_of(logits, label, task)

        return of_heads

    def _grid_steps(self, start: SharedHead, optimizer: SharedGrid, count: int, fine: bool) -> SharedHead:
        """Seven rounds for a step of every part of the grid, two where its gradient is known."""
        before = self._scaled(start, optimizer)
        residual = self._residuals(optimizer, start.weights.bias.size(0), start.task, fine)
        if fine:  # these steps ask the dealer for other tuples
            optimizer = replace(optimizer, parts=tuple((part, []) for part, _ in optimizer.parts))
        with self.session.measure("training step"):
            weights, logits, slope = secure_steps.second_order_steps(self.session, before, optimizer, count, residual)
        if logits is None:
            logits, slope = start.last_logits, start.slope
        return SharedHead(weights, optimizer.scale, start.task, optimizer.columns, logits, slope=slope)

    def finish(self, trained: SharedHead, optimizer: SharedGrid) -> SharedHead:
        """One more gradient (five rounds), a check of eleven, and noise without a round."""
        self._check_last(optimizer)
        if optimizer.private is None:
            raise ValueError("this optimizer is not of private heads")
        private, noise = optimizer.private, optimizer.private.noise
        before, task = self._scaled(trained, optimizer), trained.task
        heads = before.whole
        residual = self._residuals(optimizer, heads.size(1), task, True)
        with self.session.measure("finished head"):
            parts = [
                secure_steps.gradient_at(optimizer, heads[:, here], here.start, residual(here))[0]
                for here in (slice(part.start, part.stop) for part, _ in optimizer.parts)
            ]
            longest = LARGEST_LOGIT[task] / noise.radius
            headroom, plain = second_order.headroom_of_private(
                crypten.cat(parts, dim=1), heads, private.scales, longest, noise.tolerance
            )
        if private.inverse is not None:
            headroom = crypten.cat([headroom, private.inverse])
        self._stop_unfinished(headroom)
        shape = (plain.size(0), plain.size(1))
        plain = plain + second_order.noise_of_heads(self.session, noise.kind, noise.output, shape, HEAD_BITS)
        return self.plain_head(plain[:-1], plain[-1], task)

    def apart(self, trained: SharedHead, outputs: int = 1) -> tuple[SharedHead, ...]:
        """Two rounds: the weights are unscaled together."""
        return secure_steps.separate(trained, self._plain_weight(trained), outputs)

    # what is opened

    def check_range(self, heads: Heads, batch: SharedBatch) -> None:
        """Only for classes: a regression uses no sigmoid, and steps of a linear head end at the optimum."""
        if heads[0].task == "regression":
            return
        slopes = [] if isinstance(heads[0], SharedModule) else [one.slope for one in heads if one.slope is not None]
        with self.session.measure("validation"):
            headroom = [head.headroom(self._logits(heads, batch))]
            headroom += [
                head.headroom(in_head_group(one.last_logits)) for one in heads if one.last_logits is not None
            ]
            headroom += [room_to_settle(slopes).with_fraction(0)] if slopes else []
        self.stop_outside(crypten.cat(headroom), bool(slopes))

    def stop_outside(self, headroom: Shared, settling: bool = False) -> None:
        """Open whether any headroom is negative, and stop every party if so. `settling`: some of it is of steps."""
        with self.session.measure("validation"):
            count = headroom.size(0)
            cuts = [count * at // ceil(count / _COMPARED) for at in range(ceil(count / _COMPARED) + 1)]
            outside = choice.some(crypten.cat([headroom[low:high] < 0 for low, high in pairwise(cuts)]))
            flagged = self._opened(outside, releases.RANGE_CHECK)
        if int(flagged[0]) != 0:
            left = f"logits left the range of the sigmoid (magnitude {LOGIT_BOUND:g})"
            raise ProtocolError(
                f"{UNSETTLED}; or {left}" if settling else f"{left}: lower the rate or raise the ridge"
            )

    def _stop_unfinished(self, headroom: Shared) -> None:
        """Open how many checks of private heads fail, and stop every party if any does; eight rounds."""
        self._claim()
        with self.session.measure("validation"):
            count = self._opened((headroom < 0).sum(0, keepdim=True), releases.RANGE_CHECK)
        if int(count[0]) != 0:
            raise ProtocolError(UNSETTLED)

    def measure(self, heads: Heads, batch: SharedBatch, penalty: SharedPenalty | None) -> tuple[Measures, ...]:
        """The rounds of one head, for all of them."""
        if batch.membership is not None:
            raise ProtocolError("exact means need a known number of records")
        count = len(heads)
        with self.session.measure("validation"):
            logits = self._logits(heads, batch).reshape(batch.rows, count, -1)
            gap = self._gap(heads, batch, penalty)
            label = in_head_group(batch.label)
            loss = secure_steps.mean_losses(self.session, logits, label, heads[0].task, LOGIT_BOUND)
            spread = secure_steps.variance(logits)
            unused = self.session.public(np.zeros(count), WIDE_BITS)  # the release has four numbers for each head
            opened = self._opened(crypten.stack([loss, spread, gap, unused], dim=1), releases.VALIDATION_SUMMARY)
        rows = np.maximum(opened, 0.0).tolist()
        return tuple(Measures(mean, square**0.5, gap**0.5) for mean, square, gap, _ in rows)

    def _gap(self, heads: Heads, batch: SharedBatch, penalty: SharedPenalty | None) -> Shared:
        """The mean squared gap of each head, WIDE_BITS."""
        count = len(heads)
        if not isinstance(heads[0], SharedModule):
            return secure_steps.gap_squared(self.session, penalty, self._weights(heads), count)
        shifts = [] if penalty is None else self._module_shifts(heads, batch.encodings, penalty.chosen)
        if not shifts:
            return self.session.public(np.zeros(count), WIDE_BITS)
        return secure_steps.mean_square(shifts, count)

    def _module_shifts(self, heads: Heads, encodings: np.ndarray | SharedRows, chosen: SharedDraws) -> list[Shared]:
        """Of every draw: rows x heads, FRACTION_BITS; the rounds of logits, for all draws together."""
        if isinstance(encodings, SharedRows):
            raise ProtocolError("a module needs encodings that their owners know")
        whole = self._side_by_side(encodings, FRACTION_BITS)
        copies = [whole.pinned(), *secure_steps.moved_rows(self.session, whole, chosen)]
        logits, rows = self._logits_of(heads, crypten.cat(copies)), len(encodings)
        self._forget(*copies)
        first = logits[:rows]
        return [logits[at : at + rows] - first for at in range(rows, logits.size(0), rows)]

    def best_temperature(
        self, trained: SharedHead | SharedModule, batch: SharedBatch, temperatures: Sequence[float]
    ) -> int:
        with self.session.measure("temperature"):
            logits, task = self._logits([trained], batch), trained.task
            label = in_head_group(batch.label)
            rising = secure_steps.rising(self.session, logits, label, task, temperatures, LOGIT_BOUND)
            first = np.flatnonzero(self._opened(rising, releases.TEMPERATURE_CHOICE))
        return int(first[0]) if len(first) else len(temperatures) - 1

    def logits(self, trained: SharedHead | SharedModule, encodings: Blocks | SharedRows) -> np.ndarray:
        """Logits at the receivers of predictions; elsewhere an empty array."""
        logits = self.shared_logits(trained, encodings)
        opened = self.session.open(logits, self.session.declared(releases.PREDICTIONS.name))
        return np.zeros((0, logits.size(1))) if opened is None else np.asarray(opened)

    def unscaled(self, trained: SharedHead) -> tuple[Shared, Shared]:
        """The head for unscaled columns, HEAD_BITS, and its bias."""
        return self._plain_weight(trained), trained.weights.bias

    def restored(self, weight: Shared, bias: Shared, task: Task, widths: Sequence[int]) -> SharedHead:
        """A head from a saved result of `unscaled`."""
        self.widths = tuple(widths)
        return self.plain_head(weight, bias, task)

    def plain_head(self, weight: Shared, bias: Shared, task: Task) -> SharedHead:
        """A head outside any optimizer, for unscaled columns."""
        still, flat = (self.session.public(np.zeros(tuple(one.size())), HEAD_BITS) for one in (weight, bias))
        scale = np.ones(self.widths[self.session.rank])
        return SharedHead(Weights(weight, bias, still, flat), scale, task, plain_weight=weight)

    def restored_module(self, module: SharedModule, widths: Sequence[int]) -> SharedModule:
        """A module with saved weights."""
        self.widths = tuple(widths)
        return module

    def blanked(self, head: SharedHead, columns: Mapping[int, np.ndarray]) -> SharedHead:
        left = ~np.concatenate([columns[rank] for rank in range(self.session.parties)])
        weight, bias = self.unscaled(head)
        return self.plain_head(weight * torch.from_numpy(left.astype(np.int64))[:, None], bias, head.task)

    def shared_logits(
        self, trained: SharedHead | SharedModule, encodings: Blocks | SharedRows, *more: SharedHead
    ) -> Shared:
        """The logits of these records as a CrypTen tensor; of more heads next to them, in no round more."""
        with self.session.measure("prediction"):
            pinned = self._pinned(self._local_rows(encodings))
            logits = self._logits_of([trained, *more], pinned)
            self._forget(pinned)
        return logits

    def shared_shift(
        self, chosen: SharedDraws, encodings: Blocks | SharedRows, *heads: SharedHead | SharedModule
    ) -> Shared:
        """The change of the logits of these records by the displacements of one draw, as a CrypTen tensor."""
        linear = [head for head in heads if isinstance(head, SharedHead)]
        modules = [head for head in heads if isinstance(head, SharedModule)]
        if modules:
            (shift,) = self._module_shifts(modules, self._local_rows(encodings), chosen)
        else:
            (shift,) = self._shifts(linear, chosen)
        return shift

    def _shifts(self, heads: Sequence[SharedHead], chosen: SharedDraws) -> list[Shared]:
        """Of every draw: rows x heads, FRACTION_BITS."""
        weights, shifts = self._weights(heads)[torch.from_numpy(chosen.columns)], []
        for draw in chosen.draws:
            shifts.append(draw @ weights)
            self.session.flush()
        return [in_head_group(shift.rescale(FRACTION_BITS, sliced=True)) for shift in shifts]

    # parts

    def _opened(self, tensor: Shared, kind: Kind, receipt: Receipt | None = None) -> np.ndarray:
        """Open values to every party."""
        opened = self.session.open(tensor, self.session.declared(kind.name), receipt)
        if opened is None:
            raise ProtocolError(f"release {kind.name!r} must go to every party")
        return np.asarray(opened)

    def _logits(self, heads: Heads, batch: SharedBatch) -> Shared:
        """The logits, FRACTION_BITS, of all heads side by side; the batch is pinned once, unscaled."""
        if batch.masked is None:
            batch.masked = self._pinned(batch.encodings)
        if batch.seen is None or batch.seen[0] != tuple(heads):
            batch.seen = (tuple(heads), self._logits_of(heads, batch.masked))
        return batch.seen[1]

    def _pinned(self, encodings: np.ndarray | SharedRows, scale: np.ndarray | None = None) -> Shared:
        """Encodings of all parties under masks of their owners, or selected rows under masks of nobody.

        `scale`: a factor for each own column.
        """
        factor = np.ones(1) if scale is None else scale
        if not isinstance(encodings, SharedRows):
            return side_by_side(self.session.tall, self.widths, Scaled(encodings, factor)).pinned()
        head.check_reach(encodings.reach * factor)
        words = encodings.tensor
        if scale is not None:
            words = head.scaled_columns(words, self._side_by_side(scale, SCALE_BITS))
        return (words if encodings.membership is None else with_bias(self.session, encodings, words)).pinned()

    def _logits_of(self, heads: Heads, rows: Shared) -> Shared:
        """Logits of all heads side by side, which are of one kind."""
        if isinstance(heads[0], SharedModule):
            return crypten.cat([secure_steps.forward(one, rows) for one in heads], dim=1)
        bias, weights = crypten.cat([one.weights.bias for one in heads]), self._weights(heads)
        counts = rows.size(1) > weights.size(0)  # the last column is that of the bias
        wide = rows @ crypten.cat([weights, bias[None]]) if counts else rows @ weights + bias
        return in_head_group(wide.rescale(FRACTION_BITS, sliced=True))

    def _weights(self, heads: Sequence[SharedHead]) -> Shared:
        """Weights for unscaled columns, side by side."""
        return crypten.cat([self._plain_weight(one) for one in heads], dim=1)

    def _plain_weight(self, trained: SharedHead) -> Shared:
        if trained.plain_weight is None:
            scale = self._side_by_side(trained.scale, SCALE_BITS)
            trained.plain_weight = times(trained.weights.weight, scale)
        return trained.plain_weight

    def _forget(self, *pinned: Shared) -> None:
        for one in pinned:
            self.session.forget(one)

    def _side_by_side(self, own_values: np.ndarray, bits: int) -> Shared:
        """A vector over all columns, where each party knows its own part. No communication."""
        return side_by_side(self.session, self.widths, own_values, bits)
