"""The attacks of `security_eval` as rows of data, and what must hold for them.

A row has attack, view, strength, rate with its 95 % interval, chance, control, and gain over the control (or chance)
with its interval. Rows of positive controls (`CONTROL`) must succeed: what an attacker does not find counts only if
it finds what is there. A row without a strength is the attacker that the adversary itself would choose
(`inference.py`), and `forced`, the best of six that had to use the view. A row with one (epochs of a network, radius)
is a point of a curve.

Many views are tested, and one of twenty intervals misses by chance. So the intervals of the F views with a promise
hold together: each is at level 1 - .01 / 2F (Bonferroni). The 2 is needed since the halves of an attack are not
independent: each half guesses of the other what is informative by chance in both. So an interval over both misses a
view that reveals nothing up to twice as often as it says. A leak is called where the gain's interval lies above 0, or
where some column of the view is related to the truth at .01 / 2F.

A target is a limit for a rate that no accounting bounds. The rate itself decides (`TARGET`), so it must be precise: a
standard error of at most `PRECISE`. The rate at which logits reveal s of test records often is not, since it is a
mean over groups and the smaller one may have 45 records. Then the mean over models of further seeds decides, trained
on the plaintext engine with the run's settings and noise, and the run's own rate misses only if its interval lies
above the limit (`ROUGH`).

`attack_model` attacks what a run gives out: its model, answers of the model, and released tables. The white box is
put together from the shares of all parties: nobody in the consortium has it. An attack that gains nothing with it
gains nothing with less. Every attack of the registry that is not about transcripts runs there, on every view of the
kind that it takes, with its positive control; those that do not apply are listed with the reason.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from secure_sccvfl.audit.attacks.attributes import EPOCHS
from secure_sccvfl.audit.attacks.catalogue import ATTACKS, BOUND, NO_GAIN, SHOWN, TARGET, Attack
from secure_sccvfl.audit.attacks.labels import from_example_gradients
from secure_sccvfl.audit.attacks.view import Columns, Rate, Shown, View, folds
from secure_sccvfl.audit.finished_run import FinishedRun, Target
from secure_sccvfl.audit.inference import Held, Inference, balanced, dependence, gain_interval, infer, infer_half
from secure_sccvfl.audit.share_probe import columns, drawn, read_probe
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.methods import METHODS, Fitted, Prepared, train_plainly
from secure_sccvfl.evaluation.pooled import ready_with
from secure_sccvfl.evaluation.scoring import interval
from secure_sccvfl.evaluation.views import LinearModel, codes_of, gram_noise, model_views, white_box_view
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.base import noise_multiplier_of
from secure_sccvfl.training.modes.options import RunOptions

Progress = Callable[[str], None]
ATTACK: Mapping[Target, str] = {"s": "aia", "y": "label"}
ERROR, LEVEL = 0.01, 0.95
"""How often a run that leaks nothing is called leaking, over all views together; and the level of other intervals."""
BASELINES = ("erm", "logreg", "drop_m", "paper")
OURS = "white box of this run"
PLAIN_SERVER = "plaintext server: z of this model"
PLANTED = 0.3
"""How far from chance to certainty the attack on a planted column must get; at best .68 of the way for two groups."""
LEAKS, NOT_KEPT = "leaks by design", "not kept"
"""Promises for a view besides those of the registry: that it reveals the secret, or that it may: there is a verdict,
and either is what the mode declares."""
CONTROL, ROUGH = "positive control", "target, within error"
"""Other kinds of rows: a positive control, which must succeed; a rate that is aimed at and not precise enough to
decide, except where its interval lies above the limit."""
VERDICT = (NO_GAIN, LEAKS, NOT_KEPT)
"""The promises about gains over a control: their intervals hold together."""
RECEIVER = "receiver of predictions, logits alone"
LOGITS_LIMIT = 0.1
"""How far from chance to certainty logits may reveal s of test records: .55 for two groups."""
PRECISE = 0.0075
"""Standard error that decides about a target: 1 % of evaluations err if the true rate is .0175 off the limit."""
PLAIN_Z, PLAIN_GRADIENTS = 0.05, 0.5
"""How far from chance to certainty the two positive controls on a plaintext server must get, at their lower bounds:
s from the representation z, which reveals it as far as the columns do, and y from opened gradients."""
PROMISE: Mapping[Target, Mapping[str, str]] = {
    "y": {"hidden": NO_GAIN, "shown": LEAKS, "noisy": SHOWN},
    "s": {"hidden": NO_GAIN, "shown": NOT_KEPT},
}
"""By what the gradients of a mode reveal. `dp` gives noisy sums, whose privacy cost is in the ledger. Those of
`split` always reveal labels; they reveal s where counterfactuals move logits."""


@dataclass(frozen=True)
class Row:
    """One attack on one view at one strength."""

    attack: str
    view: str
    strength: float | None
    rate: float
    low: float
    high: float
    chance: float
    control: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    forced: float | None = None
    promise: str = SHOWN
    related: float | None = None
    leak: bool | None = None
    limit: float | None = None

    @classmethod
    def of(cls, attack: str, rate: Rate, view: str = "", **further: Any) -> Row:
        """A rate as a row, against chance unless a control is given."""
        row = cls(attack, view or rate.view, None, rate.rate, rate.low, rate.high, rate.chance, rate.chance)
        base = float(further.get("control", rate.chance))
        gains = {"gain": rate.rate - base, "gain_low": rate.low - base, "gain_high": rate.high - base}
        return replace(row, **{**gains, **further})

    @property
    def succeeds(self) -> bool:
        """Whether a positive control found what is there, up to its lower bound. `limit`: the part of the way."""
        return self.limit is not None and self.low - self.chance >= self.limit * (1 - self.chance)


def compared(
    attack: str, view: str, inference: Inference, control: Inference | None, promise: str, related: float | None
) -> list[Row]:
    """Rows of one view: the chosen attacker against its control, and every attacker for the curve."""
    chance = 1 / len(np.unique(inference.truth))
    base = inference.against(control)
    against = chance if base is None else float(balanced(base[None], inference.truth)[0])

    def row(strength: float | None, guess: np.ndarray) -> Row:
        rate = Rate.balanced(attack, view, guess, inference.truth)
        return Row(attack, view, strength, rate.rate, rate.low, rate.high, chance, against)

    gain, low, high = gain_interval(inference.chosen, base, inference.truth, LEVEL)
    forced = max(row(None, guess).rate for guess in inference.each.values())
    first = replace(row(None, inference.chosen), gain=gain, gain_low=low, gain_high=high, forced=forced)
    curve = [row(epochs, inference.each[f"mlp{epochs}"]) for epochs in EPOCHS]
    return [replace(first, promise=promise, related=related), *curve]


class ViewAttacks:
    """Inference of s and y from every view of a run; `decide` says what leaks, after all views were added."""

    def __init__(self, run: FinishedRun) -> None:
        self.run, self.seed = run, run.options.data.seed
        self.rows: list[Row] = []
        self._kept: dict[tuple[str, str], tuple[Inference, Inference | None]] = {}

    def add(
        self,
        attack: str,
        view: str,
        truth: np.ndarray,
        own_columns: np.ndarray | None,
        seen: np.ndarray,
        *,
        evidence: np.ndarray | None = None,
        signals: np.ndarray | None = None,
        promise: str = SHOWN,
        limit: float | None = None,
    ) -> None:
        """Attack one view. `evidence` follows from own columns and paid releases, so only the gain counts for it.

        signals: those of opened gradients, which the attacker may use all together.
        """
        control = None if own_columns is None else infer(own_columns, None, truth, self.seed)
        whole = seen if evidence is None else np.hstack([seen, evidence.astype(np.float32)])
        inference = infer(own_columns, whole, truth, self.seed, signals)
        tested = seen if signals is None else np.hstack([seen, signals.astype(np.float32)])
        related = dependence(tested, truth, self.seed) if promise in VERDICT else None
        first, *curve = compared(attack, view, inference, control, promise, related)
        self.rows += [replace(first, limit=limit), *curve]
        self._kept[attack, view] = inference, control

    def add_planted(self, attack: str, view: str, truth: np.ndarray, seen: np.ndarray) -> None:
        """Positive control: the same attackers on the same view, in which one column follows the truth."""
        rng = stream(self.seed, "planted", attack)
        informative = 2.0 * truth + rng.normal(size=len(truth))
        index = int(rng.integers(seen.shape[1])) if seen.shape[1] else 0
        planted = np.insert(np.array(seen, np.float64), index, informative, axis=1)
        title = f"positive control: a column that follows the truth, planted in the view of {view}"
        self.add(attack, title, truth, None, planted, promise=CONTROL, limit=PLANTED)

    def add_guesses(
        self, attack: str, view: str, guess: np.ndarray, control: np.ndarray, truth: np.ndarray, promise: str
    ) -> None:
        """One attack whose guesses were made elsewhere, with those of the same adversary without the view."""
        rate = Rate.balanced(attack, view, guess, truth)
        base = float(balanced(control[None], truth)[0])
        gain, low, high = gain_interval(guess, control, truth, LEVEL)
        row = Row.of(attack, rate, view, control=base, gain=gain, gain_low=low, gain_high=high, promise=promise)
        self.rows.append(row)
        self._kept[attack, view] = Inference(truth, guess, {}), Inference(truth, control, {})

    def every_view(self, progress: Progress = lambda view: None) -> None:
        run, mode = self.run, MODES.get(self.run.options.training.mode)
        reveals: Mapping[Target, str] = {"y": mode.labels, "s": mode.groups}
        others = {"dealer": run.seen_by_dealer(), "network": run.seen_by_network()}
        seen = {m: (run.seen(m), run.signals(m)) for m in {m for t in self.targets for m in run.coalitions(t)}}
        for target in self.targets:
            attack, truth = ATTACK[target], run.truth(target)
            for members in run.coalitions(target):
                name, (words, signals) = run.name(members), seen[members]
                progress(f"{attack}: {name}")
                promise, evidence = PROMISE[target][reveals[target]], run.evidence(members)
                own_columns = run.own_columns(members)
                self.add(attack, name, truth, own_columns, words, evidence=evidence, signals=signals, promise=promise)
            for view, words in others.items():
                progress(f"{attack}: {view}")
                self.add(attack, view, truth, None, words, promise=NO_GAIN)
            self.add_planted(attack, "the dealer", truth, others["dealer"])

    @property
    def targets(self) -> tuple[Target, ...]:
        return ("s",) if self.run.data.task == "regression" else ("s", "y")

    def join(self, other: ViewAttacks) -> None:
        self.rows += other.rows
        self._kept |= other._kept

    def decide(self, error: float = ERROR) -> None:
        """Set intervals, and whether a view leaks, over the family of all views with a promise."""
        family = [i for i, row in enumerate(self.rows) if row.promise in VERDICT]
        each = error / max(1, 2 * len(family))
        for i in family:
            row = self.rows[i]
            inference, control = self._kept[row.attack, row.view]
            base = inference.against(control)
            rate = Rate.balanced(row.attack, row.view, inference.chosen, inference.truth, float(norm.isf(each / 2)))
            _, low, high = gain_interval(inference.chosen, base, inference.truth, 1 - each)
            leak = low > 0 or (row.related is not None and row.related <= each)
            self.rows[i] = replace(row, low=rate.low, high=rate.high, gain_low=low, gain_high=high, leak=leak)


def predictions(attacks: ViewAttacks, logits: np.ndarray, rows: np.ndarray) -> None:
    """The receiver's view: logits of the test records alone, and together with its own columns of them."""
    run = attacks.run
    receiver = run.parties[run.holder("y")]
    truth = run.data.protected[0].codes[rows]
    promise = TARGET if models_needed(truth) == 1 else ROUGH
    attacks.add("aia", RECEIVER, truth, None, logits, promise=promise, limit=logits_limit(truth))
    attacks.add_planted("aia", RECEIVER, truth, logits)
    own_columns = receiver.inputs[rows]
    attacks.add("aia", f"receiver of predictions with columns of {receiver.name}", truth, own_columns, logits)


def logits_limit(truth: np.ndarray) -> float:
    chance = 1 / len(np.unique(truth))
    return chance + LOGITS_LIMIT * (1 - chance)


def models_needed(truth: np.ndarray) -> int:
    """How many models, each evaluated on as many records, give a mean rate with a standard error of `PRECISE`."""
    sizes = np.unique(truth, return_counts=True)[1]
    return math.ceil(float((0.25 / sizes).sum()) / len(sizes) ** 2 / PRECISE**2)


def further_models(attacks: ViewAttacks, progress: Progress = lambda view: None) -> None:
    """The same target for the method: the mean over models of the seeds that follow the run's, where one is too few.

    Each model has its own split, tables, roles and noise. The adversary knows s of its training records and has their
    logits too, so it is stronger than one that knows half of the test records. It guesses s of all test records. The
    interval is about splits and noise: all models share one pool of records.
    """
    run, codes = attacks.run, attacks.run.data.protected[0].codes
    count = models_needed(codes[run.split.test])
    if count == 1 or run.options.training.mode != "sealed":
        return
    rates = []
    for seed in range(run.options.data.seed + 1, run.options.data.seed + 1 + count):
        progress(f"aia: logits of a model with seed {seed}")
        rates.append(rate_of_logits(run.options.changed(seed=seed), run.data, run.parties, seed))
    mean, low, high = interval(np.array(rates), bounded=True)
    rate = Rate("aia", f"{RECEIVER}, mean over models of {count} further seeds", mean, low, high, 1 / len(set(codes)))
    attacks.rows.append(Row.of("aia", rate, promise=TARGET, limit=logits_limit(codes)))


def rate_of_logits(options: RunOptions, data: Dataset, parties: tuple[Party, ...], seed: int) -> float:
    """How often logits of a model with these options reveal s of its test records, to who knows s of the others."""
    split, config, codes = make_split(data, options.data.split, seed), options.train_config(), data.protected[0].codes
    budget = options.simulated_budget(len(parties))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, _ = train_plainly(data, split, parties, config, budget, seed, card=options.policy())
    rows = np.concatenate([config.training_rows(split), split.test])
    training = np.arange(len(rows)) < len(rows) - len(split.test)
    logits = model.logits([party.take(rows) for party in parties])
    inference = infer_half(Held(seen=logits), codes[rows], training, seed)
    return float(balanced(inference.chosen[None], inference.truth)[0])


def shares(attacks: ViewAttacks, folder: Path) -> None:
    """The share-distinguishing game: all parties except the owner, for each owner."""
    ranks = range(len(attacks.run.parties))
    for owner in ranks:
        parts = read_probe(folder, owner, [rank for rank in ranks if rank != owner])
        truth, seen = drawn(len(parts[0]["share"]), owner), columns(parts)
        view = f"all but {attacks.run.parties[owner].name}"
        attacks.add("shares", view, truth, None, seen, promise=NO_GAIN)
        if owner == 0:
            attacks.add_planted("shares", view, truth, seen)


def prepared(run: FinishedRun) -> Prepared:
    """What the baselines start from: the same split and roles, in plaintext."""
    first, budget = next(run.models()), run.options.simulated_budget(len(run.parties))
    roles, config = Roles(dict(first.roles), first.proxies), run.options.train_config()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = ready_with(run.data, run.split, roles, config, budget, run.options.data.seed)
    return replace(ready, budget=budget)


def attack_baselines(attacks: ViewAttacks, ready: Prepared, progress: Progress = lambda view: None) -> None:
    """What the paper's plaintext server holds of the training records, and the logits of the baselines."""
    run = attacks.run
    train_rows, test = run.trained[run.rows], run.split.test
    codes, z = run.data.protected[0].codes, run.encodings(train_rows)
    attacks.add("aia", PLAIN_SERVER, run.truth("s"), None, z, promise=CONTROL, limit=PLAIN_Z)
    for name in BASELINES:
        if name == "drop_m" and not ready.roles.named("M"):
            continue
        progress(f"baseline {name}")
        fitted = METHODS.get(name)(ready)
        attacks.add("aia", f"logits of {name}", codes[test], None, fitted.predict(ready.inputs[test]))
        attacks.rows += list(white_box_rows(f"white box of {name}", fitted.white_box, ready))
        if name == "paper":
            _paper(attacks, ready, fitted, train_rows)


def _paper(attacks: ViewAttacks, ready: Prepared, fitted: Fitted, rows: np.ndarray) -> None:
    if fitted.fused is not None:
        seen = fitted.fused(ready.inputs[rows])
        attacks.add("aia", "plaintext server: fused z of the paper", attacks.run.truth("s"), None, seen)
    if ready.data.task == "binary" and fitted.network is not None:
        label, party = ready.data.label.values[rows], int(np.argmax(ready.widths))
        gradients = fitted.network.example_gradients(ready.inputs[rows], label, party)
        rate = from_example_gradients(gradients, label)
        view = f"plaintext server's gradients at {ready.parties[party].name} (paper)"
        attacks.rows.append(Row.of("label", rate, view, promise=CONTROL, limit=PLAIN_GRADIENTS))


def white_box_rows(view: str, logits: Any, ready: Prepared) -> Iterator[Row]:
    """Attacks on a whole model, for each radius: they may move mediators of test records."""
    if ready.data.task == "regression":
        return
    target = white_box_view(view, logits, ready)
    for name, attack in ATTACKS.items():
        if attack.takes == "white box" and not attack.paper_only:
            for radius, rate in zip(target.radii, attack.run(target, ready.seed), strict=True):
                yield Row(name, view, radius, rate.rate, rate.low, rate.high, rate.chance)


Views = dict[str, Mapping[str, Any]]
"""What attacks take -> name of the view -> what the adversary holds."""


def linear_model(run: FinishedRun, ready: Prepared) -> LinearModel:
    parts, (weight, bias) = list(run.models()), run.head()
    config, noisy_tables = run.options.train_config(), parts[0].noisy_tables[0]
    multiplier = noise_multiplier_of(run.options, run.options.schema(len(run.parties)))
    counted = run.options.discovery.table_kind == "counts" and run.options.data.align == "exact"
    tables = {name: table for part in parts for name, table in part.noisy_tables[0].tables.items()}
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
        mu=float(np.sqrt(noisy_tables.releases) / multiplier) if counted else None,
    )


def views_of_run(run: FinishedRun, ready: Prepared, logits: np.ndarray) -> Views:
    """What adversaries hold of the run's model and its answers. logits: of the test records."""
    views: Views = dict(model_views(linear_model(run, ready)))
    views["opened gradients"] = opened_gradients(run)
    test, receiver = run.split.test, run.parties[run.holder("y")]
    codes = run.data.protected[0].codes[test]
    training = folds(codes, 2, run.options.data.seed) == 0
    views["view"] = {
        "scores": View("receiver", (logits[training], codes[training]), (logits[~training], codes[~training]))
    }
    targets = {name: (c[training], c[~training]) for name, c in _others_columns(run, receiver.rank, test).items()}
    if targets:
        own_columns, shown = ((part[training], part[~training]) for part in (receiver.inputs[test], logits))
        views["columns"] = {"scores": Columns("scores", own_columns, shown, targets)}
    if ready.data.task != "regression" and ready.roles.named("M"):
        views["white box"] = {OURS: white_box_view("mediators", run.white_box(), ready, brief=True)}
    return views


def attack_model(
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
