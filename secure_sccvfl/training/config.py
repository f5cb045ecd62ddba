"""Settings of the method, the numbers of steps that follow from them, and the public facts of a private head.

Nothing is opened to stop early. The objective is convex, so a fixed number of second-order steps reaches its optimum.
A schedule is a list of segments; between two of them the state may be kept, or the curvature computed again at the
present weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from secure_sccvfl.accounting.calibration import LEAST_RIDGE
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.models.aware import aware_columns, aware_radius
from secure_sccvfl.models.encoders import plain_columns, public_radius
from secure_sccvfl.models.generators import FITTED, GeneratorConfig
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.catalogue import charged_statistics
from secure_sccvfl.releases.mechanisms import CARD_SHARE, SHARE, HeadNoise, HeadPlan
from secure_sccvfl.training.grid import LARGEST_WEIGHT, PRIVATE_SAMPLED, sampled_rows
from secure_sccvfl.training.modules import HIDDEN, LINEAR, MODULE_DRAWS, HeadSpec

TEMPERATURES = tuple(float(t) for t in np.geomspace(0.5, 3.0, 25))
LARGEST_KAPPA = 10.0
"""Of the range penalty. Mediators hardly count from 1 on."""
SMALLEST_RIDGE = 3e-4
"""Of the rule. On ACS Income with codes (17,500 records, seeds 800 to 802) plain training has accuracy .797 at 5e-4,
.799 at 3e-4 and .799 at 2.8 / records. A smaller ridge takes more steps, and under MPC columns of more curvature than
2^14 times the ridge are refused: German has 1.7, so 1e-4 would be the limit."""
WEAK_RIDGE, WEAK_STEPS = 1e-3, 3
"""Below this ridge so many second-order steps more. At 3e-4 nine steps leave up to .04 of a logit on ACS Income,
twelve .007."""
EvaluationKind = Literal["noisy", "exact"]
"""How held-out records are evaluated: with noise that is charged, or exactly, which is not private."""
Controls = Literal["none", "standard", "full"]
"""What noisy figures are compared with; models of earlier versions say "full" for standard."""
ConsistencySource = Literal["tables", "records"]
"""Where the consistency penalty comes from."""
BASELINES = ("erm", "drop_m")
"""What a private model is compared with: plain training, and the same without the mediators."""
NET_WEIGHT = 30.0
"""Of expected shifts next to their usual weight of 1. Chosen among 10, 30, 100 and 300 on ACS Income by sex at lambda
.25 (seeds 800 and 801): beyond 30 net flips and the gap hardly fall, and curvature is harder to invert."""
Net = Literal["", "zero"]
"""Whether the expected shift of the logit from each group to each other is held near zero, so that flips balance."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the sealed method; reports use the defaults.

    Rule for lambda: the one of the grid nearest to `take_lambda`, by ratio. It is a price in log loss for a squared
    shift of the logit, so one value serves many data sets without validation records. With evaluation `noisy`
    nothing about validation records is opened.

    A linear head takes `grid_steps` second-order steps, all lambdas at once. After `sharpened` of them the curvature
    of classes is taken at the heads. On German, COMPAS and census data logits are then within .002 of the optimum,
    and within .01 at the smallest ridge; where a twentieth of the labels is 1, within .05. A run stops if a head is
    not at its optimum.

    `refreshes`: further releases of the noisy tables before joint training. `late_refreshes`: the same during it.
    Before each of them a head takes `WARM_STEPS` steps under the penalty of the tables so far, and nothing of it is
    opened; then roles, counterfactuals and penalty follow the tables of all releases. Mode `split` spreads them over
    its `steps`. `consistency_from`: the penalty on shifts under counterfactuals follows from the released tables
    (`models.table_gram`), or is taken over the training records, one counterfactual at a time ("records"): then the
    head reveals s of each of them, unless it is private. `private`: the head is differentially private (`releases`);
    a penalty over records is then a charged release with noise (`catalogue.GRAM`). Its lambdas are those of
    `lambdas`; each is a head that is charged. `alternatives`: on public data only, each lambda has the noise of a run
    that trains it alone. `head_share`: of the budget, for the head; 0 for the share of `share`. `baselines`: heads of
    `BASELINES` are trained too, from a part of the heads' share.

    `head`: `linear`, or a module (`training.modules`; `hidden` units of `mlp`). A module takes `steps` first-order
    steps at each lambda, with counterfactuals of every training record, and cannot be private.

    `own_marginals`: before counterfactuals are drawn, each owner sets the margins of its noisy tables to the exact
    counts of its own training records, which leaves less noise. These counts are not differentially private, so
    a private head refuses it, and no option of a session sets it.

    `guard`: weight of the proxy penalty. `ridge`: of a head that is not private; 0 stands for the rule of private
    heads, `LEAST_RIDGE` over the number of training records, and for `SMALLEST_RIDGE` from 9,334 records on. `kappa`:
    of the range penalty (`models.certificate.range_gram`), at every lambda. `net`: "zero" holds the expected shift of
    the logit from each group to each other near zero (`models.table_gram.TableGram.with_net_penalty`).
    """

    head: str = LINEAR
    hidden: int = HIDDEN
    lambdas: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
    take_lambda: float = 3.0
    guard: float = 0.1
    kappa: float = 0.0
    net: Net = ""
    ridge: float = 0.0
    refreshes: int = 0
    late_refreshes: int = 1
    steps: int = 60
    grid_steps: int = 9
    sharpened: int = 4
    keep_every: int = 10
    evaluation: EvaluationKind = "exact"
    consistency_from: ConsistencySource = "tables"
    private: bool = False
    own_marginals: bool = False
    alternatives: bool = False
    baselines: bool = False
    head_share: float = 0.0
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)

    def __post_init__(self) -> None:
        rising = list(self.lambdas) == sorted(self.lambdas) and all(map(math.isfinite, self.lambdas))
        if not self.lambdas or not rising or self.lambdas[0] < 0:
            raise ValueError(f"lambdas must rise from 0 or more, got {self.lambdas}")
        if self.lambdas[-1] * max(1.0, self.guard) > LARGEST_WEIGHT:
            raise ValueError(
                f"lambdas must be at most {LARGEST_WEIGHT:g}, also times the proxy penalty, got {self.lambdas}"
            )
        if not 0 <= self.kappa <= LARGEST_KAPPA:
            raise ValueError(f"kappa must be from 0 to {LARGEST_KAPPA:g}, got {self.kappa:g}")
        if min(self.guard, self.take_lambda, self.ridge) < 0 or (self.module is not None and not self.ridge):
            raise ValueError(f"bad take_lambda {self.take_lambda}, guard {self.guard} or ridge {self.ridge}")
        counts = (self.steps, self.grid_steps, self.sharpened, self.keep_every)
        if min(counts) < 1 or min(self.refreshes, self.late_refreshes) < 0:
            raise ValueError(
                "steps, grid_steps, sharpened and keep_every must be at least 1, "
                "refreshes and late_refreshes not negative"
            )
        if self.evaluation not in get_args(EvaluationKind):
            raise ValueError(f"evaluation must be noisy or exact, got {self.evaluation!r}")
        if self.consistency_from not in get_args(ConsistencySource):
            raise ValueError(f"consistency_from must be tables or records, got {self.consistency_from!r}")
        if self.net not in get_args(Net):
            raise ValueError(f'net must be zero, or "" for no such penalty, got {self.net!r}')
        if self.net and self.consistency_from != "tables":
            raise ValueError("net = zero follows from released tables: leave out consistency_from")
        if self.module is not None:
            self._check_module()
        if self.private:
            self._check_private()

    def _check_module(self) -> None:
        if self.private:
            raise ValueError(
                f"head {self.head} cannot be private: its noise is calibrated for a linear head alone; give "
                "private_model = false (public data only)"
            )
        if self.consistency_from != "records":
            raise ValueError(f"head {self.head} has consistency over records: leave out consistency_from")

    def _check_private(self) -> None:
        if self.generator.kind in FITTED:
            raise ValueError(f"generator {self.generator.kind} is fitted to records: a private head needs another")
        if self.own_marginals:
            raise ValueError("own_marginals puts exact counts of records into the penalty: a private head refuses it")
        if not 0 <= self.head_share < 1:
            raise ValueError(f"head_share must lie between 0 and 1, got {self.head_share}")

    @property
    def module(self) -> HeadSpec | None:
        return None if self.head == LINEAR else HeadSpec(self.head, self.hidden)

    @property
    def draws(self) -> int:
        return self.generator.draws if self.module is None else min(self.generator.draws, MODULE_DRAWS)

    @property
    def taken(self) -> float:
        wanted = math.log(max(self.take_lambda, 1e-6))
        return min(self.lambdas, key=lambda lam: abs(math.log(max(lam, 1e-6)) - wanted))

    @property
    def exact_records(self) -> bool:
        """Whether counterfactuals of training records enter the head without noise."""
        return self.consistency_from == "records" and not self.private

    @property
    def releases_gram(self) -> bool:
        """Whether the Gram matrix of records' counterfactuals is released with noise."""
        return self.consistency_from == "records" and self.private

    def only(self, lam: float) -> TrainConfig:
        return replace(self, lambdas=(lam,))

    def as_alternatives(self) -> TrainConfig:
        """On public data: the whole grid, each lambda with the noise of a private head that is trained alone."""
        if not self.private:
            return self
        grid = tuple(sorted({*type(self)().lambdas, *self.lambdas}))
        return replace(self, lambdas=grid, alternatives=True)

    def with_ridge(self, records: int) -> TrainConfig:
        """The same with the ridge for this public number of training records, if it is to follow from it."""
        return self if self.ridge else replace(self, ridge=max(LEAST_RIDGE / max(records, 1), SMALLEST_RIDGE))

    @property
    def second_order(self) -> bool:
        return self.head == LINEAR

    @property
    def net_weight(self) -> float:
        """Further weight of expected shifts in the consistency penalty."""
        return NET_WEIGHT if self.net else 0.0

    @property
    def newton_steps(self) -> int:
        """Second-order steps; `WEAK_STEPS` more of heads that are not private where the ridge is small."""
        weak = not self.private and 0 < self.ridge < WEAK_RIDGE
        return self.grid_steps + (WEAK_STEPS if weak else 0)

    @property
    def steps_per_lambda(self) -> int:
        return self.newton_steps if self.second_order else self.steps

    @property
    def total_steps(self) -> int:
        return self.newton_steps if self.second_order else self.steps * len(self.lambdas)

    @property
    def joins(self) -> bool:
        """Whether the model is also trained on the validation records.

        A private head makes no choice on them: its lambda is fixed, and it has no temperature. They are charged like
        all others. They stay apart if residuals are fitted on them, or if means of several lambdas over them
        are opened exactly: no figure about a training record may be opened that epsilon does not cover.
        """
        opened = self.evaluation == "exact" and len(self.lambdas) > 1 and not self.alternatives
        return self.private and not self.discovery.holds_out and not opened

    def training_rows(self, split: Split) -> np.ndarray:
        return split.train_and_validation if self.joins else split.train

    def tabled(self, decided: Roles | None, features: Collection[str]) -> tuple[str, ...]:
        """The columns whose tables of s are released, from public inputs; empty: all columns.

        Only counterfactuals and the proxy penalty read a table once a card has decided every column (`decided`). So
        tables of these columns alone are released: a record moves fewer tables, so they need less noise, and a
        private model has more of the budget left for its head. Discovery needs the tables of all, and so do its other
        statistics and generators that are fitted to records.
        """
        discovery = self.discovery
        fitted = self.generator.kind in FITTED
        if decided is None or fitted or discovery.holds_out or discovery.sketch != "counts":
            return ()
        return tuple(sorted({*decided.edited, *decided.penalized})) if set(features) <= set(decided.of) else ()

    def share(self, tabled: Collection[str]) -> float:
        """The head's share of the budget, where these columns have tables."""
        return self.head_share or (CARD_SHARE if tabled else SHARE)

    @property
    def charged(self) -> int:
        """The number of releases of statistics of s in a run, for which its budget is planned."""
        return charged_statistics(self, self.discovery, self.generator)


SCC = TrainConfig()
"""Recipe `scc`, the default."""


FINE_STEPS = 3
"""Steps at the end of private training whose sigmoid is precise."""
PRECISE_STEPS = 2
"""Additional steps of a private head. On German with lambda 3 (seeds 700 to 739) the longest mean gradient is then
2^-23.7, with two steps less 2^-19.8, and it must be at most 2^-20."""
MORE_STEPS, FLAT_RIDGE, STIFF_LAMBDA = 6, 0.005, 3.0
"""Additional steps where the curvature is computed on a part of the rows, where a lambda is above STIFF_LAMBDA, or
where the weights may be far from their optimum when the curvature is computed: the ridge is below FLAT_RIDGE of the
number of records, or below the square of the longest row."""
PRIVATE_TURN, PRIVATE_RATE = 3, 1.65
"""After so many steps of private training the curvature is computed at the weights. Steps before that are so much
longer than those along the inverse of its bound: curvature is smaller away from zero, and much smaller where labels
are rare."""
PRIVATE_LEAST = 2.0**-4
"""Smallest curvature in scaled columns that inverses of private heads invert; less where the ridge is smaller."""
WARM_STEPS, WARM_RATE = 2, 1.5
"""First-order steps before each late release of tables, and their rate times the number of columns; below 2."""


class Segment(NamedTuple):
    """Steps without interruption. recompute: compute the curvature at the weights first. fine: precise sigmoid."""

    steps: int
    recompute: bool = False
    fine: bool = False


def second_order_schedule(config: TrainConfig, task: Task, taken: int = 0) -> Iterator[Segment]:
    """The second-order steps left after `taken`. A resumed run recomputes the curvature where it continues."""
    steps = config.newton_steps
    turn = steps if task == "regression" else min(config.sharpened, steps)
    yield from _segments(steps, turn, config.keep_every, taken)


def _segments(steps: int, turn: int, most: int, taken: int = 0) -> Iterator[Segment]:
    """Segments of at most `most` steps; the curvature is computed after `turn` of them."""
    recomputed = False
    while taken < steps:
        count = min(most, (turn if taken < turn else steps) - taken)
        yield Segment(count, taken >= turn and not recomputed)
        recomputed, taken = taken >= turn, taken + count


def private_schedule(
    config: TrainConfig, noise: HeadNoise, rows: int, records: int, stiffest: float, further: int
) -> list[Segment]:
    """All steps of private heads. rows, records: of the training part. stiffest: the largest lambda."""
    steps = config.grid_steps + PRECISE_STEPS + further
    sampled = not sampled_rows(rows, PRIVATE_SAMPLED).all()
    if sampled or stiffest > STIFF_LAMBDA or noise.ridge < max(FLAT_RIDGE * records, noise.radius**2):
        steps += MORE_STEPS
    last = max(PRIVATE_TURN + 1, steps - FINE_STEPS)
    return [*_segments(last, PRIVATE_TURN, last), Segment(FINE_STEPS, fine=True)]


def least_curvature(ridge: float, kappa: float, groups: int, net: float) -> float:
    """Smallest curvature in scaled columns that the inverse of a private head covers. ridge: over that of the loss.

    A large penalty scales columns down, and with them their curvature outside of its range: the range penalty, that
    on net flips (`net`), or the consistency penalty of more groups than two, of which small ones have large
    displacements.
    """
    return min(PRIVATE_LEAST, ridge / 2) / max(1.0, 4 * kappa, (groups - 1) * max(1.0, net))


def head_plan(
    config: TrainConfig,
    layouts: Iterable[Layout],
    task: Task,
    outputs: int,
    *,
    aware: tuple[Roles, int] | None = None,
    units: int = 0,
    tabled: Collection[str] = (),
) -> HeadPlan | None:
    """The inputs of the price of a run's heads; None for a model that is not private.

    layouts: of all parties. aware: the roles and the number of groups, of a model that uses s. units: columns that
    each party adds to its plain ones (mode `dp`), of a joint length of at most 1. tabled: the columns whose tables of
    s are released, if not all.
    """
    if not config.private:
        return None
    party_layouts = list(layouts)
    columns = sum(plain_columns(block) for layout in party_layouts for block in layout.blocks)
    radii = [public_radius(layout) for layout in party_layouts]
    if aware is not None:
        radii = [aware_radius(layout, aware[0]) for layout in party_layouts]
        columns = sum(aware_columns(layout, *aware) for layout in party_layouts)
    if units:
        radii = [float(np.hypot(radius, 1.0)) for radius in radii]
        columns += units * len(party_layouts)
    lambdas = (config.taken,) if config.alternatives else config.lambdas
    share, baselines = config.share(tabled), outputs * len(BASELINES) * config.baselines
    return HeadPlan.of(radii, columns, outputs * len(lambdas), task, share, lambdas, config.releases_gram, baselines)
