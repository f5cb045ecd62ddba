"""What the attacks on a run found, in words and charts, from security.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accounting.charts import Dot, Line, curves, forest, percent
from secure_sccvfl.audit.attacks.catalogue import ATTACKS

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
    told = []
    declared = [r for r in final if r.get("promise") in ("leaks by design", "not kept") and r["leak"]]
    for name, attack in ATTACKS.items():
        most = max((r for r in declared if r["attack"] == name), key=lambda r: r["rate"], default=None)
        if most is not None:
            told.append(
                f"The {attack.secret} leaks, as this mode declares: {most['view']} guesses "
                f"{percent(most['rate'])} right, and {percent(most['control'])} without what the run showed."
            )
    if promised and not leaks:
        told.append(
            f"No {'other ' if declared else ''}leak was found: in {len(promised)} comparisons, no attacker guessed "
            "better with what this run showed it than without, beyond what luck explains "
            f"(at {100 * security.get('family', {}).get('error', 0.05):.0f} % over all of them together)."
        )
    elif leaks:
        told.append(f"Something leaked that should not have: {'; '.join(leaks)} guessed better with the run's data.")
    plain = [r for r in final if r["view"].startswith("plaintext server") and r["gain"] is not None]
    for name, attack in ATTACKS.items():
        best = max((r for r in plain if r["attack"] == name), key=lambda r: r["rate"], default=None)
        if best is not None and attack.secret:
            luck = "always the most frequent one" if best["chance"] > 0.5 else "chance"
            told.append(
                f"Without secrecy, the {attack.secret} would be guessed right at a rate of {percent(best['rate'])}, "
                f"where {luck} gives {percent(best['chance'])}."
            )
    if not audits_of(security):
        told.append(NOT_AUDITED)
    for name, audit in audits_of(security).items():
        holds = audit["holds"] and audit.get("noise_holds", True)
        told.append(
            f"The noise was put to the test too ({name}): {audit['samples']} noisy releases, half of them with one "
            f"record replaced, show that ε of one release is at least {audit['epsilon_low']:.2f}; "
            f"{audit['epsilon_high']:.2f} is promised as the most. "
            f"{'That promise holds.' if holds else 'The promise is broken.'}"
        )
    return told


NOT_AUDITED = "The noise was not tested: this run made no charged release, or an older version evaluated it."


def audits_of(security: Mapping[str, Any]) -> Mapping[str, Row]:
    """The audits of noisy releases by what was audited; older reports have one, of the sketch."""
    older = {"sketch": security["dp_audit"]} if security.get("dp_audit") else {}
    found: Mapping[str, Row] = security.get("dp_audits", older)
    return found


def missed(security: Mapping[str, Any] | None) -> list[str]:
    """Checks that do not hold, for the warnings: promises, targets, and attackers that must succeed (controls)."""
    told = {"promise": "A promise is broken", "target": "A target is missed", "control": "The attacker is broken"}
    limits = {"control": "at least {:.3f} is needed, so what it does not find means nothing"}
    return [
        f"{told[c['kind']]} in the attacks below. {c['check']}: {c['value']:.3f} was found, "
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
