"""The paper's qualitative analysis of one seed: results.json, results.md and plots."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting.plain_text import markdown
from accounting.tables import Table
from secure_sccvfl.evaluation.counterfactual_models import FIRST
from secure_sccvfl.reports.charts import percent, tidy
from secure_sccvfl.reports.dictionary import Dictionary
from secure_sccvfl.research.qualitative.methods import PAPER

Found = Mapping[str, Any]
ROLE_WORDS = {"N": "non-descendant (N)", "M": "mediator (M)", "P": "proxy (P)"}
SPACES = {
    "fused": "Fused representation: what the encoders give to the head",
    "used": "Contributions: by how much the logit changes when a column is replaced by its mean",
}


def write_qualitative(folder: Path, found: Found, words: Dictionary, command: str) -> str:
    """Write data, tables and plots into a folder; returns the tables."""
    from secure_sccvfl.research.plots import draw_qualitative

    folder.mkdir(parents=True, exist_ok=True)
    made = {"experiment": "qualitative", "command": command, "date": datetime.date.today().isoformat()}
    (folder / "results.json").write_text(json.dumps({**made, **found}, indent=1) + "\n", encoding="utf-8")
    pictures = draw_qualitative(found, folder)
    text = tables(found, words, pictures)
    text = f"Made by `{command}` on {made['date']}.\n\n{text}"
    (folder / "results.md").write_text(text, encoding="utf-8")
    return text


def tables(found: Found, words: Dictionary, pictures: Sequence[str] = ()) -> str:
    """All tables, in the order of the paper's appendix."""
    parts = [_mask(found), _representations(found), _training(found), _edits(found)]
    parts += [_case(case, words) for case in found["cases"]]
    parts += [_recourse(person, words) for person in found["recourse"]]
    shown = [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures]
    return "\n\n".join(["# Qualitative analysis", *shown, *filter(None, parts)]) + "\n"


def _mask(found: Found) -> str:
    known, agreed = found["information"], found["agreement"]
    rows = [
        (
            name,
            tidy(known[name]["mi"], 4),
            tidy(known[name]["null"], 4),
            tidy(known[name]["null_high"], 4),
            tidy(found["scores"][name], 3),
            ROLE_WORDS[found["roles"][name]],
        )
        for name in sorted(known, key=lambda name: -known[name]["mi"])
    ]
    told = (
        "Mutual information with s in nats, in plaintext on the training part, from counts over public bins. Beside "
        "it what it is with s shuffled: the mean, and what one shuffle in twenty exceeds. The score is the noisy one "
        f"that roles rest on. Rank correlation of score and information: {tidy(agreed['rank_correlation'], 2)} over "
        f"{agreed['columns']} columns (columns shuffled: up to {tidy(agreed['null_high'], 2)} in 19 of 20)."
    )
    heads = ("column", "MI", "MI, s shuffled", "95 % of shuffles below", "score", "role")
    return f"## Roles\n\n{told}\n\n{Table(heads, rows)}"


def _representations(found: Found) -> str:
    parts = [
        "## Representations\n\nAUC of a linear classifier of s, fitted on training records, on test records: on two "
        "principal components, on the whole, and on logits alone. 0.5 is chance. In brackets the 95 % interval, then "
        "what one shuffle of s in twenty exceeds. A picture mixes if the first is near chance; s is gone only if the "
        "second is. The sealed encoders of `scc` do not look at s: their z holds what the columns hold, and no party "
        "sees it. What it changes is what decisions take from it."
    ]
    for space, title in SPACES.items():
        rows = [
            (
                m["method"],
                str(m["width"]),
                percent(sum(m["shares"])),
                *(_reading(m[key]) for key in ("two", "whole", "logits") if key in m),
            )
            for m in found["mixing"]
            if m["space"] == space
        ]
        heads = ("method", "columns", "variance on two", "AUC, two components", "AUC, whole", "AUC, logits")
        parts.append(f"{title}.\n\n{Table(heads[: len(rows[0])], rows)}")
    return "\n\n".join(parts)


def _reading(read: Mapping[str, float]) -> str:
    return (
        f"{tidy(read['auc'], 3)} ({tidy(read['low'], 3)} to {tidy(read['high'], 3)}); "
        f"shuffled up to {tidy(read['null_high'], 3)}"
    )


def _training(found: Found) -> str:
    parts = ["## Training"]
    if curve := found["history"].get(PAPER):
        places = sorted({0, len(curve) // 4, len(curve) // 2, 3 * len(curve) // 4, len(curve) - 1})
        keys = [key for key in curve[0] if key != "epoch"]
        rows: list[Sequence[str]] = [
            (str(curve[at]["epoch"]), *("" if curve[at][k] is None else tidy(curve[at][k], 4) for k in keys))
            for at in places
        ]
        told = f"`{PAPER}` stopped after {len(curve)} epochs. Curves of all networks are in results.json."
        parts.append(f"{told}\n\n{Table(('epoch', *keys), rows)}")
    measured = [t for t in found["trials"] if t["validation"] is not None]
    rows = [
        (f"{t['lam']:g}", *(tidy(t["validation"][key], 3) for key in ("loss", "gap_rms", "spread"))) for t in measured
    ]
    taken = f"`scc` along lambda, on the validation part; it takes {found['lambda']:g}."
    parts.append(f"{taken}\n\n{Table(('lambda', 'log loss', 'gap of logits', 'spread of logits'), rows)}")
    return "\n\n".join(parts)


def _edits(found: Found) -> str:
    rows = []
    for name, figures in found["methods"].items():
        own = found.get("edits", {}).get(name)
        rows.append(
            (
                name,
                tidy(figures["acc"], 3) if "acc" in figures else "",
                *(percent(figures[key]) if key in figures else "" for key in (f"fr_{FIRST}", f"fr_null_{FIRST}")),
                *((tidy(own[k], 3) for k in ("mediators", "others", "gap")) if own else ("", "", "")),
                percent(own["flips"]) if own else "",
            )
        )
    heads = (
        "method",
        "accuracy",
        f"flips, judge {FIRST}",
        "null",
        "own edit, mediators",
        "own edit, other columns",
        "own gap of logits",
        "flips, own edit",
    )
    told = (
        "Over all test records. A method's own edit is made by its own generator, so its size and its flips say as "
        "much about the generator as about the model: a small edit flips little. The paper's methods have roles by "
        "the paper's own rule, so they also edit columns that are no mediators here. The judge edits alike for all. "
        "Size: the root of the sum of squares over columns; a category that changes counts 1, a number the share of "
        "its range."
    )
    return f"## Edits\n\n{told}\n\n{Table(heads, rows)}"


def _moved(moved: Sequence[Mapping[str, Any]], words: Dictionary, most: int = 5) -> str:
    told = [words.move(m) for m in moved[:most]]
    more = f"; {len(moved) - most} more" if len(moved) > most else ""
    return "; ".join(f"{m['name']} ({m['role']}): {m['from']} to {m['to']}" for m in told) + more


def _said(words: Dictionary, seen: Mapping[str, Any]) -> str:
    told = words.outcome(seen)
    return f"{told['decision']}, {percent(told['score'])}"


def _case(case: Mapping[str, Any], words: Dictionary) -> str:
    rows = []
    for name, seen in case["methods"].items():
        own = seen.get("own")
        flips = [
            "" if after is None else "stays" if after["decision"] == seen["before"]["decision"] else "flips"
            for after in (seen["after"], own["after"] if own else None)
        ]
        rows.append(
            (
                name,
                _said(words, seen["before"]),
                _said(words, seen["after"]),
                flips[0],
                *((_said(words, own["after"]), flips[1]) if own else ("", "")),
                f"{tidy(own['size'], 2)} + {tidy(own['size_others'], 2)}" if own else "",
                _moved(own["moved"], words, 3) if own else "",
            )
        )
    heads = ("method", "before", "after, judge", "", "after, own edit", "", "size: mediators + others", "moved most")
    groups = " to ".join(markdown(words.groups[g]) for g in case["groups"])
    told = (
        f"Record {case['id']}, in truth “{markdown(words.classes[case['label']])}”, {groups}. Rule: {case['rule']}. "
        f"The judge's edit, the same for all methods, has size {tidy(case['size'], 2)}: "
        f"{markdown(_moved(case['moved'], words))}. Scores: {markdown(words.score)}."
    )
    return f"## Case: {case['case']}\n\n{told}\n\n{Table(heads, rows)}"


def _recourse(person: Mapping[str, Any], words: Dictionary) -> str:
    groups = " to ".join(markdown(words.groups[g]) for g in person["groups"])
    rows = [(m["name"], m["role"], m["from"], m["to"]) for m in (words.move(m) for m in person["moved"])]
    told = (
        f"Record {person['id']}, {groups}: {markdown(_said(words, person['before']))} before and "
        f"{markdown(_said(words, person['after']))} after the edit of `scc`'s own generator, size "
        f"{tidy(person['size'], 2)}. Other columns moved by {tidy(person['size_others'], 2)}. Held fixed: "
        f"{markdown(', '.join(words.name(name) for name in person['fixed']))}. The edit says what the other group "
        "tends to have; it is no advice to the person."
    )
    head = f"## Edit of a person decided “{markdown(words.classes[person['before']['decision']])}”"
    return f"{head}\n\n{told}\n\n{Table(('column', 'role', 'from', 'to'), rows)}"
