"""docs/paper-elements.toml covers the paper, and what it says of each element and claim can be found."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.test_documents import ROOT, TESTS
from tests.architecture.test_figures import contents

LISTED: dict[str, Any] = tomllib.loads((ROOT / "docs" / "paper-elements.toml").read_text(encoding="utf-8"))
ELEMENTS: dict[str, dict[str, Any]] = {element["id"]: element for element in LISTED["elements"]}
CLAIMS: list[dict[str, Any]] = LISTED["claims"]
STATUSES = ("same", "different", "optional")
VERDICTS = ("holds", "in part", "does not hold")
FIELDS = {"id", "section", "place", "paper", "status", "here", "modules"}
KINDS = {"equation": 37, "table": 20, "figure": 8, "proposition": 1, "part": 8}
"""How many labels of each kind the paper's source has."""
_RESULTS = re.compile(r"`(results/[\w./-]+)`")
_TEST = re.compile(r"`(?:tests/[\w/]+/)?(test_\w+)(?:\.py)?`")
_FIGURE = re.compile(r"(?<![\w.])(\d*\.\d+)")
Entry = dict[str, Any]


def evidence(reason: str) -> list[str]:
    """What a reason rests on that exists: files of results, tests, files of tests."""
    test_names = set().union(*TESTS.values()) | {Path(name).stem for name in TESTS}
    files = [path for path in _RESULTS.findall(reason) if (ROOT / path).exists()]
    return files + [name for name in _TEST.findall(reason) if name in test_names]


def value_of(file: str, where: str) -> float:
    """A figure of a file of results: by split, method, metric and counterfactual model, or by its path in the file.

    Semicolons part the words where the name of a method has blanks.
    """
    value: Any = contents(file)
    words = [word.strip() for word in where.split(";")] if ";" in where else where.split()
    if len(words) == 1:
        for key in where.split("/"):
            value = value[int(key) if key.isdigit() else key]
        return float(value)
    split, method, metric, model = (*words, None)[:4]
    wanted = {"split": split, "method": method, "metric": metric, "judge": model}
    (row,) = [row for row in value["rows"] if all(row[k] == v for k, v in wanted.items())]
    return float(row["mean"])


def differs(file: str, figure: str) -> str:
    """What is wrong with "number where": a share is in % unless it begins with a point.

    An equals sign before its path says that it is no share.
    """
    shown, _, where = figure.partition(" ")
    plain, digits = shown.startswith(".") or where.startswith("="), len(shown.partition(".")[2])
    value = value_of(file, where.removeprefix("="))
    seen = f"{value if plain else 100 * value:.{digits}f}"
    return "" if seen == shown.rjust(digits + 2, "0") else f"{shown} is {seen} in {file}"


def wrong_figures(entry: Entry, text: str, files: set[str]) -> list[str]:
    """What is wrong with the figures in a text, whose files these are."""
    sources = entry.get("sources", [])
    wrong = [fault for each in sources for figure in each["figures"] if (fault := differs(each["file"], figure))]
    named = {str(Path(path).with_suffix("")) for path in files}
    wrong += [f"{e['file']} is not named" for e in sources if str(Path(e["file"]).with_suffix("")) not in named]
    shown = set(_FIGURE.findall(re.sub(r"`[^`]*`", "", text))) if named else set()
    sourced = {figure.partition(" ")[0] for each in sources for figure in each["figures"]} | set(
        entry.get("other", ())
    )
    return wrong + [f"{figure} is of no file" for figure in sorted(shown - sourced)]


def faults(element: Entry) -> list[str]:
    """What is wrong with an element."""
    reason = element.get("why", "")
    wrong = [f"{module} does not exist" for module in element["modules"] if not (ROOT / module).is_file()]
    if not (element["modules"] and element["paper"].strip() and element["place"].strip()):
        wrong.append("an empty field")
    if not FIELDS <= set(element) <= FIELDS | {"why", "other", "sources"} or element["status"] not in STATUSES:
        wrong.append("unknown fields or status")
    if element["status"] != "same":
        if len(reason.split()) < 6:
            wrong.append("no reason")
        if not evidence(reason):
            wrong.append("no figure, and no test that exists")
    wrong += [f"{path} does not exist" for path in _RESULTS.findall(reason) if not (ROOT / path).exists()]
    other = sorted(set(element.get("other", ())) - set(_FIGURE.findall(reason)))
    return (
        wrong
        + [f"{figure} is not in the reason" for figure in other]
        + wrong_figures(element, reason, set(_RESULTS.findall(reason)))
    )


def wrong_claim(claim: Entry) -> list[str]:
    """What is wrong with a claim: its verdict, its files, or a figure of ours."""
    wrong = [] if claim["verdict"] in VERDICTS else ["no verdict"]
    if not claim["files"] or not all((ROOT / name).is_file() for name in claim["files"]):
        wrong.append("no file")
    files = {name for name in claim["files"] if name.startswith("results/")}
    return wrong + wrong_figures(claim, f"{claim['faithful']} {claim['default']}", files)


def test_every_element_and_claim_is_sound() -> None:
    errors = {element["id"]: faults(element) for element in LISTED["elements"]}
    errors |= {claim["claim"]: wrong_claim(claim) for claim in CLAIMS}
    assert {name: wrong for name, wrong in errors.items() if wrong} == {}


def uncovered(listed: dict[str, Any]) -> list[str]:
    """Labels of the paper without an element."""
    covered = {element["id"] for element in listed["elements"]}
    return [entry["label"] for entry in listed["labels"] if entry.get("of", entry["label"]) not in covered]


def test_every_label_of_the_paper_is_covered_once() -> None:
    assert uncovered(LISTED) == []
    assert Counter(entry["kind"] for entry in LISTED["labels"]) == KINDS
    assert len(ELEMENTS) == len(LISTED["elements"]) >= 92
    sections = [element["section"] for element in LISTED["elements"]]
    assert sections == sorted(sections, key=sections.index), "elements of a section stand together"
    labels = [{"label": "eq:y"}, {"label": "x"}, {"label": "part", "of": "x"}]
    assert uncovered({"labels": labels, "elements": [{"id": "x"}]}) == ["eq:y"]


OWN, ALL = (figure.split()[0] for figure in ELEMENTS["eq:lgen"]["sources"][0]["figures"])
LEAVE = f"Own counterfactuals leave {{}} flips where `all` has {ALL} % (`results/{{}}.md`)."


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "similar"},
        {"modules": ["launch/gone.py"]},
        {"modules": []},
        {"why": ""},
        {"why": "It is better so, and nobody has measured it yet."},
        {"why": LEAVE.format("2.18 %", "paper/main-german/results")},
        {"why": LEAVE.format(f"{OWN} %, .5 more", "paper/main-german/results")},
        {"why": LEAVE.format(f"{OWN} %", "paper/main-heart/results")},
        {"why": LEAVE.format(f"{OWN} %", "gone")},
        {"sources": [{"file": "results/paper/main-german/results.json", "figures": [f"{OWN} iid scc fr own"]}]},
    ],
)
def test_a_wrong_element_is_noticed(changes: dict[str, Any]) -> None:
    good = {**ELEMENTS["eq:lgen"], "why": LEAVE.format(f"{OWN} %", "paper/main-german/results")}
    assert not faults(good) and faults({**good, **changes})


@pytest.mark.parametrize(
    "changes", [{"verdict": "mostly"}, {"files": ["results/gone.md"]}, {"faithful": "2.18 %"}, {"sources": []}]
)
def test_a_wrong_claim_is_noticed(changes: dict[str, Any]) -> None:
    good = next(claim for claim in CLAIMS if claim["claim"].startswith("flips fall"))
    assert not wrong_claim(good) and wrong_claim({**good, **changes})
