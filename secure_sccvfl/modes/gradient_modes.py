"""The gradient modes of a run: what each opens, and how it trains once the statistics of s are in hand.

`sealed` trains a secret head on local encoders and returns no gradient. `dp` first trains the encoders from
noisy, charged batch gradients, then does the same. `split` is the paper's split learning: each party gets the
gradient in its own activations, which tells it the labels; nothing about that is hidden or charged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from accounting.calibration import noise_multiplier
from protocols.config import ConfigError
from protocols.records.private import private
from protocols.records.releases import ReleasePlan
from protocols.steps.sampling import nearest_sampling
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Part
from secure_sccvfl.data.party_data import Scheme
from secure_sccvfl.model.encoders import Encoder, plain_encoding
from secure_sccvfl.modes.dp import DpConfig, DpModel, dp_releases, train_dp
from secure_sccvfl.modes.split import Seen, SplitConfig, SplitModel, split_releases, train_split
from secure_sccvfl.privacy.charging import Charger
from secure_sccvfl.run.options import RunOptions
from secure_sccvfl.run.release_plan import common_releases, sealed_plan, validation_releases
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Hooks, Model, State, Trainer, calibrated

SPLIT_FIELDS, DP_FIELDS = ("rows", "gradient"), ("gradients", "total")
Phase = Callable[[str], AbstractContextManager[None]]


def check_mode(options: RunOptions, scheme: Scheme) -> None:
    """Refuse what a mode cannot do."""
    if options.mode == "dp" and scheme.task != "binary":
        raise ConfigError("mode dp trains encoders for two classes only; use sealed")
    if options.mode != "dp" and options.dp_sampling != 1:
        raise ConfigError(f"dp_sampling is for mode dp, not {options.mode}")


def plain_columns(scheme: Scheme) -> list[int]:
    """Columns of each party's plain encoder, by the public dictionary."""
    layouts = [Layout.of(own) for own in scheme.features]
    return [plain_encoding(layout, np.zeros((1, layout.width))).shape[1] for layout in layouts]


def dp_config(options: RunOptions) -> DpConfig:
    return DpConfig(steps=options.dp_steps, sampling=nearest_sampling(options.dp_sampling))


def split_config(options: RunOptions) -> SplitConfig:
    """As many steps as at one lambda of a sealed run; its weight of consistency is its own."""
    return SplitConfig(steps=options.steps)


def mode_plan(scheme: Scheme, options: RunOptions) -> ReleasePlan:
    """Everything that a run of this mode opens."""
    if options.mode == "split":
        parties = len(scheme.parties)
        return ReleasePlan(
            [
                *common_releases(scheme, options),
                *split_releases(parties, split_config(options)).values(),
                *validation_releases(parties, options.evaluation, lambdas=0),
            ]
        )
    more = dp_releases(plain_columns(scheme), dp_config(options)) if options.mode == "dp" else {}
    return ReleasePlan([*sealed_plan(scheme, options).releases.values(), *more.values()])


def run_multiplier(options: RunOptions) -> float:
    """Hidden noise over sensitivity of every release: statistics of s and steps of `dp` fit the cap together."""
    config = dp_config(options)
    steps = ((config.sampling, config.steps),) if options.mode == "dp" else ()
    return noise_multiplier(options.epsilon, options.delta, options.charged, steps)


def learn_encoders(
    engine: SecureEngine,
    train: Part,
    scheme: Scheme,
    options: RunOptions,
    charger: Charger,
    hooks: Hooks,
    state: State | None,
) -> DpModel:
    """The first half of `dp`, or what a kept state leaves of it."""
    return train_dp(
        engine.session,
        train,
        scheme.label_holder,
        plain_columns(scheme),
        dp_config(options),
        charger,
        options.seed,
        hooks,
        state,
    )


def run_split(
    trainer: Trainer, engine: SecureEngine, options: RunOptions, phase: Phase, state: State | None = None
) -> tuple[Model, SplitModel]:
    """Discovery as in `sealed`, then split learning, or the rest of it; the result as a model like any other."""
    if state is not None:
        trainer.begin(state)
    with phase("discovery and warm-up"):
        trainer.discover()
    found = trainer.state.finding
    if found is None:
        raise RuntimeError("no sketch was released")
    with phase("counterfactuals"):
        finding, generators = trainer.generate(found)
    with phase("training"):
        config = split_config(options)
        made = train_split(
            engine,
            trainer.train,
            trainer.validation,
            trainer.task,
            trainer.outputs,
            finding.roles,
            generators,
            config,
            options.seed,
            trainer.hooks,
            trainer.state,
        )
        check = made.engine.bind(
            {p.rank: made.encoders[p.rank](p.units) for p in trainer.validation.parties},
            trainer.validation.label,
            {p.rank: np.zeros(made.encoders[p.rank].columns) for p in trainer.validation.parties},
            trainer.outputs,
        )
        if options.evaluation == "exact":
            made.engine.check_range(made.head, check)
        head, temperature = calibrated(made.engine, made.head, check, trainer.task, options.evaluation)
    encoders: dict[int, Encoder] = dict(made.encoders)
    model = Model(
        made.engine,
        encoders,
        head,
        trainer.task,
        temperature,
        config.lam,
        finding,
        trainer.state.sketches,
        generators,
        (),
        trainer.state.moments or (),
    )
    return model, made


def keep_gradients(folder: Path, made: SplitModel | DpModel) -> None:
    """What this party was shown, for the attack that the report runs on it."""
    arrays: dict[str, Any] = {}
    for number, step in enumerate(made.seen):
        fields = {k: getattr(step, k) for k in (SPLIT_FIELDS if isinstance(step, Seen) else DP_FIELDS)}
        arrays |= {f"{name} {number}": value for name, value in fields.items()}
    with open(folder / "gradients.npz", "wb", opener=private) as file:
        np.savez(file, **arrays)
