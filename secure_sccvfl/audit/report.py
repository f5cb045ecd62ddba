"""From rows to security.json, its table in Markdown, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from accounting.plain_text import markdown as marked
from accounting.plain_text import plain
from secure_sccvfl.audit.attacks.catalogue import ATTACKS, on_models_first
from secure_sccvfl.audit.bounds import Audit
from secure_sccvfl.audit.canaries import canaries_of, charged_kinds, without_canary
from secure_sccvfl.audit.evaluation import (
    BOUND,
    CONTROL,
    ERROR,
    LEAKS,
    NO_GAIN,
    NOT_KEPT,
    PRECISE,
    ROUGH,
    TARGET,
    VERDICT,
    Row,
)
from secure_sccvfl.audit.finished_run import FinishedRun
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.reports.attacks import NOT_AUDITED, audits_of
from secure_sccvfl.reports.tables import paper_figures

matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is not a formula
RADIUS = 0.2
"""Where the target of PGD is: no more flips than plain training. A model that uses mediators can be moved by them."""
OURS, PLAIN = "white box of this run", "white box of erm"
GUESSED = {name: attack.guessed for name, attack in ATTACKS.items() if attack.guessed}
Data = Mapping[str, Any]


def checks(rows: Sequence[Row], audits: Mapping[str, Audit], missing: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What must hold: promises, targets, and that attackers find what is there (controls). One missed: not ok.

    missing: charged releases without an audit.
    """
    found = []
    plain = next((row.rate for row in rows if row.view == PLAIN and row.strength == RADIUS), None)
    for row in rows:
        name = f"{row.attack}: {row.view}"
        if row.promise == CONTROL:
            least = row.chance + (row.limit or 0.0) * (1 - row.chance)
            found.append(_check(name, "control", row.low, least, row.succeeds))
        elif row.promise == BOUND:
            found.append(
                _check(name + " tells no more than is accounted", "promise", row.low, row.limit, not row.leak)
            )
        elif row.promise == TARGET:
            found.append(_check(name, "target", row.rate, row.limit, row.rate <= (row.limit or 0.0)))
        elif row.promise == ROUGH:
            title = f"{name}, lower end of its interval"
            found.append(_check(title, "target", row.low, row.limit, row.low <= (row.limit or 0.0)))
        elif row.promise == NO_GAIN:
            found.append(_check(name + " tells nothing", "promise", row.gain_low, 0.0, not row.leak))
        elif row.promise == LEAKS:
            found.append(_check(name + " leaks, as this mode declares", "promise", row.gain_low, 0.0, bool(row.leak)))
        elif row.view == OURS and row.strength == RADIUS and plain is not None:
            title = f"{name} at .20, against plain training"
            found.append(_check(title, "target", row.rate, plain, row.rate <= plain))
    for name, audit in audits.items():
        low = max(audit.epsilon_low, audit.epsilon_low_any)
        title = f"epsilon of one release ({name}), lower bound"
        found.append(_check(title, "promise", low, audit.epsilon_high, audit.holds))
        title = f"noise of one release ({name}), how far its deviation is from the charged one"
        found.append(_check(title, "promise", abs(audit.noise_ratio - 1), audit.noise_limit, audit.noise_holds))
    found += [_check(f"{name}: charged releases without an audit", "promise", 1.0, 0.0, False) for name in missing]
    return found


def not_audited(run: FinishedRun, audits: Mapping[str, Audit]) -> list[str]:
    """Kinds that the run was charged for and that were not audited, where audits are made at all."""
    if not is_benchmark(run.options.data.dataset):
        return []
    schema = run.options.schema(len(run.parties))
    kinds = charged_kinds(run.options, schema)
    known = [canary.name for canary in canaries_of(kinds, run.options, schema)]
    return [*without_canary(kinds), *(name for name in known if name not in audits)]


def _check(name: str, kind: str, value: float | None, limit: float | None, holds: bool) -> dict[str, Any]:
    return {"check": name, "kind": kind, "value": value, "limit": limit, "holds": holds}


def assemble(
    run: FinishedRun,
    rows: Sequence[Row],
    audits: Mapping[str, Audit],
    seconds: float,
    skipped: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything as data. skipped: attacks that do not apply to the run, with the reason of each."""
    found = checks(rows, audits, not_audited(run, audits))
    family = sum(row.promise in VERDICT for row in rows)
    paper = [f for f in paper_figures() if f["experiment"] == "attacks" and f["dataset"] == run.data.name]
    return {
        "version": 2,
        "dataset": run.data.name,
        "mode": run.options.training.mode,
        "parties": len(run.parties),
        "seed": run.options.data.seed,
        "records": {"train": run.records, "attacked": len(run.rows), "guessed": len(run.rows)},
        "family": {"comparisons": family, "error": ERROR, "correction": "Bonferroni"},
        "rows": [row.as_dict() for row in rows],
        "dp_audits": {name: audit.as_dict() for name, audit in audits.items()},
        "checks": found,
        "skipped": dict(skipped or {}),
        "ok": all(check["holds"] for check in found),
        "paper": paper,
        "seconds": round(seconds, 1),
    }


def markdown(report: Data) -> str:
    """The table that a person reads."""
    name = f"{marked(report['dataset'])}, {report['parties']} parties, mode {report['mode']}, seed {report['seed']}"
    lines = [f"# Security evaluation: {name}", ""]
    bad = [c for c in report["checks"] if not c["holds"]]
    lines += [f"- {_missed(c)}" for c in bad]
    lines += _declared(report["rows"])
    lines += ["" if bad else "All promises and targets are met, and all positive controls succeed.", ""]
    lines += [
        f"Attackers know the truth of half of {report['records']['attacked']} training records (shares: repetitions; "
        "predictions: test records) and guess the other half, then the other way round. Gain: rate minus that of the "
        "control, an attacker without the view (or chance); 0 to 0 means that by its own cross-validation it did "
        "best without the view. Where gradients were opened, it may use those of all steps together. "
        "`Made to use it`: the best of six attackers that had to use it, picked on the guessed records, so a bit too "
        f"high. Intervals: 95 %; those of the F = {report['family']['comparisons']} views with a verdict are "
        f"{_percent(1 - report['family']['error'])} together ({report['family']['correction']}). A leak is called "
        "where such an interval of the gain lies above 0, or some column is related to the truth "
        f"(p below {report['family']['error']:g} / 2F). A positive control is the same attack where the secret is "
        "there to be found: it must succeed. A rate above its target makes the result not ok; where the standard "
        f"error of the run's own rate is above {100 * PRECISE:g} points, the mean over models of further seeds "
        "decides, and the run's own rate misses if its interval lies above the target.",
    ]
    for attack, meaning in GUESSED.items():
        rows = [r for r in report["rows"] if r["attack"] == attack and r["strength"] is None]
        if rows:
            lines += ["", f"## {meaning}", ""]
            lines += ["| view | rate | made to use it | chance | control | gain | p of columns | |", "|---" * 8 + "|"]
            lines += [_line(row) for row in rows]
    lines += ["", "## Decisions flipped by moving mediators of test records (subspace-PGD)", ""]
    lines += [
        "The white box of this run was put together from the shares of all parties, by the harness. Numbers move by "
        "at most the radius, inside their public range; one category may change to another; several restarts. "
        "Without a perturbation no decision changes: chance is 0.",
        "",
    ]
    lines += _pgd_table(report["rows"])
    if report.get("skipped"):
        lines += ["", "## Attacks that do not apply to this run", ""]
        lines += [f"- {ATTACKS.get(name).title}: {why}" for name, why in report["skipped"].items()]
    lines += ["", "## Differential privacy of one release, audited", ""]
    for name, audit in audits_of(report).items():
        lines += [
            f"- {marked(name)}: {audit['samples']} samples through the real protocol, delta {audit['delta']:g}: "
            f"epsilon is at least {audit['epsilon_low']:.2f} (Gaussian noise assumed; "
            f"{audit['epsilon_low_any']:.2f} without) by the samples, and at most {audit['epsilon_high']:.2f} by the "
            f"accountant (tight: {audit['epsilon_high_tight']:.2f}). The canary moved "
            f"{_percent(audit.get('reach', 1.0))} of what is charged. The noise that was drawn has "
            f"{audit.get('noise_ratio', 1.0):.3f} of the charged deviation (p = {audit.get('noise_p', 1.0):.2g})."
        ]
    if not audits_of(report):
        lines += [NOT_AUDITED]
    lines += ["", f"Took {report['seconds']:.0f} s.", ""]
    return "\n".join(lines)


def _missed(check: Data) -> str:
    """A check that does not hold, as a sentence."""
    name, value, limit = marked(check["check"]), _text(check["value"]), check["limit"]
    if check["kind"] == "control":
        return (
            f"**the attacker is broken**: {name}: the lower bound of its rate is {value} and must be at least "
            f"{limit:.3f}. What this attack does not find means nothing"
        )
    return f"**{check['kind']} not met**: {name}: {value}, limit {limit:.3f}"


def _declared(rows: Sequence[Data]) -> list[str]:
    """What leaks as the mode declares, at its strongest: no broken promise, but the first thing to know."""
    lines = []
    for attack, meaning in GUESSED.items():
        found = [r for r in rows if r["attack"] == attack and r["promise"] in (LEAKS, NOT_KEPT) and r["leak"]]
        if found:
            most = max(found, key=lambda r: r["rate"])
            lines.append(
                f"- **leaks, as this mode declares**: {meaning}: {marked(most['view'])} guesses "
                f"{_percent(most['rate'])} right, {_percent(most['control'])} without the view"
            )
    return [*lines, ""] if lines else []


def _line(row: Data) -> str:
    forced = "" if row["forced"] is None else _percent(row["forced"])
    verdict = {None: "", True: "**leak**", False: "no leak"}[row["leak"]]
    if row["promise"] == BOUND:
        verdict = "**above its bound**" if row["leak"] else "within its bound"
    if row["promise"] == CONTROL:
        found = row["low"] - row["chance"] >= row["limit"] * (1 - row["chance"])
        verdict = "found, as it must be" if found else "**the attacker is broken**"
    if row["promise"] in (TARGET, ROUGH):
        met = row["rate" if row["promise"] == TARGET else "low"] <= row["limit"]
        verdict = f"{'within' if met else '**above**'} its target of {_percent(row['limit'])}"
    if row["promise"] in (LEAKS, NOT_KEPT) and row["leak"]:
        verdict = "leaks, as declared"
    related = "" if row["related"] is None else f"{row['related']:.3f}"
    gain = _interval(row, "gain", "gain_low", "gain_high")
    parts = (marked(row["view"]), _interval(row), forced, _percent(row["chance"]), _percent(row["control"]), gain)
    return "| " + " | ".join((*parts, related, verdict)) + " |"


def _pgd_table(rows: Sequence[Data]) -> list[str]:
    models: dict[str, dict[float, Data]] = {}
    for row in rows:
        if row["attack"] == "pgd" and row["strength"] is not None:
            models.setdefault(row["view"], {})[row["strength"]] = row
    radii = sorted({radius for found in models.values() for radius in found})
    if not radii:
        return ["No model was attacked in this way."]
    lines = ["| model | " + " | ".join(f"radius {r:g}" for r in radii) + " |", "|---" * (len(radii) + 1) + "|"]
    for name, found in models.items():
        cells = [_interval(found[radius]) for radius in radii]
        lines.append(f"| {marked(name.removeprefix('white box of '))} | " + " | ".join(cells) + " |")
    return lines


def _interval(row: Data, name: str = "rate", low: str = "low", high: str = "high") -> str:
    return f"{_percent(row[name])} ({_percent(row[low])} to {_percent(row[high])})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def draw_views(rows: Sequence[Data], path: Path) -> None:
    """One line per view: the attack's rate with its interval, its control, and chance. SVG or PNG by the name."""
    kinds = [k for k in GUESSED if any(r["attack"] == k for r in rows)]
    chosen = {k: [r for r in rows if r["attack"] == k and r["strength"] is None] for k in kinds}
    heights = [len(chosen[k]) + 1 for k in kinds]
    figure, axes = plt.subplots(
        len(kinds), 1, figsize=(8.5, 0.34 * sum(heights) + 1), squeeze=False, height_ratios=heights, sharex=True
    )
    for axis, kind in zip(axes[:, 0], kinds, strict=True):
        for at, row in enumerate(reversed(chosen[kind])):
            colour = "C3" if row["leak"] or (row["leak"] is None and row["gain_low"] > 0) else "C0"
            axis.plot([100 * row["low"], 100 * row["high"]], [at, at], color=colour)
            axis.plot(100 * row["rate"], at, "o", color=colour)
            axis.plot(100 * row["control"], at, "|", color="black", markersize=12)
        axis.set_yticks(range(len(chosen[kind])), [plain(r["view"]) for r in reversed(chosen[kind])], fontsize=8)
        axis.axvline(100 * chosen[kind][0]["chance"], color="grey", linestyle=":")
        axis.set_title(GUESSED[kind], fontsize=9, loc="left")
        axis.set_ylim(-0.7, len(chosen[kind]) - 0.3)
    axes[-1, 0].set_xlabel("right guesses, %; bar: control (the same attacker without the view)")
    _save(figure, path)


def draw_curves(rows: Sequence[Data], path: Path) -> None:
    """Flipped decisions against the radius, and guesses against the attacker's epochs, with intervals."""
    panels = [(name, attack) for name, attack in on_models_first() if attack.curve]
    figure, axes = plt.subplots(1, len(panels), figsize=(14, 4.2))
    for (attack, known), axis in zip(panels, axes, strict=True):
        curves: dict[str, list[tuple[float, float, float, float]]] = {}
        for row in rows:
            if row["attack"] == attack and row["strength"] is not None:
                point = (row["strength"], 100 * row["rate"], 100 * row["low"], 100 * row["high"])
                curves.setdefault(row["view"], []).append(point)
        for view, points in curves.items():
            x, rate, low, high = zip(*sorted(points), strict=True)
            (line,) = axis.plot(x, rate, marker="o", markersize=3, label=plain(view))
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.08)
        if known.takes != "white box" and curves:
            axis.axhline(100 * next(r["chance"] for r in rows if r["attack"] == attack), color="grey", linestyle=":")
        axis.set(xlabel=known.curve, ylabel="success, %")
        if curves:
            axis.legend(fontsize=5)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
