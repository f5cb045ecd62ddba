"""The Engine interface: where values of several parties meet, in plaintext (`plain`) or under MPC (`secure`).

Encoders and generators run locally at their party and never see s per record. Everything in training that joins
columns of different parties, labels or s goes through an Engine. A process passes what its own parties hold (`Blocks`
keyed by rank; an `AtHolder` is None where the process is not the holder). So the same trainer runs as one plaintext
process or as one process per party. Batches, penalties, optimizers and heads are opaque to it: under MPC they hold
shares. Noisy statistics of s have their own interface (`secure_sccvfl.discovery.statistics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.models.table_gram import TableGram
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.operations.sigmoid import CAPPED_BOUND
from secure_sccvfl.protocols.steps.second_order import BOUNDED_SLOPE_BOUND
from secure_sccvfl.releases.mechanisms import SLOPES, GramNoise, HeadNoise
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.modules import HeadSpec

# Bound on the second derivative of the loss in a logit. Of several classes each has a sigmoid against the rest.
CURVATURE: Mapping[Task, float] = {"binary": 0.25, "multiclass": 0.25, "regression": 1.0}
PRIVATE_CURVATURE: Mapping[Task, float] = {
    task: bend * (1.0 if task == "regression" else 0.25) for task, (_, _, bend) in SLOPES.items()
}
"""The same for the loss of a private head."""
LARGEST_LOGIT: Mapping[Task, float] = {
    "binary": CAPPED_BOUND,
    "multiclass": CAPPED_BOUND,
    "regression": BOUNDED_SLOPE_BOUND,
}
"""Of a private head: up to this magnitude the slope of its loss under MPC is precise, and that of a convex loss."""

UNSETTLED = (
    "training has not settled, as happens if labels are very rare or columns predict them without error: raise "
    "the ridge or grid_steps"
)


@dataclass(frozen=True)
class Step:
    """One full-batch step: gradient of task + lam * consistency + proxy_penalty * proxies, heavy-ball momentum."""

    rate: float = 0.2
    momentum: float = 0.9
    lam: float = 0.0
    proxy_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.rate <= 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"need rate > 0 and 0 <= momentum < 1, got {self.rate}, {self.momentum}")
        if self.lam < 0 or self.proxy_penalty < 0:
            raise ValueError(f"weights must not be negative, got {self.lam}, {self.proxy_penalty}")

    def weights_of(self, draws: int, proxies: int) -> tuple[float, ...]:
        """Of a module: the weights of w / 2 (z(x') - z(x))^2 for each counterfactual and each shifted copy x'.

        A linear head has z(x') - z(x) = (x' - x) w, so this is the penalty that it has.
        """
        return (*(self.lam / draws for _ in range(draws)), *(self.proxy_penalty for _ in range(proxies)))


@dataclass(frozen=True)
class Measures:
    """The declared scalars of a batch; nothing per record.

    Mean loss, root of the summed variance of the logits, root-mean-square gap under counterfactuals. flips: only in
    reports of earlier versions.
    """

    loss: float
    spread: float
    gap_rms: float
    flips: float | None = None

    @property
    def relative_gap(self) -> float:
        """Root-mean-square gap per spread of the logit."""
        return self.gap_rms / max(self.spread, 1e-9)


class Engine(Protocol):
    """The operations of training. Rows of all blocks agree; `label` and `groups` are held by one party each."""

    # values of all parties

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        """Every party announces these named numbers to all; returns those of all parties.

        Only for values that are public or follow from a noisy release; they are declared, not charged.
        """
        ...

    def total(self, name: str, values: Sequence[float], present: bool = True) -> tuple[float, ...] | None:
        """Sums over the parties that are present; opens only the sums. None if too few are present."""
        ...

    def select(self, choices: Iterable[Blocks], groups: AtHolder, attribute: int = 0) -> Any:
        """Encodings that depend on s: [hypothesised group] -> encodings, of which the one-hot of s selects one a row.

        For mode `aware` only. `bind` and `logits` take the result instead of encodings.
        """
        ...

    def bind(
        self,
        encodings: Any,
        label: AtHolder,
        ridge: Blocks,
        outputs: int = 1,
        membership: MembershipMask | None = None,
        classes: bool = False,
        records: Any = None,
    ) -> Any:
        """Encodings, label and per-column ridge of the owners as a batch for this many logits.

        `membership`: the rows that count, if not all do. `classes`: the label is a class; private heads need to know.
        `records`: of plain encodings, their public forms and own inputs; with active security owners prove them.
        """
        ...

    # penalties

    def counterfactuals(
        self,
        deltas: Iterable[Iterable[Blocks]],
        groups: AtHolder,
        attribute: int = 0,
        moving: Mapping[int, np.ndarray] | None = None,
        membership: MembershipMask | None = None,
    ) -> Any:
        """The penalty of one protected attribute: displacements [draw][hypothesised group], selected by s.

        `attribute`: number of the protected attribute. `moving`: of every party, which columns may change; all if it
        is not given. `membership`: as for `bind`.
        """
        ...

    def join(self, penalties: Sequence[Any], directions: Sequence[Blocks]) -> Any:
        """Penalties of several protected attributes, and directions of proxies, as one penalty."""
        ...

    def table_penalty(self, grams: Sequence[Mapping[int, TableGram]], directions: Sequence[Blocks]) -> Any:
        """A penalty from released tables: the mean of expected Gram matrices, and directions. No record enters.

        `grams`: for each protected attribute, the parts of this process's parties.
        """
        ...

    def with_ranges(self, penalty: Any, ranges: Blocks) -> Any:
        """The penalty with these blocks of a public matrix next to the ridge (`models.certificate.range_gram`).

        Each owner adds its block to its own columns: no round. Its weight is the same for every lambda.
        """
        ...

    def noisy_gram(
        self,
        deltas: Sequence[Iterable[Iterable[Blocks]]],
        groups: Sequence[AtHolder],
        moving: Mapping[int, np.ndarray],
        membership: MembershipMask | None,
        charge: Callable[[], GramNoise],
    ) -> np.ndarray:
        """The summed Gram matrices of all selected counterfactuals over all columns, with noise, opened to all.

        `deltas`, `groups`: as of `counterfactuals`, one for each attribute. `charge` is called before noise is drawn.
        """
        ...

    # optimization

    def head(self, batch: Any, outputs: int, task: Task) -> Any:
        """Zero weights for the columns of a batch."""
        ...

    def module_head(self, batch: Any, outputs: int, task: Task, spec: HeadSpec, seed: int) -> Any:
        """A module at its first weights, which are public (`training.modules`)."""
        ...

    def width(self, head: Any) -> int:
        """Number of columns of a head, of all parties, without the bias; public."""
        ...

    def copied(self, head: Any, copies: int) -> Any:
        """The initial weights of a grid: copies of one head, side by side, with zero velocity."""
        ...

    def first_order(self, batch: Any, penalty: Any | None, step: Step, curvature: Blocks) -> Any:
        """An optimizer of first-order steps. Preparing an optimizer ends the one before.

        `curvature`: each owner's bound on the second derivative per column; a step divides by it. Under MPC owners
        scale their columns before sharing them, which gives the same step.
        """
        ...

    def autograd(self, batch: Any, penalty: Any | None, step: Step, ridge: float) -> Any:
        """An optimizer of a module, with the penalty of `Step.weights_of` on every record (one of `join`)."""
        ...

    def second_order(
        self, batch: Any, penalty: Any | None, grid: Grid, bounds: Bounds, noise: HeadNoise | None = None
    ) -> Any:
        """An optimizer of second-order steps for a whole grid.

        Its weights have a column for each entry of the grid: of several classes one after the other for each lambda.
        `noise`: heads are private; each gets its own noise vector in the objective, and the ridge of `noise` on every
        column and the bias.
        """
        ...

    def sharpen(self, head: Any, optimizer: Any) -> Any:
        """A second-order optimizer of classes with the curvature at these weights instead of its bound."""
        ...

    def steps(self, head: Any, optimizer: Any, count: int, *, fine: bool = False) -> Any:
        """`count` steps of the optimizer that was prepared last; returns the new weights.

        fine: second-order steps whose sigmoid is precise, for the end of private training.
        """
        ...

    def finish(self, head: Any, optimizer: Any) -> Any:
        """Private heads at the end of training, with the noise that covers finite precision.

        It stops the run if the mean gradient is longer than the tolerance, or the weights are so long that a logit
        may leave the range of the sigmoid. Under MPC one bit is opened for both.
        """
        ...

    def apart(self, head: Any, outputs: int = 1) -> tuple[Any, ...]:
        """The weights of each lambda of a grid, with this many logits."""
        ...

    def blanked(self, head: Any, columns: Mapping[int, np.ndarray]) -> Any:
        """The weights of a finished head with 0 in these public columns of each party."""
        ...

    # what is opened

    def check_range(self, heads: Sequence[Any], batch: Any) -> None:
        """Raise if logits of this batch, or of the last step, are out of range, or a head has not converged.

        Under MPC one bit is opened for all heads: whether any logit is outside the range of its sigmoid, or any head
        has not converged. It is 0 in a run that continues.
        """
        ...

    def measure(self, heads: Sequence[Any], batch: Any, penalty: Any | None) -> tuple[Measures, ...]:
        """Opens the scalars of `Measures` for each head."""
        ...

    def best_temperature(self, head: Any, batch: Any, temperatures: Sequence[float]) -> int:
        """The temperature of a rising list with the lowest loss on this batch; opens only the choice.

        The loss is convex in 1 / temperature, so the choice is the first temperature after which it rises.
        """
        ...

    def logits(self, head: Any, encodings: Any) -> np.ndarray:
        """Logits (rows x outputs), opened to the declared receiver of predictions. `encodings`: as for `bind`."""
        ...
