"""The plaintext engine: the reference for the secure one, and the fast way to many seeds.

Modules take the steps of `secure_steps` with torch's autograd, in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag
from scipy.special import expit

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.models.table_gram import TableGram
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.operations.sigmoid import CAP, CAP_SHIFT, CAP_STEEPNESS
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.steps.second_order import FLATTEST, SETTLED
from secure_sccvfl.releases.mechanisms import GramNoise, HeadNoise
from secure_sccvfl.training.engine import CURVATURE, LARGEST_LOGIT, UNSETTLED, Measures, Step
from secure_sccvfl.training.grid import (
    PRIVATE_SAMPLED,
    SAMPLED,
    SHARP_MOMENTUM,
    SHARP_RATE,
    Bounds,
    Grid,
    inverses,
    sampled_rows,
    scales,
)
from secure_sccvfl.training.modules import Arrays, HeadSpec, decays, with_weights


def _check_counted(membership: MembershipMask | None) -> None:
    """In plaintext, records are joined before they reach the engine."""
    if membership is not None:
        raise ValueError("the plaintext engine counts every row")


def _side_by_side(blocks: Blocks) -> np.ndarray:
    return np.concatenate([blocks[rank] for rank in sorted(blocks)], axis=-1)


def _proxy_gram(directions: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    return np.asarray(sum((np.outer(d, d) for d in directions), np.zeros_like(like)))


def _of_own_group(by_group: Iterable[Blocks], groups: np.ndarray) -> np.ndarray:
    """For each record, the row computed for its group."""
    chosen: np.ndarray | None = None
    for group, blocks in enumerate(by_group):
        whole = _side_by_side(blocks)
        chosen = np.zeros_like(whole) if chosen is None else chosen
        chosen[groups == group] = whole[groups == group]
    if chosen is None:
        raise ValueError("no group to select from")
    return chosen


@dataclass(frozen=True)
class Batch:
    rows: np.ndarray
    label: np.ndarray
    ridge: np.ndarray
    outputs: int = 1


@dataclass(frozen=True)
class Penalty:
    """Selected displacements per draw (one list per protected attribute), their Gram matrix, and that of proxies.

    directions: along which proxies reveal s. ranges: the matrix of the range penalty, with its weight.
    """

    draws: tuple[np.ndarray, ...]
    gram: np.ndarray
    proxy_gram: np.ndarray
    directions: tuple[np.ndarray, ...] = ()
    ranges: np.ndarray | float = 0.0


@dataclass(frozen=True)
class FirstOrderOptimizer:
    """Steps of one kind on one batch, and the curvature of every column that they divide by.

    number: counts the optimizers of an engine.
    """

    number: int
    batch: Batch
    penalty: Penalty | None
    step: Step
    curvature: np.ndarray


@dataclass(frozen=True)
class GridOptimizer:
    """Second-order steps of the heads of a grid: inverses of curvatures, and for each head the matrix of penalties.

    The bias is the last column. number: as of `FirstOrderOptimizer`. held: penalties of each matrix that is inverted.
    factor: of every column of it. tilt: noise of private heads in the gradient (columns x heads), over the records.
    """

    number: int
    batch: Batch
    grid: Grid
    inverse: np.ndarray
    held: np.ndarray
    pull: np.ndarray
    factor: np.ndarray
    noise: HeadNoise | None = None
    tilt: np.ndarray | float = 0.0


@dataclass(frozen=True)
class Head:
    """`left`: of the last second-order step, q^T P q of each logit (protocols/steps/second_order.py)."""

    weight: np.ndarray
    bias: np.ndarray
    velocity: np.ndarray
    bias_velocity: np.ndarray
    task: Task
    left: np.ndarray | None = None

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return rows @ self.weight + self.bias


def _gradient(head: Head, optimizer: GridOptimizer) -> np.ndarray:
    """The gradient of the mean objective of every head of a grid (columns with the bias x heads)."""
    rows = optimizer.batch.rows
    residual = _residual(head(rows), optimizer.batch, head.task, optimizer.noise is not None)
    whole = np.vstack([head.weight, head.bias])
    gradient = np.vstack([rows.T @ residual, residual.sum(axis=0)]) / len(residual)
    return gradient + np.einsum("gij,jg->ig", optimizer.pull, whole) + optimizer.tilt


def decisions(logits: np.ndarray, task: Task) -> np.ndarray:
    """Class of each record; a positive logit is class 1 when there are two."""
    return logits[:, 0] > 0 if task == "binary" else logits.argmax(axis=1)


def losses(logits: np.ndarray, label: np.ndarray, task: Task) -> np.ndarray:
    """The cross-entropy of each record, or its squared error for regression.

    Of several classes: of each class against the rest, summed over classes.
    """
    if task == "binary":
        sign = 2.0 * label - 1.0
        return np.asarray(np.logaddexp(0.0, -sign * logits[:, 0]))
    if task == "multiclass":
        signs = 2.0 * one_hot(label, logits.shape[1]) - 1.0
        return np.asarray(np.logaddexp(0.0, -signs * logits).sum(axis=1))
    return np.asarray((logits[:, 0] - label) ** 2)


def log_loss(logits: np.ndarray, label: np.ndarray, task: Task) -> float:
    """The mean of `losses`."""
    return float(losses(logits, label, task).mean())


def _residual(logits: np.ndarray, batch: Batch, task: Task, bounded: bool = False) -> np.ndarray:
    """The slope of the loss in each logit; a head of several lambdas has the logits of each one after the other.

    bounded: that of a private head (`protocols.operations.sigmoid`), whose magnitude is at most 3/4, or 1/2 of a
    regression: the slope of log(cosh(2 r)) / 4 for the residual r.
    """
    label = batch.label.reshape(len(logits), -1)
    if task == "multiclass":
        label = np.tile(one_hot(batch.label, batch.outputs), logits.shape[1] // batch.outputs)
    if task == "regression" and bounded:
        return np.asarray(expit(4 * (logits - label)) - 0.5)
    if bounded:
        up, down = (expit(CAP_STEEPNESS * side * logits + CAP_SHIFT) for side in (1, -1))
        return np.asarray(CAP * (up - label * (up + down)))
    return (logits if task == "regression" else expit(logits)) - label


def _inverse(grid: Grid, factor: np.ndarray, curved: np.ndarray) -> np.ndarray:
    both = np.outer(factor, factor)
    return both * inverses(grid, both * curved)


@dataclass(frozen=True)
class ModuleHead:
    """Weights of a module and their velocities, by name."""

    spec: HeadSpec
    weights: Arrays
    velocity: Arrays
    task: Task
    outputs: int
    left: None = None

    def in_torch(self, rows: torch.Tensor, weights: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Logits, differentiable in the rows and in the weights; those of this head if none are given."""
        used = self.tensors() if weights is None else weights
        logits: torch.Tensor = with_weights(self.spec.build(rows.shape[1], self.outputs), used, encrypted=False)(rows)
        return logits

    def tensors(self, gradients: bool = False) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value).requires_grad_(gradients) for name, value in self.weights.items()}

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.in_torch(torch.tensor(rows, dtype=torch.float64)).numpy()


def _first_module(spec: HeadSpec, columns: int, outputs: int, task: Task, seed: int) -> ModuleHead:
    weights = spec.first_weights(columns, outputs, seed)
    return ModuleHead(spec, weights, {name: np.zeros_like(value) for name, value in weights.items()}, task, outputs)


@dataclass(frozen=True)
class ModuleOptimizer:
    """Records, and below them their counterfactuals and shifted copies, each of these with its weight.

    number: as of `FirstOrderOptimizer`. residual: the slope of the loss in the logits of the records.
    """

    number: int
    rows: np.ndarray
    count: int
    residual: Callable[[np.ndarray, Task], np.ndarray]
    step: Step
    ridge: float
    weights: tuple[float, ...]


def _shifted(rows: np.ndarray, draws: Sequence[np.ndarray]) -> np.ndarray:
    """The records, and below them a moved copy of all for each displacement, rounded as they are under MPC.

    A unit that rounding switches at one record moves the next step, and the engines would part there.
    """
    first, *moved = (np.rint(one * 2.0**FRACTION_BITS) / 2.0**FRACTION_BITS for one in (rows, *draws))
    return np.concatenate([first, *(first + one for one in moved)])


def _module_slopes(logits: np.ndarray, residual: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """The derivative of the summed objective in every logit: of the loss, and of w / 2 (z(x') - z(x))^2 per copy."""
    first, *moved = np.split(logits, len(weights) + 1)
    pulls = [weight * (one - first) for weight, one in zip(weights, moved, strict=True)]
    return np.concatenate([residual - sum(pulls, np.zeros_like(first)), *pulls])


def _module_step(head: ModuleHead, optimizer: ModuleOptimizer) -> ModuleHead:
    step, count = optimizer.step, optimizer.count
    tensors = head.tensors(gradients=True)
    logits = head.in_torch(torch.from_numpy(optimizer.rows), tensors)
    values = logits.detach().numpy()
    slope = torch.from_numpy(_module_slopes(values, optimizer.residual(values[:count], head.task), optimizer.weights))
    summed = torch.autograd.grad(logits, list(tensors.values()), slope)
    gradients = {name: gradient.numpy() / count for name, gradient in zip(tensors, summed, strict=True)}
    velocity = {
        name: step.momentum * head.velocity[name]
        - step.rate * (gradients[name] + (optimizer.ridge * value if decays(value) else 0.0))
        for name, value in head.weights.items()
    }
    weights = {name: value + velocity[name] for name, value in head.weights.items()}
    return replace(head, weights=weights, velocity=velocity)


def _grid_step(head: Head, optimizer: GridOptimizer) -> Head:
    grid, whole = optimizer.grid, np.vstack([head.weight, head.bias])
    gradient = _gradient(head, optimizer)
    moved = np.einsum("gij,jg->ig", optimizer.inverse[list(grid.matrix_of)], gradient)
    velocity = grid.momentum * np.vstack([head.velocity, head.bias_velocity]) - grid.rate * moved
    after = whole + velocity
    left = (gradient * moved).sum(axis=0)
    return Head(after[:-1], after[-1], velocity[:-1], velocity[-1], head.task, left)


def _first_order_step(head: Head, optimizer: FirstOrderOptimizer) -> Head:
    batch, penalty, step = optimizer.batch, optimizer.penalty, optimizer.step
    n = len(batch.rows)
    residual = _residual(head(batch.rows), batch, head.task)
    gradient = batch.rows.T @ residual / n + batch.ridge[:, None] * head.weight
    if penalty is not None and step.lam > 0:
        gradient = gradient + step.lam * (penalty.gram @ head.weight)
    if penalty is not None and step.proxy_penalty > 0:
        gradient = gradient + step.proxy_penalty * (penalty.proxy_gram @ head.weight)
    if penalty is not None and isinstance(penalty.ranges, np.ndarray):
        gradient = gradient + penalty.ranges @ head.weight
    gradient = gradient / optimizer.curvature[:, None]
    velocity = step.momentum * head.velocity - step.rate * gradient
    flat = CURVATURE[head.task]
    bias_velocity = step.momentum * head.bias_velocity - step.rate / flat * residual.mean(axis=0)
    return replace(
        head,
        weight=head.weight + velocity,
        bias=head.bias + bias_velocity,
        velocity=velocity,
        bias_velocity=bias_velocity,
    )


Optimizer = FirstOrderOptimizer | GridOptimizer | ModuleOptimizer


class PlainEngine:
    """All parties in one process. It holds no data, only the number of prepared optimizers."""

    def __init__(self) -> None:
        self._prepared = 0

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        return dict(values)

    def total(self, name: str, values: Sequence[float], present: bool = True) -> tuple[float, ...] | None:
        return tuple(values)

    def select(self, choices: Iterable[Blocks], groups: AtHolder, attribute: int = 0) -> Blocks:
        if groups is None:
            raise ValueError("the plaintext engine needs s")
        return {0: _of_own_group(choices, groups)}

    def bind(
        self,
        encodings: Blocks,
        label: AtHolder,
        ridge: Blocks,
        outputs: int = 1,
        membership: MembershipMask | None = None,
        classes: bool = False,
        records: Any = None,
    ) -> Batch:
        if label is None:
            raise ValueError("the plaintext engine needs the label")
        _check_counted(membership)
        return Batch(_side_by_side(encodings), label, _side_by_side(ridge), outputs)

    def counterfactuals(
        self,
        deltas: Iterable[Iterable[Blocks]],
        groups: AtHolder,
        attribute: int = 0,
        moving: Mapping[int, np.ndarray] | None = None,
        membership: MembershipMask | None = None,
    ) -> Penalty:
        if groups is None:
            raise ValueError("the plaintext engine needs s")
        _check_counted(membership)
        draws = [_of_own_group(by_group, groups) for by_group in deltas]
        if not draws:
            raise ValueError("no draw of counterfactuals")
        gram = sum(d.T @ d for d in draws) / (len(draws) * len(groups))
        return Penalty(tuple(draws), gram, np.zeros_like(gram))

    def join(self, penalties: Sequence[Penalty], directions: Sequence[Blocks]) -> Penalty:
        gram, along = np.mean([one.gram for one in penalties], axis=0), tuple(map(_side_by_side, directions))
        return Penalty(tuple(d for one in penalties for d in one.draws), gram, _proxy_gram(along, gram), along)

    def table_penalty(self, grams: Sequence[Mapping[int, TableGram]], directions: Sequence[Blocks]) -> Penalty:
        parts = []
        for by_rank in grams:
            vectors = _side_by_side({rank: part.vectors for rank, part in by_rank.items()})
            parts.append(vectors.T @ vectors + block_diag(*(by_rank[rank].within for rank in sorted(by_rank))))
        gram = np.mean(parts, axis=0)
        return Penalty((), gram, _proxy_gram([_side_by_side(one) for one in directions], gram))

    def with_ranges(self, penalty: Penalty, ranges: Blocks) -> Penalty:
        return replace(penalty, ranges=block_diag(*(ranges[rank] for rank in sorted(ranges))))

    def noisy_gram(
        self,
        deltas: Sequence[Iterable[Iterable[Blocks]]],
        groups: Sequence[AtHolder],
        moving: Mapping[int, np.ndarray],
        membership: MembershipMask | None,
        charge: Callable[[], GramNoise],
    ) -> np.ndarray:
        selected = [self.counterfactuals(*pair, membership=membership) for pair in zip(deltas, groups, strict=True)]
        total = np.sum([draw.T @ draw for one in selected for draw in one.draws], axis=0)
        reached, noise = np.flatnonzero(_side_by_side(moving)), charge()
        drawn = stream(noise.seed, "noise of the Gram matrix").normal(0, noise.sigma, (len(reached),) * 2)
        total[np.ix_(reached, reached)] += drawn
        return np.asarray(total)

    def head(self, batch: Batch, outputs: int, task: Task) -> Head:
        zero, bias = np.zeros((batch.rows.shape[1], outputs)), np.zeros(outputs)
        return Head(zero, bias, zero, bias, task)

    def module_head(self, batch: Batch, outputs: int, task: Task, spec: HeadSpec, seed: int) -> ModuleHead:
        return _first_module(spec, batch.rows.shape[1], outputs, task, seed)

    def width(self, head: Head) -> int:
        return len(head.weight)

    def copied(self, head: Head, copies: int) -> Head:
        weight, bias = np.tile(head.weight, copies), np.tile(head.bias, copies)
        return Head(weight, bias, np.zeros_like(weight), np.zeros_like(bias), head.task)

    def first_order(
        self, batch: Batch, penalty: Penalty | None, step: Step, curvature: Blocks
    ) -> FirstOrderOptimizer:
        self._prepared += 1
        return FirstOrderOptimizer(self._prepared, batch, penalty, step, _side_by_side(curvature))

    def autograd(self, batch: Batch, penalty: Penalty | None, step: Step, ridge: float) -> ModuleOptimizer:
        self._prepared += 1
        draws = penalty.draws if penalty is not None and step.lam > 0 else ()
        along = penalty.directions if penalty is not None and step.proxy_penalty > 0 else ()
        rows, weights = _shifted(batch.rows, [*draws, *along]), step.weights_of(len(draws), len(along))

        def residual(logits: np.ndarray, task: Task) -> np.ndarray:
            return _residual(logits, batch, task)

        return ModuleOptimizer(self._prepared, rows, len(batch.rows), residual, step, ridge, weights)

    def second_order(
        self, batch: Batch, penalty: Penalty | None, grid: Grid, bounds: Bounds, noise: HeadNoise | None = None
    ) -> GridOptimizer:
        self._prepared += 1
        n, d = batch.rows.shape
        none = np.zeros((d, d))
        gram, proxy_gram = (none, none) if penalty is None else (penalty.gram, penalty.proxy_gram)
        ranges = 0.0 if penalty is None else penalty.ranges
        ridge = np.append(batch.ridge, 0.0) if noise is None else np.full(d + 1, noise.ridge / n)

        def penalties(lam: float, weight: float) -> np.ndarray:
            return np.pad(lam * gram + weight * proxy_gram + ranges, ((0, 1), (0, 1))) + np.diag(ridge)

        whole = np.column_stack([batch.rows, np.ones(n)])
        fitted = grid.curvature / n * (whole.T @ whole)
        flat, energy, reach = (_side_by_side(blocks) for blocks in bounds)
        flat, energy, reach = (
            np.append(flat, grid.curvature + ridge[-1]),
            np.append(energy, 0.0),
            np.append(reach, 0.0),
        )
        factor = scales(grid, flat, energy, reach)
        factor[-1] = 1.0
        held, pull = (np.array([penalties(*pair) for pair in pairs]) for pairs in (grid.inverted, grid.heads))
        inverse, tilt = _inverse(grid, factor, held + fitted), np.zeros((d + 1, len(grid)))
        if noise is not None:
            drawn = stream(noise.seed, "noise of the head", *map(str, grid.lambdas))
            tilt = drawn.normal(0, noise.sigma, tilt.shape) / n
        return GridOptimizer(self._prepared, batch, grid, inverse, held, pull, factor, noise, tilt)

    def sharpen(self, head: Head, optimizer: GridOptimizer) -> GridOptimizer:
        self._check_last(optimizer)
        self._prepared += 1
        chosen = sampled_rows(len(optimizer.batch.rows), SAMPLED if optimizer.noise is None else PRIVATE_SAMPLED)
        rows = optimizer.batch.rows[chosen]
        steep = self._steepness(head, optimizer, chosen)
        momentum = SHARP_MOMENTUM if optimizer.noise is None else 0.0
        grid = replace(optimizer.grid, rate=SHARP_RATE, momentum=momentum, sharpens=False)
        matrix_of = np.array(grid.matrix_of)
        whole = np.column_stack([rows, np.ones(len(rows))])
        means = [steep[:, matrix_of == number].mean(axis=1) + FLATTEST for number in range(len(grid.inverted))]
        fitted = np.array([(whole * mean[:, None]).T @ whole for mean in means]) / len(rows)
        inverse = _inverse(grid, optimizer.factor, optimizer.held + fitted)
        return replace(optimizer, number=self._prepared, grid=grid, inverse=inverse)

    @staticmethod
    def _steepness(head: Head, optimizer: GridOptimizer, chosen: np.ndarray) -> np.ndarray:
        batch = replace(optimizer.batch, rows=optimizer.batch.rows[chosen], label=optimizer.batch.label[chosen])
        if optimizer.noise is None:
            chance = expit(head(batch.rows))
            return np.asarray(chance * (1 - chance))
        slope = np.abs(_residual(head(batch.rows), batch, head.task, bounded=True))
        if head.task == "regression":
            return np.asarray(1 - 4 * slope**2)
        return np.asarray(CAP_STEEPNESS * (slope - slope**2 / CAP))

    def _check_last(self, optimizer: Optimizer) -> None:
        if optimizer.number != self._prepared:
            raise ValueError("this optimizer has ended: another one was prepared")

    def steps(self, head: Any, optimizer: Optimizer, count: int, *, fine: bool = False) -> Any:
        self._check_last(optimizer)
        step: Callable[[Any, Any], Any] = _grid_step
        if isinstance(optimizer, ModuleOptimizer):
            step = _module_step
        elif isinstance(optimizer, FirstOrderOptimizer):
            step = _first_order_step
        for _ in range(count):
            head = step(head, optimizer)
        return head

    def finish(self, head: Head, optimizer: GridOptimizer) -> Head:
        noise = optimizer.noise
        if noise is None:
            raise ValueError("this optimizer is not of private heads")
        whole = np.vstack([head.weight, head.bias])
        left, longest = (np.sqrt((of**2).sum(axis=0)).max() for of in (_gradient(head, optimizer), whole))
        if not left <= noise.tolerance / 2 or noise.radius * longest > LARGEST_LOGIT[head.task]:
            raise FloatingPointError(UNSETTLED)
        drawn = stream(noise.seed, "noise of the finished head", *map(str, optimizer.grid.lambdas))
        whole = whole + drawn.normal(0, noise.output, whole.shape)
        return replace(head, weight=whole[:-1], bias=whole[-1], left=None)

    def apart(self, head: Head, outputs: int = 1) -> tuple[Head, ...]:
        columns = [slice(at, at + outputs) for at in range(0, len(head.bias), outputs)]

        def alone(at: slice) -> Head:
            left = None if head.left is None else head.left[at]
            return Head(
                head.weight[:, at], head.bias[at], head.velocity[:, at], head.bias_velocity[at], head.task, left
            )

        return tuple(alone(at) for at in columns)

    def blanked(self, head: Head, columns: Mapping[int, np.ndarray]) -> Head:
        left = ~np.concatenate([columns[rank] for rank in sorted(columns)])
        return replace(head, weight=head.weight * left[:, None])

    def check_range(self, heads: Sequence[Head], batch: Batch) -> None:
        if not all(np.isfinite(head(batch.rows)).all() for head in heads):
            raise FloatingPointError("training diverged: lower the rate")
        left = [head.left for head in heads if head.left is not None and head.task != "regression"]
        if left and np.concatenate(left).max() > SETTLED:
            raise FloatingPointError(UNSETTLED)

    def measure(
        self, heads: Sequence[Head | ModuleHead], batch: Batch, penalty: Penalty | None
    ) -> tuple[Measures, ...]:
        measures = []
        for head in heads:
            logits = head(batch.rows)
            if isinstance(head, ModuleHead):
                draws = () if penalty is None else penalty.draws
                gaps = [((head(batch.rows + draw) - logits) ** 2).sum(axis=1) for draw in draws]
                squared = float(np.mean(gaps)) if gaps else 0.0
            else:
                gram = np.zeros((len(head.weight),) * 2) if penalty is None else penalty.gram
                squared = max(0.0, float(np.einsum("io,ij,jo->", head.weight, gram, head.weight)))
            spread = float(np.sqrt(logits.var(axis=0).sum()))
            measures.append(Measures(log_loss(logits, batch.label, head.task), spread, squared**0.5))
        return tuple(measures)

    def best_temperature(self, head: Head, batch: Batch, temperatures: Sequence[float]) -> int:
        logits = head(batch.rows)
        losses = [log_loss(logits / t, batch.label, head.task) for t in temperatures]
        rising = [i for i, (a, b) in enumerate(pairwise(losses)) if b >= a]
        return rising[0] if rising else len(losses) - 1

    def logits(self, head: Head, encodings: Blocks) -> np.ndarray:
        return head(_side_by_side(encodings))
