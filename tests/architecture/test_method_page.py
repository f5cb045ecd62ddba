"""docs/method.md has a line for every element of the paper's list, and what that line says can be found."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.test_documents import ROOT, TESTS

PAGE, LIST = ROOT / "docs" / "method.md", ROOT / "docs" / "paper-elements.toml"
STATUSES = ("same", "different", "beside")
CELLS = 5
FIELDS = {"id", "place", "says", "status", "modules", "line"}
KINDS = ("equation", "table", "figure", "proposition", "part")
OPEN = "TODO-FIGURE"
_RESULTS = re.compile(r"`(results/[\w./-]+)`")
_TEST = re.compile(r"`(?:tests/[\w/]+/)?(test_\w+)(?:\.py)?`")
Element = dict[str, Any]


def lines_of(page: str) -> dict[str, list[str]]:
    """The cells of every line of a table, by the key in its first cell."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        key = re.match(r"\| `([^`]+)`", line)
        if key:
            assert key[1] not in found, f"two lines for {key[1]}"
            found[key[1]] = [cell.strip() for cell in line.strip("|").split("|")]
    return found


def evidence(cell: str) -> list[str]:
    """What a cell rests on that exists: files of results, tests, files of tests."""
    every = set().union(*TESTS.values())
    files = {Path(name).stem for name in TESTS}
    found = [path for path in _RESULTS.findall(cell) if (ROOT / path).exists()]
    return found + [name for name in _TEST.findall(cell) if name in every or name in files]


def faults(element: Element, lines: dict[str, list[str]]) -> list[str]:
    """What is wrong with the line of an element."""
    cells = lines.get(element["line"])
    if cells is None:
        return ["no line"]
    if len(cells) != CELLS:
        return [f"{len(cells)} cells"]
    wrong = []
    if not cells[2].startswith(f"**{element['status']}**"):
        wrong.append("another status")
    for module in element["modules"]:
        if not (ROOT / module).is_file():
            wrong.append(f"{module} does not exist")
        if f"`{module}`" not in cells[3]:
            wrong.append(f"{module} is not on the line")
    if set(re.findall(r"`([^`]+)`", cells[3])) - set(element["modules"]):
        wrong.append("a module that the list does not have")
    if element["status"] != "same":
        if len(cells[4].split()) < 6:
            wrong.append("no reason")
        if not evidence(cells[4]):
            wrong.append("no figure, and no test that exists")
        wrong += [f"{path} does not exist" for path in _RESULTS.findall(cells[4]) if not (ROOT / path).exists()]
    return wrong


def uncovered(listed: dict[str, Any]) -> list[str]:
    """Labels of the paper without an element."""
    known = {element["id"] for element in listed["elements"]}
    return [e["label"] for e in listed["labels"] if e.get("of", e["label"]) not in known]


LISTED: dict[str, Any] = tomllib.loads(LIST.read_text(encoding="utf-8"))
TEXT = PAGE.read_text(encoding="utf-8")
LINES = lines_of(TEXT)


@pytest.mark.parametrize("element", LISTED["elements"], ids=lambda element: str(element["id"]))
def test_every_element_has_its_line(element: Element) -> None:
    assert faults(element, LINES) == []


def test_every_label_of_the_paper_is_covered() -> None:
    assert uncovered(LISTED) == []
    counts = Counter(entry["kind"] for entry in LISTED["labels"])
    assert set(counts) == set(KINDS)
    assert counts == {"equation": 37, "table": 20, "figure": 8, "proposition": 1, "part": 8}, "as in the source"


def test_the_list_is_sound() -> None:
    ids = [element["id"] for element in LISTED["elements"]]
    assert len(ids) == len(set(ids)) >= 92
    for element in LISTED["elements"]:
        assert set(element) == FIELDS and element["status"] in STATUSES
        assert element["modules"] and element["says"].strip() and element["place"].strip()


def test_the_page_has_no_line_that_the_list_does_not_have() -> None:
    assert set(LINES) == {element["line"] for element in LISTED["elements"]}


def test_the_page_counts_as_the_list_does() -> None:
    counts = Counter(element["status"] for element in LISTED["elements"])
    told = re.sub(r"\s+", " ", TEXT)
    assert f"Of {len(LISTED['elements'])} elements {counts['same']} are **same**" in told
    assert f"{counts['different']} **different**. {counts['beside']} are **beside**" in told


VERDICTS = ("holds", "in part", "does not hold")
_FIGURE = re.compile(r"(?<![\w.])(\d*\.\d+)")


def claims_of(page: str) -> list[list[str]]:
    """The cells of every line of the table of claims."""
    table = page.split("## The paper's claims", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| claim ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def value_of(file: str, where: str) -> float:
    """A figure of a file of results: by split, method, metric and judge, or by its path in the file.

    Semicolons part the words where the name of a method has blanks.
    """
    found: Any = contents(file)
    words = [word.strip() for word in where.split(";")] if ";" in where else where.split()
    if len(words) == 1:
        for key in where.split("/"):
            found = found[int(key) if key.isdigit() else key]
        return float(found)
    split, method, metric, judge = (*words, None)[:4]
    asked = {"split": split, "method": method, "metric": metric, "judge": judge}
    (row,) = [row for row in found["rows"] if all(row[k] == v for k, v in asked.items())]
    return float(row["mean"])


@cache
def contents(file: str) -> Any:
    return json.loads((ROOT / file).read_text(encoding="utf-8"))


def differs(file: str, figure: str) -> str:
    """What is wrong with a listed figure, "as told where": a share is told in % unless it begins with a point.

    An equals sign before its place says that it is no share.
    """
    told, _, where = figure.partition(" ")
    plain, digits = told.startswith(".") or where.startswith("="), len(told.partition(".")[2])
    value = value_of(file, where.removeprefix("="))
    seen = f"{value if plain else 100 * value:.{digits}f}"
    return "" if seen == told.rjust(digits + 2, "0") else f"{told} is {seen} in {file}"


def wrong_claim(cells: list[str], claims: list[Element]) -> list[str]:
    """What is wrong with a line: its verdict, its files, or a figure of ours."""
    claim, _, letter, default, verdict, files = cells
    wrong = [] if re.match(rf"\*\*({'|'.join(VERDICTS)})\*\*", verdict) else ["no verdict"]
    named = re.findall(r"`([\w./-]+)`", files)
    if not named or not all((ROOT / name).is_file() for name in named):
        wrong.append("no file")
    known = set()
    for listed in (each for each in claims if each["claim"] == claim):
        wrong += [fault for figure in listed["figures"] if (fault := differs(listed["file"], figure))]
        if listed["file"].replace(".json", ".md") not in named:
            wrong.append(f"{listed['file']} is not named")
        known |= {figure.partition(" ")[0] for figure in listed["figures"]}
    return wrong + [v for v in _FIGURE.findall(f"{letter} {default}") if v not in known]


@pytest.mark.parametrize("cells", claims_of(TEXT), ids=lambda cells: str(cells[0])[:40])
def test_every_claim_has_a_verdict_and_figures_of_its_files(cells: list[str]) -> None:
    assert wrong_claim(cells, LISTED["claims"]) == []


def test_figures_are_of_claims_that_the_page_has() -> None:
    assert {each["claim"] for each in LISTED["claims"]} < {cells[0] for cells in claims_of(TEXT)}


def test_a_wrong_claim_is_noticed() -> None:
    good = next(cells for cells in claims_of(TEXT) if cells[0].startswith("flips fall"))
    for at, old, new in ((2, "2.19 %", "2.18 %"), (4, "**in part**", "**mostly**"), (5, "main-german", "gone")):
        bad = [cell.replace(old, new) if k == at else cell for k, cell in enumerate(good)]
        assert bad != good and wrong_claim(bad, LISTED["claims"])
    moved = {"claim": good[0], "file": "results/paper/main-german/results.json", "figures": ["2.19 iid scc fr own"]}
    assert wrong_claim(good, [*LISTED["claims"], moved]) and not wrong_claim(good, LISTED["claims"])


def wrong_figures(line: str, cells: list[str], listed: dict[str, Any]) -> list[str]:
    """What is wrong with the figures in the reason of a line that names files of results."""
    own = [each for each in listed["figures"] if each["line"] == line]
    wrong = [fault for each in own for figure in each["figures"] if (fault := differs(each["file"], figure))]
    named = {str(Path(path).with_suffix("")) for path in _RESULTS.findall(cells[4])}
    wrong += [f"{e['file']} is not named" for e in own if str(Path(e["file"]).with_suffix("")) not in named]
    told = _FIGURE.findall(re.sub(r"`[^`]*`", "", cells[4])) if named else []
    known = {figure.partition(" ")[0] for each in own for figure in each["figures"]}
    other = set(listed["other"].get(line, ()))
    wrong += [f"{figure} is of no file" for figure in told if figure not in known | other]
    return wrong + [f"{figure} is not on the line" for figure in sorted((known | other) - set(told))]


@pytest.mark.parametrize("line", list(LINES))
def test_figures_of_every_line_are_those_of_its_files(line: str) -> None:
    assert wrong_figures(line, LINES[line], LISTED) == []


def test_a_wrong_figure_of_a_line_is_noticed() -> None:
    cells, line = LINES["eq:lgen"], "eq:lgen"
    for old, new in (("2.19", "2.18"), ("2.19 %", "2.19 % and .5"), ("main-german", "main-heart")):
        bad = [*cells[:4], cells[4].replace(old, new)]
        assert bad != cells and wrong_figures(line, bad, LISTED)
    moved = {"line": line, "file": "results/paper/main-german/results.json", "figures": ["2.19 iid scc fr own"]}
    assert wrong_figures(line, cells, {**LISTED, "figures": [*LISTED["figures"], moved]})
    assert {each["line"] for each in LISTED["figures"]} | set(LISTED["other"]) <= set(LINES)


def test_no_figure_is_open() -> None:
    """A line whose figure is not measured yet must not land."""
    assert [key for key, cells in LINES.items() if any(OPEN in cell for cell in cells)] == []
    assert OPEN not in TEXT


GOOD: Element = {
    "id": "x", "place": "Eq. 0", "says": "so", "status": "different", "modules": ["launch/cli.py"], "line": "x",
}  # fmt: skip
WHY = "It costs .01 of accuracy (`results/main-german/results.md`)."
LINE = f"| `x` Eq. 0 | so | **different**: not so | `launch/cli.py` | {WHY} |"


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("", {}),
        (LINE.replace("**different**", "**same**"), {}),
        (LINE, {"modules": ["launch/gone.py"]}),
        (LINE, {"modules": ["launch/cli.py", "launch/certs.py"]}),
        (LINE, {"modules": []}),
        (LINE.replace(WHY, ""), {}),
        (LINE.replace(WHY, "It is better so, and nobody has measured it yet."), {}),
        (LINE.replace("main-german/results.md", "gone.md"), {}),
        (LINE.replace("`results/main-german/results.md`", "`test_nobody_wrote_this`"), {}),
        (LINE.replace(WHY, f"{WHY} | more"), {}),
    ],
)
def test_a_fault_is_noticed(line: str, changes: dict[str, Any]) -> None:
    assert faults(GOOD, lines_of(LINE)) == [] and faults({**GOOD, **changes}, lines_of(line))


def test_a_label_without_an_element_is_noticed() -> None:
    labels = [{"label": "eq:y"}, {"label": "x"}, {"label": "part", "of": "x"}]
    assert uncovered({"labels": labels, "elements": [GOOD]}) == ["eq:y"]
