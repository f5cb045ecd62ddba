"""Attacks on what a run gives out: its model, answers of the model, and released tables.

The white box is put together from the shares of all parties: nobody in the consortium has it. An attack that gains
nothing with it gains nothing with less. Every attack of the registry that is not about transcripts runs here, on
every view of the kind that it takes, with its positive control; those that do not apply are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from secure_sccvfl.audit.attacks.catalogue import ATTACKS, BOUND, NO_GAIN, SHOWN, TARGET, Attack
from secure_sccvfl.audit.attacks.view import Columns, Rate, Shown, View, folds
from secure_sccvfl.audit.evaluation import CONTROL, OURS, Progress, Row, ViewAttacks, white_box_rows
from secure_sccvfl.audit.finished_run import FinishedRun
from secure_sccvfl.evaluation.methods import Prepared
from secure_sccvfl.evaluation.views import LinearModel, codes_of, gram_noise, model_views, white_box_view
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.base import noise_multiplier_of

Views = dict[str, Mapping[str, Any]]
"""What attacks take -> name of the view -> what the adversary holds."""


def linear_model(run: FinishedRun, ready: Prepared) -> LinearModel:
    """The run's model as a head on the parties' encoders, with the tables that were released to all of them."""
    parts, (weight, bias) = list(run.models()), run.head()
    config, sketch = run.options.train_config(), parts[0].sketches[0]
    multiplier = noise_multiplier_of(run.options, run.options.schema(len(run.parties)))
    counted = run.options.discovery.table_kind == "counts" and run.options.data.align == "exact"
    tables = {name: table for part in parts for name, table in part.sketches[0].tables.items()}
    lam = parts[0].lam if parts[0].lam is not None else config.taken
    return LinearModel(
        ready,
        {part.rank: part.encoder for part in parts},
        weight,
        bias,
        lam if run.options.training.mode == "sealed" else None,
        getattr(config, "consistency_from", "records"),
        gram_noise=gram_noise(ready, config, multiplier),
        tables=tables if counted else None,
        mu=float(np.sqrt(sketch.releases) / multiplier) if counted else None,
    )


def views_of_run(run: FinishedRun, ready: Prepared, logits: np.ndarray) -> Views:
    """What adversaries hold of the run's model and its answers. logits: of the test records."""
    views: Views = dict(model_views(linear_model(run, ready)))
    views["opened gradients"] = opened_gradients(run)
    test, receiver = run.split.test, run.parties[run.holder("y")]
    codes = run.data.protected[0].codes[test]
    known = folds(codes, 2, run.options.data.seed) == 0
    views["view"] = {"scores": View("receiver", (logits[known], codes[known]), (logits[~known], codes[~known]))}
    targets = {name: (c[known], c[~known]) for name, c in _others_columns(run, receiver.rank, test).items()}
    if targets:
        own, shown = ((part[known], part[~known]) for part in (receiver.inputs[test], logits))
        views["columns"] = {"scores": Columns("scores", own, shown, targets)}
    if ready.data.task != "regression" and ready.roles.named("M"):
        views["white box"] = {OURS: white_box_view("mediators", run.white_box(), ready, brief=True)}
    return views


def on_model(
    attacks: ViewAttacks, ready: Prepared, logits: np.ndarray, progress: Progress = lambda view: None
) -> dict[str, str]:
    """All attacks of the registry on the run's model; returns why others do not apply, by attack."""
    aware = attacks.run.options.training.mode == "aware"
    views, skipped = {} if aware else views_of_run(attacks.run, ready, logits), {}
    for name, attack in ATTACKS.items():
        if attack.on_transcripts or attack.paper_only:
            continue
        held = views.get(attack.takes, {})
        if not held:
            skipped[name] = "this model uses s, which no white box here has" if aware else f"it needs {attack.needs}"
            continue
        attacks.rows.append(control_row(name, attack, next(iter(held.values())), attacks.seed))
        if attack.takes == "white box":
            continue
        for view, one in held.items():
            progress(f"{name}: {view}")
            _add(attacks, name, attack, view, one)
    if not aware:
        attacks.rows += list(white_box_rows(OURS, attacks.run.white_box(), ready))
    return skipped


def control_row(name: str, attack: Attack, held: Any, seed: int) -> Row:
    """The positive control of an attack. One that finds no record to guess has failed, too."""
    view = f"positive control: {attack.found}"
    rates = attack.control(held, seed) or [Rate(name, view, 0.0, 0.0, 1.0, 0.5)]
    return Row.of(name, rates[-1], view, promise=CONTROL, limit=attack.least)


def _add(attacks: ViewAttacks, name: str, attack: Attack, view: str, held: Any) -> None:
    mode, seed = MODES.get(attacks.run.options.training.mode), attacks.seed
    if attack.promise == NO_GAIN:
        kept = not attack.hidden or getattr(mode, attack.hidden) == "hidden"
        attacks.add_guesses(name, view, *attack.guesses(held, seed), NO_GAIN if kept else SHOWN)
        return
    rates = attack.run(held, seed)
    if attack.promise == BOUND:
        for rate in rates:
            most = attack.bound_of(held, rate)
            title = f"{rate.attack} {'record' if rate.attack.endswith(' 1') else 'records'}"
            further = {"control": most, "promise": BOUND, "limit": most, "leak": rate.low > most}
            attacks.rows.append(Row.of(name, rate, title, **further))
        return
    control = {"control": rates[0].rate} if attack.own_first else {}
    target: dict[str, Any] = {"promise": TARGET, "limit": attack.limit} if attack.promise == TARGET else {}
    attacks.rows.append(Row.of(name, rates[-1], view, **control, **target))


def _others_columns(run: FinishedRun, rank: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Codes of the columns of all other parties in which at least two values occur four times or more."""
    targets = {}
    for other in run.parties:
        for block in other.layout.blocks if other.rank != rank else ():
            codes = codes_of(block, other.inputs[rows])
            counts = np.unique(codes, return_counts=True)[1]
            if len(counts) > 1 and counts.min() >= 4:
                targets[block.feature.name] = codes
    return targets


def opened_gradients(run: FinishedRun) -> dict[str, Shown]:
    """What each party of a `split` run was shown, before the columns of the others; none in other modes."""
    if MODES.get(run.options.training.mode).groups != "shown":
        return {}
    rows, views = run.trained[run.rows], {}
    for party in run.parties:
        if targets := _others_columns(run, party.rank, rows):
            signals = run.signals((party.rank,))
            views[f"party {party.name}"] = Shown(party.name, party.inputs[rows], signals, targets)
    return views
