"""What a run's page says, in plain words and numbers, from its report and its logs alone.

What the attacks on a run found, in words and charts, from security.json.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secure_sccvfl.accounting.charts import Dot, Line, curves, forest, percent, scores_before_after, sparkline
from secure_sccvfl.accounting.tables import Table
from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS
from secure_sccvfl.policy.card import Evidence
from secure_sccvfl.protocols.config import receiver_name
from secure_sccvfl.releases.catalogue import kind_of
from secure_sccvfl.reports.figures import failed_checks, listed, size
from secure_sccvfl.reports.policy_card import PROXIES
from secure_sccvfl.reports.results import Example, Report
from secure_sccvfl.training.modes import MODES

ROLES = {
    "P": ("proxy", "stands for s"),
    "M": ("mediator", "may follow from s; changes with it in counterfactuals, where decisions must stay"),
    "N": ("fixed", "stays as it is in counterfactuals"),
}
NOISE = {"charged": "yes", "follows": "from noisy"}
"""Whether noise protects a release, by the reason why it may leave."""
PHASES = {
    "alignment": "checking that records match",
    "inputs": "sharing the inputs",
    "discovery and warm-up": "assigning roles, first training",
    "late refreshes": "repeated release of the tables, new roles",
    "counterfactuals": "counterfactuals",
    "training": "training with consistency",
    "evaluation": "testing",
}


def headline(report: Report) -> dict[str, Any]:
    """Title, and who did what for which aim; s is introduced here."""
    data, rows, names = report.data, report.rows, report.party_names
    near = "about " if report.align == "hidden" else ""  # which records all parties hold is secret
    quoted = [f"“{word}”" for word in data.label.labels]
    title = f"Deciding {' or '.join(quoted)}" if quoted else f"Predicting {data.label.meaning or report.dataset}"
    secrecy = "none saw another's data, since what joins their columns was computed on secret shares"
    if MODES.get(report.mode).labels == "shown":
        secrecy = "none saw another's columns, but each was sent gradients, which reveal the labels and s"
    validation = f"{near.capitalize()}{rows['validation']} more records served to choose settings. "
    groups = listed([f"{a.words} (“{'” / “'.join(a.labels)}”)" for a in data.protected])
    story = [
        f"{listed(names).capitalize()} hold different columns about the same people. They trained one model together "
        f"on {near}{rows['train']} records; {secrecy}. {data.about}".strip(),
        f"The protected attribute, s, is {groups}. The aim: a decision should not change because somebody belongs to "
        f"{other_group(report)}, nor through columns that follow from s, the mediators. "
        f"{validation * bool(rows['validation'])}Figures are for {near}{rows['test']} test records that were used "
        "for nothing else.",
    ]
    return {"title": title, "story": story, "mode": MODES.get(report.mode).words}


def other_group(report: Report) -> str:
    """The group of a counterfactual, in words: there is more than one other group if an attribute has three."""
    return "the other group" if all(len(a.labels) == 2 for a in report.data.protected) else "another group"


def role_words(proxies: str) -> dict[str, tuple[str, str]]:
    """Each role with its name and meaning; a card says how proxies are handled."""
    word, meaning = ROLES["P"]
    return {**ROLES, "P": (word, f"{meaning}; {PROXIES[proxies]}")}


def holdings(report: Report) -> dict[str, list[str]]:
    """By party the label and the protected attributes that it holds, in words."""
    data = report.data
    return {
        party: ["the label"] * (data.label.holder == party)
        + ["the protected attribute" for a in data.protected if a.holder == party]
        for party in report.party_names
    }


def role_chart(report: Report, audit: Sequence[Mapping[str, Any]], card: Mapping[str, Any] | None) -> list[Any]:
    """Columns by party: score, role, who decided it, how sure discovery is, how the score moved, and the reason.

    A column without a table (`TrainConfig.tabled`) has no score and no proposal.
    """
    scores = report.scores
    history = [entry["scores"] for entry in audit if entry["event"] == "roles"]
    top = max([*scores.values(), 1e-9])
    highest = max([top, *(v for old in history for v in old.values())])
    decisions = card["decisions"] if card is not None else {}

    def feature(name: str) -> dict[str, Any]:
        decision = decisions.get(name, {})
        return {
            "name": name.replace("_", " "),
            "meaning": report.data.features[name].meaning if name in report.data.features else "",
            "role": report.roles[name],
            "word": ROLES[report.roles[name]][0],
            "by_card": name in report.by_card,
            "proposed": report.proposed.get(name, ""),
            "missing": name in report.missing_depends,
            "confidence": percent(report.confidence.get(name, 0.0)),
            "score": scores.get(name),
            "width": 100 * max(scores.get(name, 0.0), 0.0) / top,
            "spark": sparkline([old[name] for old in history if name in old], highest),
            "reason": decision.get("reason", ""),
            "evidence": "; ".join(e.words for e in Evidence.all_of(decision.get("evidence", ""))),
        }

    parties = []
    for party, holds in holdings(report).items():
        names = [name for name, owner in report.owners.items() if owner == party]
        names.sort(key=lambda name: -scores.get(name, 0.0))
        parties.append({"name": party, "holds": holds, "features": [feature(name) for name in names]})
    return parties


def examples(report: Report) -> dict[str, Any] | None:
    """Records before and after a counterfactual, in the words of the public description.

    None if the model that made them fails its checks, as it may in reports of older versions.
    """
    tree, data = report.examples, report.data
    if tree is None or failed_checks(report, tree.model):
        return None

    def card(example: Example) -> dict[str, Any]:
        return {
            "id": example.id,
            "why": example.why,
            "flipped": example.flipped,
            "groups": [data.groups[group] for group in example.groups],
            "sides": [(data.decision(side), side.score) for side in (example.before, example.after)],
            "moved": [data.change(change) for change in example.moved],
        }

    picture = scores_before_after("Before and after", tree.scores, data.score) if data.task == "binary" else ""
    shown = [card(example) for example in tree.shown]
    facts = {"drawn": tree.drawn, "flipped": tree.flipped, "origin": COUNTERFACTUAL_MODELS.get(tree.model).about}
    return {"shown": shown, "about": data.score, "picture": picture, **facts}


def learned(report: Report) -> list[dict[str, Any]]:
    """What was opened to whom. Numbered releases of a kind, and all owners' parts of it, are taken together."""
    merged: dict[str, dict[str, Any]] = {}
    for release in report.releases:
        kind = kind_of(release.name, charged=release.event is not None)
        name = release.name if kind is None else kind.name
        entry = merged.setdefault(
            name,
            {
                "name": name if kind is None else kind.what,
                "receivers": [],
                "values": 0,
                "own": kind is not None and kind.to == "owner",
                "noise": "no" if kind is None else NOISE.get(kind.basis, "no"),
            },
        )
        entry["receivers"] = sorted({*entry["receivers"], *release.receivers})
        entry["to"] = [receiver_name(node, report.party_names) for node in entry["receivers"]]
        entry["values"] += math.prod(release.shape) * release.times
    return list(merged.values())


def release_table(report: Report) -> Table:
    """Every value that was opened or released, and to whom."""

    def receivers(entry: Mapping[str, Any]) -> str:
        if entry["own"]:
            return "own part"
        return "all parties" if len(entry["receivers"]) == len(report.party_names) else listed(entry["to"])

    rows = [(e["name"], receivers(e), str(e["values"]), e["noise"]) for e in learned(report)]
    return Table(("what", "received by", "values", "noise"), rows)


def learned_by(report: Report) -> list[tuple[str, list[str], list[str]]]:
    """By party what it knew before, and what was opened to it alone."""
    entries = learned(report)
    common = [e for e in entries if len(e["receivers"]) == len(report.party_names) and not e["own"]]
    columns = Counter(report.owners.values())
    return [
        (
            name,
            [f"its {columns[name]} columns", *holds],
            [e["name"] for e in entries if rank in e["receivers"] and e not in common],
        )
        for rank, (name, holds) in enumerate(holdings(report).items())
    ]


def training_panels(report: Report) -> list[dict[str, str]]:
    """The result of each weight of the consistency loss on the validation records, if that was released."""
    trials = [(t.lam, t.validation) for t in report.trials if t.validation is not None]
    wanted = (
        ("loss", "Loss", "how well decisions fit; lower is better"),
        ("gap_rms", "Gap", "between the scores of a record and its counterfactual; lower is better"),
        ("spread", "Spread", "of the scores; near 0 would mean that all get the same answer"),
    )
    charts = []
    for key, title, hint in wanted if trials else ():
        line = Line(title, [(lam, getattr(validation, key)) for lam, validation in trials])
        svg = curves(title, [line], "weight of consistency (λ)", report.lam)
        charts.append({"title": title, "hint": hint, "svg": svg})
    return charts


COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("time", "{:.2f} s".format),
    "bytes": ("sent", size),
    "dealer_bytes": ("from the dealer", size),
    "rounds": ("rounds", "{:.0f}".format),
}


def cost_rows(report: Report) -> list[tuple[str, list[tuple[str, str, float]]]]:
    """By phase each cost: its name, its value in words, and its share of the largest phase in percent."""
    phases = {name: cost for name, cost in report.cost.items() if name != "total"}
    most = {key: max(getattr(cost, key) for cost in phases.values()) or 1 for key in COSTS}

    def cells(cost: Any) -> list[tuple[str, str, float]]:
        values = [(key, word, show, getattr(cost, key)) for key, (word, show) in COSTS.items()]
        return [(word, show(value), round(100 * value / most[key], 1)) for key, word, show, value in values]

    return [(PHASES.get(name, name), cells(cost)) for name, cost in phases.items()]


Row = Mapping[str, Any]
CONTROL = "positive control"
"""The promise of rows in which the attacker must succeed (`audit.evaluation`)."""


def is_ours(row: Row) -> bool:
    """Whether this run gave the view to somebody; other views belong to another model or a plaintext server."""
    promise = row.get("promise", "shown")
    if promise == "shown":
        others = ("logits of", "white box of", "plaintext server")
        return not row["view"].startswith(others) or row["view"] == "white box of this run"
    return bool(promise != CONTROL)


def attack_panels(security: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """For each attack: every view at its strongest, and curves over strength for the views of this run."""
    rows = security["rows"] if security is not None else []
    panels = []
    for attack in sorted({row["attack"] for row in rows}, key=ATTACKS.names.index):
        title, below = ATTACKS.get(attack).title, ATTACKS.get(attack).strength
        series: dict[str, list[Row]] = {}
        for row in sorted((r for r in rows if r["attack"] == attack), key=_strength):
            series.setdefault(row["view"], []).append(row)
        final = sorted((s[-1] for s in series.values()), key=lambda r: not is_ours(r))
        chance = final[0]["chance"] or None
        dots = [Dot(r["view"], r["rate"], r["low"], r["high"], is_ours(r), r["control"]) for r in final]
        name, hint = (
            "How often it succeeds, by model",
            "the attacker has the whole model, which nobody in this run has",
        )
        if chance is not None:
            name = "How often it succeeds, by what the attacker sees"
            hint = "blue: seen in this run; grey: for comparison; dashed: chance; short bar: the same without the run"
        charts = [(name, hint, forest(title, dots, chance=chance))]
        lines = [
            Line(row["view"], [(r["strength"], r["rate"]) for r in s], [(r["low"], r["high"]) for r in s])
            for row in _curved(final, attack)
            if len(s := [r for r in series[row["view"]] if r["strength"] is not None]) > 1
        ]
        if lines:
            hint, level = "bars: 95 % intervals", (chance, "chance") if chance else None
            if level:
                hint = f"made to use what the run sent, whether that helps or not; {hint}; dashed: chance"
            svg = curves(title, lines, below, share=True, level=level, near=bool(level))
            charts.append(("As the attack gets stronger", hint, svg))
        panels.append({"title": title, "charts": charts})
    return panels


def attack_story(security: Mapping[str, Any] | None) -> list[str]:
    """The outcome in a few sentences: does anybody gain, what would happen without secrecy, does the noise hold."""
    if security is None:
        return []
    final = [r for r in security["rows"] if r["strength"] is None]
    promised = [r for r in final if r.get("promise") == "no gain"]
    leaks = [r["view"] for r in promised if r["leak"]]
    lines = []
    declared = [r for r in final if r.get("promise") in ("leaks by design", "not kept") and r["leak"]]
    for name, attack in ATTACKS.items():
        most = max((r for r in declared if r["attack"] == name), key=lambda r: r["rate"], default=None)
        if most is not None:
            lines.append(
                f"The {attack.secret} leaks, as this mode declares: {most['view']} guesses "
                f"{percent(most['rate'])} right, and {percent(most['control'])} without what the run showed."
            )
    if promised and not leaks:
        lines.append(
            f"No {'other ' if declared else ''}leak was found: in {len(promised)} comparisons, no attacker guessed "
            "better with what this run showed it than without, beyond what luck explains "
            f"(at {100 * security.get('family', {}).get('error', 0.05):.0f} % over all of them together)."
        )
    elif leaks:
        lines.append(f"Something leaked that should not have: {'; '.join(leaks)} guessed better with the run's data.")
    plain = [r for r in final if r["view"].startswith("plaintext server") and r["gain"] is not None]
    for name, attack in ATTACKS.items():
        best = max((r for r in plain if r["attack"] == name), key=lambda r: r["rate"], default=None)
        if best is not None and attack.secret:
            luck = "always the most frequent one" if best["chance"] > 0.5 else "chance"
            lines.append(
                f"Without secrecy, the {attack.secret} would be guessed right at a rate of {percent(best['rate'])}, "
                f"where {luck} gives {percent(best['chance'])}."
            )
    if not audits_of(security):
        lines.append(NOT_AUDITED)
    for name, audit in audits_of(security).items():
        holds = audit["holds"] and audit.get("noise_holds", True)
        lines.append(
            f"The noise was put to the test too ({name}): {audit['samples']} noisy releases, half of them with one "
            f"record replaced, show that ε of one release is at least {audit['epsilon_low']:.2f}; "
            f"{audit['epsilon_high']:.2f} is promised as the most. "
            f"{'That promise holds.' if holds else 'The promise is broken.'}"
        )
    return lines


NOT_AUDITED = "The noise was not tested: this run made no charged release, or an older version evaluated it."


def audits_of(security: Mapping[str, Any]) -> Mapping[str, Row]:
    """The audits of noisy releases by what was audited; older reports have one, of the sketch."""
    older = {"sketch": security["dp_audit"]} if security.get("dp_audit") else {}
    audits: Mapping[str, Row] = security.get("dp_audits", older)
    return audits


def missed(security: Mapping[str, Any] | None) -> list[str]:
    """Checks that do not hold, for the warnings: promises, targets, and attackers that must succeed (controls)."""
    titles = {"promise": "A promise is broken", "target": "A target is missed", "control": "The attacker is broken"}
    limits = {"control": "at least {:.3f} is needed, so what it does not find means nothing"}
    return [
        f"{titles[c['kind']]} in the attacks below. {c['check']}: {c['value']:.3f} was found, "
        f"{limits.get(c['kind'], 'at most {:.3f} is allowed').format(c['limit'])}."
        for c in (security or {}).get("checks", [])
        if not c["holds"]
    ]


def _curved(final: Sequence[Row], attack: str) -> list[Row]:
    """The views whose curves are drawn: all attacked models, or the promised views and the worst plaintext one."""
    if ATTACKS.get(attack).takes == "white box":
        return list(final)
    server = [r for r in final if r["view"].startswith("plaintext server")]
    others = [max(server, key=lambda r: r["rate"])] if server else []
    return [r for r in final if r.get("promise", "no gain") != "shown"] + others


def _strength(row: Row) -> float:
    """Sort key of a row. A row without a strength is the attacker that the adversary would choose, and comes last."""
    return math.inf if row["strength"] is None else float(row["strength"])
