"""From rows to security.json and security.md. The page of the run draws the pictures (`reports/sections.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from secure_sccvfl.accounting.plain_text import markdown as marked
from secure_sccvfl.accounting.tables import MarkdownText, Table, page
from secure_sccvfl.audit.attacks.catalogue import ATTACKS, BOUND, NO_GAIN, TARGET
from secure_sccvfl.audit.bounds import Audit
from secure_sccvfl.audit.canaries import canaries_of, charged_kinds
from secure_sccvfl.audit.evaluation import CONTROL, ERROR, LEAKS, NOT_KEPT, OURS, PRECISE, ROUGH, VERDICT, Row
from secure_sccvfl.audit.finished_run import FinishedRun
from secure_sccvfl.reports.sections import NOT_AUDITED, audits_of
from secure_sccvfl.reports.tables import paper_figures

RADIUS = 0.2
"""Where the target of PGD is: no more flips than plain training. A model that uses mediators can be moved by them."""
PLAIN = "white box of erm"
GUESSED = {name: attack.guessed for name, attack in ATTACKS.items() if attack.guessed}
Data = Mapping[str, Any]


def checks(rows: Sequence[Row], audits: Mapping[str, Audit], missing: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What must hold: promises, targets, and that attackers find what is there (controls). One missed: not ok.

    missing: charged releases without an audit.
    """
    results = [*_row_checks(rows), *_audit_checks(audits)]
    results += [(f"{name}: charged releases without an audit", "promise", 1.0, 0.0, False) for name in missing]
    return [dict(zip(("check", "kind", "value", "limit", "holds"), check, strict=True)) for check in results]


def _row_checks(rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    plain = next((row.rate for row in rows if row.view == PLAIN and row.strength == RADIUS), None)
    for row in rows:
        name, limit = f"{row.attack}: {row.view}", row.limit or 0.0
        if row.promise == CONTROL:
            yield name, "control", row.low, row.chance + limit * (1 - row.chance), row.succeeds
        elif row.promise == BOUND:
            yield f"{name} tells no more than is accounted", "promise", row.low, row.limit, not row.leak
        elif row.promise == TARGET:
            yield name, "target", row.rate, row.limit, row.rate <= limit
        elif row.promise == ROUGH:
            yield f"{name}, lower end of its interval", "target", row.low, row.limit, row.low <= limit
        elif row.promise == NO_GAIN:
            yield f"{name} tells nothing", "promise", row.gain_low, 0.0, not row.leak
        elif row.promise == LEAKS:
            yield f"{name} leaks, as this mode declares", "promise", row.gain_low, 0.0, bool(row.leak)
        elif row.view == OURS and row.strength == RADIUS and plain is not None:
            yield f"{name} at .20, against plain training", "target", row.rate, plain, row.rate <= plain


def _audit_checks(audits: Mapping[str, Audit]) -> Iterator[tuple[Any, ...]]:
    for name, audit in audits.items():
        low, off = max(audit.epsilon_low, audit.epsilon_low_any), abs(audit.noise_ratio - 1)
        yield f"epsilon of one release ({name}), lower bound", "promise", low, audit.epsilon_high, audit.holds
        title = f"noise of one release ({name}), how far its deviation is from the charged one"
        yield title, "promise", off, audit.noise_limit, audit.noise_holds


def not_audited(run: FinishedRun, audits: Mapping[str, Audit]) -> list[str]:
    """Kinds that the run was charged for and that were not audited."""
    schema = run.options.schema(len(run.parties))
    canaries = canaries_of(charged_kinds(run.options, schema), run.options, schema)
    return [canary.name for canary in canaries if canary.name not in audits]


def assemble(
    run: FinishedRun,
    rows: Sequence[Row],
    audits: Mapping[str, Audit],
    seconds: float,
    skipped: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything as data. skipped: attacks that do not apply to the run, with the reason of each."""
    results = checks(rows, audits, not_audited(run, audits))
    family = sum(row.promise in VERDICT for row in rows)
    return {
        "version": 2,
        "dataset": run.data.name,
        "mode": run.options.training.mode,
        "parties": len(run.parties),
        "seed": run.options.data.seed,
        "records": {"train": run.records, "attacked": len(run.rows), "guessed": len(run.rows)},
        "family": {"comparisons": family, "error": ERROR, "correction": "Bonferroni"},
        "rows": [asdict(row) for row in rows],
        "dp_audits": {name: audit.as_dict() for name, audit in audits.items()},
        "checks": results,
        "skipped": dict(skipped or {}),
        "ok": all(check["holds"] for check in results),
        "paper": [f for f in paper_figures() if f["experiment"] == "attacks" and f["dataset"] == run.data.name],
        "seconds": round(seconds, 1),
    }


def markdown(report: Data) -> str:
    """The report that a person reads."""
    name = f"{marked(report['dataset'])}, {report['parties']} parties, mode {report['mode']}, seed {report['seed']}"
    failed = [f"- {_missed(check)}" for check in report["checks"] if not check["holds"]]
    met = "All promises and targets are met, and all positive controls succeed."
    family = report["family"]
    sections: list[object] = []
    for attack, meaning in GUESSED.items():
        rows = [r for r in report["rows"] if r["attack"] == attack and r["strength"] is None]
        sections += [f"## {meaning}", Table(TITLES, [_cells(row) for row in rows])] if rows else []
    skipped = [f"- {ATTACKS.get(name).title}: {why}" for name, why in report.get("skipped", {}).items()]
    if skipped:
        skipped = ["## Attacks that do not apply to this run", "\n".join(skipped)]
    return page(
        f"# Security evaluation: {name}",
        "\n".join([*failed, *_declared(report["rows"])]) or None,
        None if failed else met,
        f"Attackers know the truth of half of {report['records']['attacked']} training records (shares: repetitions; "
        "predictions: test records) and guess the other half, then the other way round. Gain: rate minus that of the "
        "control, an attacker without the view (or chance); 0 to 0 means that by its own cross-validation it did "
        "best without the view. Where gradients were opened, it may use those of all steps together. "
        "`Made to use it`: the best of six attackers that had to use it, picked on the guessed records, so a bit too "
        f"high. Intervals: 95 %; those of the F = {family['comparisons']} views with a verdict are "
        f"{_percent(1 - family['error'])} together ({family['correction']}). A leak is called where such an interval "
        "of the gain lies above 0, or some column is related to the truth "
        f"(p below {family['error']:g} / 2F). A positive control is the same attack where the secret is there to be "
        "found: it must succeed. A rate above its target makes the result not ok; where the standard error of the "
        f"run's own rate is above {100 * PRECISE:g} points, the mean over models of further seeds decides, and the "
        "run's own rate misses if its interval lies above the target.",
        *sections,
        "## Decisions flipped by moving mediators of test records (subspace-PGD)",
        "The white box of this run was put together from the shares of all parties. Numbers move by at most the "
        "radius, inside their public range; one category may change to another; several restarts. Without a "
        "perturbation no decision changes: chance is 0.",
        _pgd_table(report["rows"]) or "No model was attacked in this way.",
        *skipped,
        "## Differential privacy of one release, audited",
        "\n".join(_audited(name, audit) for name, audit in audits_of(report).items()) or NOT_AUDITED,
        f"Took {report['seconds']:.0f} s.",
    )


def _audited(name: str, audit: Data) -> str:
    return (
        f"- {marked(name)}: {audit['samples']} samples through the real protocol, delta {audit['delta']:g}: "
        f"epsilon is at least {audit['epsilon_low']:.2f} (Gaussian noise assumed; {audit['epsilon_low_any']:.2f} "
        f"without) by the samples, and at most {audit['epsilon_high']:.2f} by the accountant (tight: "
        f"{audit['epsilon_high_tight']:.2f}). The canary moved {_percent(audit.get('reach', 1.0))} of what is "
        f"charged. The noise that was drawn has {audit.get('noise_ratio', 1.0):.3f} of the charged deviation "
        f"(p = {audit.get('noise_p', 1.0):.2g})."
    )


def _missed(check: Data) -> str:
    """A check that does not hold, as a sentence."""
    value = "" if check["value"] is None else f"{check['value']:.3f}"
    name, limit = marked(check["check"]), check["limit"]
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
        leaks = [r for r in rows if r["attack"] == attack and r["promise"] in (LEAKS, NOT_KEPT) and r["leak"]]
        if leaks:
            most = max(leaks, key=lambda r: r["rate"])
            lines.append(
                f"- **leaks, as this mode declares**: {meaning}: {marked(most['view'])} guesses "
                f"{_percent(most['rate'])} right, {_percent(most['control'])} without the view"
            )
    return lines


TITLES = ("view", "rate", "made to use it", "chance", "control", "gain", "p of columns", "")


def _cells(row: Data) -> list[str]:
    forced = "" if row["forced"] is None else _percent(row["forced"])
    related = "" if row["related"] is None else f"{row['related']:.3f}"
    gain = _interval(row, "gain", "gain_low", "gain_high")
    given = (row["view"], _interval(row), forced, _percent(row["chance"]), _percent(row["control"]), gain, related)
    return [*given, MarkdownText(_verdict(row))]


def _verdict(row: Data) -> str:
    if row["promise"] == BOUND:
        return "**above its bound**" if row["leak"] else "within its bound"
    if row["promise"] == CONTROL:
        return "found, as it must be" if Row(**row).succeeds else "**the attacker is broken**"
    if row["promise"] in (TARGET, ROUGH):
        met = row["rate" if row["promise"] == TARGET else "low"] <= row["limit"]
        return f"{'within' if met else '**above**'} its target of {_percent(row['limit'])}"
    if row["promise"] in (LEAKS, NOT_KEPT) and row["leak"]:
        return "leaks, as declared"
    return {None: "", True: "**leak**", False: "no leak"}[row["leak"]]


def _pgd_table(rows: Sequence[Data]) -> Table | None:
    models: dict[str, dict[float, Data]] = {}
    for row in rows:
        if row["attack"] == "pgd" and row["strength"] is not None:
            models.setdefault(row["view"], {})[row["strength"]] = row
    radii = sorted({radius for curve in models.values() for radius in curve})
    cells = [
        (name.removeprefix("white box of "), *(_interval(curve[radius]) for radius in radii))
        for name, curve in models.items()
    ]
    return Table(("model", *(f"radius {r:g}" for r in radii)), cells) if radii else None


def _interval(row: Data, name: str = "rate", low: str = "low", high: str = "high") -> str:
    return f"{_percent(row[name])} ({_percent(row[low])} to {_percent(row[high])})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
