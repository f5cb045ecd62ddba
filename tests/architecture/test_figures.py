"""Figures in README.md, docs/method.md and docs/speed.md are those of the results that docs/figures.toml names."""

from __future__ import annotations

import ast
import json
import operator
import re
import tomllib
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.architecture.test_documents import without_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES: list[dict[str, Any]] = tomllib.loads((ROOT / "docs" / "figures.toml").read_text(encoding="utf-8"))["pages"]
NUMBER = r"-?(?<![\w.])(?:\d[\d,]*)?\.?\d+(?![\w.]*\d)"
MEASURED = re.compile(r"(?<![\w.#/-])(?:\d*\.\d+|\d[\d,]*(?= (?:rounds|times|[kMG]B|m?s)\b| %))(?![\w-])")
"""What looks like a result: a decimal, or a number with a unit."""
_PATH = re.compile(r"(mean )?([a-z_]+)\[([^\]]+)\]\.(\w+)")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@cache
def contents(file: str) -> Any:
    return json.loads((ROOT / file).read_text(encoding="utf-8"))


def selected(file: str, match: re.Match[str]) -> str:
    """The value of a path: name[index].key, name[key=value,...].key, or `mean` and a path with several entries."""
    averaged, name, chosen, key = match.groups()
    entries = contents(file)[name]
    if chosen.isdigit():
        return repr(entries[int(chosen)][key])
    wanted = dict(part.split("=", 1) for part in re.split(r",(?! )", chosen))
    values = [entry[key] for entry in entries if all(str(entry.get(k)) == v for k, v in wanted.items())]
    assert len(values) == 1 or (averaged and values), f"{file}: {len(values)} entries for [{chosen}]"
    return repr(mean(values))


def value_of(file: str, expression: str) -> float:
    """The value of an expression of paths and numbers."""

    def evaluated(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return float(_OPERATORS[type(node.op)](evaluated(node.left), evaluated(node.right)))
        if isinstance(node, ast.UnaryOp):
            return -evaluated(node.operand)
        assert isinstance(node, ast.Constant) and isinstance(node.value, int | float), ast.dump(node)
        return float(node.value)

    return evaluated(ast.parse(_PATH.sub(lambda match: selected(file, match), expression), mode="eval").body)


def fault(figure: str) -> str:
    """What is wrong with "number file expression"."""
    shown, file, expression = figure.split(" ", 2)
    digits = len(shown.partition(".")[2])
    seen = f"{value_of(file, expression):.{digits}f}"
    plain = re.sub(r"^(-?)\.", r"\g<1>0.", shown.replace(",", ""))
    return "" if float(seen) == float(plain) else f"{shown} is {seen} in {file}"


def faults(page: dict[str, Any], text: str) -> list[str]:
    """What is wrong with the figures of a page."""
    rest, wrong = " ".join(text.split()), []
    for check in page["checks"]:
        said = check["text"]
        if said not in rest:
            wrong.append(f"not on the page: {said}")
        rest = rest.replace(said, " ")
        wrong += [error for figure in check["figures"] if (error := fault(figure))]
        shown = [number.lstrip("+") for number in re.findall(NUMBER, said)]
        if shown != [figure.split(" ", 1)[0] for figure in check["figures"]]:
            wrong.append(f"{shown} in: {said}")
    left = MEASURED.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", rest))
    return wrong + [f"{number} is not checked" for number in left if number not in page["settings"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page["page"]))
def test_figures_are_those_of_the_results(page: dict[str, Any]) -> None:
    assert faults(page, without_blocks((ROOT / page["page"]).read_text(encoding="utf-8"))) == []


def test_all_three_pages_are_checked() -> None:
    assert {page["page"] for page in PAGES} == {"README.md", "docs/method.md", "docs/speed.md"}


@pytest.mark.parametrize(
    ("old", "new"), [("117 times", "118 times"), (".60 s", ".61 s"), ("Seconds are", "It takes 3.4 s. Seconds are")]
)
def test_a_wrong_figure_is_noticed(old: str, new: str) -> None:
    page = next(page for page in PAGES if page["page"] == "docs/speed.md")
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert faults(page, text.replace(old, new)) and not faults(page, text)
    changed = json.loads(json.dumps(page).replace(old, new))
    assert old == "Seconds are" or faults(changed, text.replace(old, new)), "a wrong figure that is also listed"
