"""Settings of mode `split`, from the options of a run, and the releases that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from protocols.records.releases import Release
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.releases.catalogue import EARLY_STOPPING, EDITING_PARTIES, GRADIENT, RANGE_CHECK, Facts
from secure_sccvfl.research.paper.settings import DECAY, Columns, settings_of
from secure_sccvfl.research.split.local import ValidityWeights
from secure_sccvfl.training.modes.options import RunOptions


@dataclass(frozen=True)
class SplitConfig:
    """Settings of `split`; `batch` None is the full batch, or the largest that a step can take.

    `steps`: the most with consistency. `keep_every`: how many of them are between two checkpoints. `columns`: what
    encoders read of a feature, as in `PaperSettings`. `patience`: steps without a better validation objective after
    which training stops, counted from the first one; 0: it never stops early. `keep_shown`: keep the gradients of all
    steps for attacks on the run. They reveal labels and s, so it is for pooled data.
    """

    hidden: int = 64
    encoder_rate: float = 0.002
    decay: float = 5e-3
    head_rate: float = 0.05
    momentum: float = 0.9
    lam: float = 4.0
    batch: int | None = None
    warmup: int = 20
    steps: int = 60
    keep_every: int = 10
    draws: int = 4
    dropout: float = 0.0
    columns: Columns = "one_hot"
    patience: int = 0
    late_refreshes: int = 0
    keep_shown: bool = True
    weights: ValidityWeights = field(default_factory=ValidityWeights)

    def __post_init__(self) -> None:
        if min(self.hidden, self.warmup, self.steps, self.keep_every, self.draws) < 1:
            raise ValueError(f"hidden, warmup, steps, keep_every and draws must be at least 1, got {self}")
        if self.encoder_rate <= 0 or self.head_rate <= 0 or not 0 <= self.momentum < 1 or self.lam < 0:
            raise ValueError(f"bad rates, momentum or lam in {self}")
        if not 0 <= self.dropout < 1 or self.patience < 0:
            raise ValueError(f"dropout must be below 1 and patience not negative, got {self}")
        if not 0 <= self.late_refreshes < self.steps:
            raise ValueError(
                f"steps come before and after every late refresh: {self.steps} steps with consistency are too few "
                f"for {self.late_refreshes} late_refreshes"
            )

    @property
    def most(self) -> int:
        """Steps of a run that does not stop early."""
        return self.warmup + self.steps

    @property
    def refreshed_at(self) -> tuple[int, ...]:
        """After how many steps with consistency each late refresh comes.

        They are spread evenly over all of these steps; where training may stop early, over as many as the patience.
        """
        stretches = self.late_refreshes + 1
        whole = max(min(self.steps, self.patience or self.steps), stretches)
        return tuple(number * whole // stretches for number in range(1, stretches))

    @property
    def kept_at(self) -> tuple[int, ...]:
        """After how many steps with consistency the range is checked and the state is kept; 0: after the warm-up."""
        every = range(0, self.steps, self.keep_every)
        return tuple(sorted({*every, *self.refreshed_at, self.steps}))


def split_config(options: RunOptions) -> SplitConfig:
    """The same number of steps as for one lambda of a sealed run; one weight of consistency, named or its own.

    Method `paper` has the column of its table: sizes, dropout, rates, warm-up, and epochs with early stopping, whose
    bits are figures of validation records. The head has the table's rate with momentum: Adam would divide by roots
    under MPC.
    """
    weights = ValidityWeights(
        options.training.weight_identity, options.training.weight_support, options.training.weight_leak
    )
    plain = SplitConfig(
        steps=options.training.steps,
        lam=options.training.lambda_,
        late_refreshes=options.privacy.late_table_releases,
        keep_shown=options.data.pooled,
        weights=weights,
    )
    if options.training.method != "paper":
        return plain
    column = settings_of(options.data.dataset)
    return replace(
        plain,
        hidden=column.hidden,
        encoder_rate=column.rate,
        head_rate=column.rate,
        decay=DECAY if column.optimiser == "adamw" else 0.0,
        warmup=options.training.warmup,
        dropout=column.dropout,
        columns=column.columns,
        patience=column.patience,
        weights=replace(weights, generator_rate=column.generator_rate, adversary_rate=column.adversary_rate),
    )


def split_releases(parties: int, config: SplitConfig, task: Task = "binary") -> list[Release]:
    """What `split` opens besides what the engine does, known before the session."""
    facts = Facts({rank: {"encoder": config.hidden} for rank in range(parties)}).with_settings(config)
    checks = len(config.kept_at) + 1  # the last check is about validation records
    return [
        *GRADIENT.releases(facts, times=config.most),
        *EDITING_PARTIES.releases(facts),
        *RANGE_CHECK.releases(facts, times=checks if task != "regression" else 0),
        *EARLY_STOPPING.releases(facts, times=config.most if config.patience else 0),
    ]
