"""Attacks on what a run gives out: its model, answers of the model, and released tables. Each with its control.

The white box is put together from the shares of all parties: nobody in the consortium has it. An attack that gains
nothing with it gains nothing with less. Attacks come from the catalogue. For each one that applies there is a row for
every view, and one for its positive control. Those that do not apply are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from secure_sccvfl.audit.attacks.catalogue import ATTACKS, Attack
from secure_sccvfl.audit.attacks.completion import completed
from secure_sccvfl.audit.attacks.properties import MOVED, allowed
from secure_sccvfl.audit.attacks.retraining import recovered
from secure_sccvfl.audit.attacks.view import Rate, Shown
from secure_sccvfl.audit.evaluation import (
    BOUND,
    CONTROL,
    NO_GAIN,
    PROMISE,
    SHOWN,
    TARGET,
    Row,
    ViewAttacks,
)
from secure_sccvfl.audit.finished_run import FinishedRun
from secure_sccvfl.evaluation.prepared import Prepared
from secure_sccvfl.evaluation.views import LinearModel, codes_of, gram_noise, model_views, white_box_view
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.base import noise_multiplier_of

MEMBERSHIP_TARGET = 0.6
"""Members and others are to be told apart at this rate at most. It is an aim: differential privacy of the head bounds
the rate by e^eps / (1 + e^eps), which says little at the epsilon of a small data set."""
ON_MODELS = ("membership", "retraining", "completion", "inversion", "property", "reconstruction")


def linear_model(run: FinishedRun, ready: Prepared) -> LinearModel:
    """The run's model as a head on the parties' encoders, with the tables that were released to all of them."""
    parts = list(run.models())
    weight, bias = run.head()
    sealed = run.options.training.mode == "sealed"
    config, schema = run.options.train_config(), run.options.schema(len(run.parties))
    counted = run.options.discovery.table_kind == "counts" and run.options.data.align == "exact"
    tables = {name: table for part in parts for name, table in part.sketches[0].tables.items()}
    lam = parts[0].lam if parts[0].lam is not None else config.taken
    return LinearModel(
        ready,
        {part.rank: part.encoder for part in parts},
        weight,
        bias,
        lam if sealed else None,
        getattr(config, "consistency_from", "records"),
        gram_noise=gram_noise(ready, config, noise_multiplier_of(run.options, schema)),
        tables=tables if counted else None,
        mu=float(np.sqrt(parts[0].sketches[0].releases) / noise_multiplier_of(run.options, schema))
        if counted
        else None,
    )


def on_model(
    attacks: ViewAttacks, ready: Prepared, progress: Callable[[str], None] = lambda view: None
) -> dict[str, str]:
    """All attacks of the catalogue on the run's model; returns why others do not apply, by attack."""
    run, skipped = attacks.run, {}
    views: dict[str, Mapping[str, Any]] = dict(model_views(linear_model(run, ready)))
    views["opened gradients"] = opened_gradients(run)
    for name in ON_MODELS:
        attack = ATTACKS.get(name)
        found = views.get(attack.takes, {})
        if not found:
            skipped[name] = reason(name, run, ready)
        for number, (view, held) in enumerate(found.items()):
            progress(f"{name}: {view}")
            if number == 0:
                attacks.rows.append(control_row(name, attack, held, attacks.seed))
            _add(attacks, name, view, held)
    if ready.data.task != "regression" and ready.roles.named("M"):
        held = white_box_view("mediators", run.white_box(), ready, brief=True)
        attacks.rows.append(control_row("pgd", ATTACKS.get("pgd"), held, attacks.seed))
    return skipped


def control_row(name: str, attack: Attack, held: Any, seed: int) -> Row:
    """The positive control of an attack. One that finds no record to judge has failed, too."""
    view = f"positive control: {attack.found}"
    rates = attack.control(held, seed) or [Rate(name, view, 0.0, 0.0, 1.0, 0.5)]
    return Row.of(name, rates[-1], view, promise=CONTROL, limit=attack.least)


def _add(attacks: ViewAttacks, name: str, view: str, held: Any) -> None:
    mode, seed = MODES.get(attacks.run.options.training.mode), attacks.seed
    if name == "retraining":
        attacks.add_guesses(name, view, *recovered(held, seed), NO_GAIN)
    elif name == "completion":
        promise = NO_GAIN if PROMISE["y"][mode.labels] == NO_GAIN else SHOWN
        attacks.add_guesses(name, view, *completed(held, seed), promise)
    elif name == "property":
        for rate in ATTACKS.get(name).run(held, seed):
            moved = next(k for k in MOVED if rate.attack.endswith(f" of {k}"))
            most = allowed(held.mu, moved)
            title = f"{rate.attack} {'record' if moved == 1 else 'records'}"
            row = Row.of(name, rate, title, control=most, promise=BOUND, limit=most, leak=rate.low > most)
            attacks.rows.append(row)
    else:
        rates = ATTACKS.get(name).run(held, seed)
        control = {"control": rates[0].rate} if name == "reconstruction" else {}
        target: dict[str, Any] = {"promise": TARGET, "limit": MEMBERSHIP_TARGET} if name == "membership" else {}
        attacks.rows.append(Row.of(name, rates[-1], view, **control, **target))


def opened_gradients(run: FinishedRun) -> dict[str, Shown]:
    """What each party of a `split` run was shown, before the columns of the others; none in other modes."""
    if MODES.get(run.options.training.mode).groups != "shown":
        return {}
    rows, made = run.trained[run.rows], {}
    for party in run.parties:
        targets = {}
        for other in run.parties:
            for block in other.layout.blocks if other is not party else ():
                codes = codes_of(block, other.inputs[rows])
                if len(np.unique(codes)) > 1 and np.bincount(codes)[np.unique(codes)].min() >= 4:
                    targets[block.feature.name] = codes
        if targets:
            made[f"party {party.name}"] = Shown(party.name, party.inputs[rows], run.signals((party.rank,)), targets)
    return made


def reason(name: str, run: FinishedRun, ready: Prepared) -> str:
    """Why an attack does not apply to a run."""
    if name == "reconstruction":
        return f"mode {run.options.training.mode} opens no gradient"
    if name == "retraining":
        if run.options.training.mode != "sealed":
            mode = run.options.training.mode
            return f"mode {mode} trains encoders too: heads of several trainings have no common equation"
        return "no mediator is edited" if not ready.roles.edited else "it is for labels of two classes"
    if name == "property":
        return "tables are scaled, or of a hidden intersection"
    if name == "inversion":
        return "scores are not linear in the columns: encoders are networks"
    return "the label is a number"
