"""What the documents name exists: files, tests, and the ends of links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")])
PACKAGES = ("accounting", "launch", "protocols", "secure_sccvfl", "tests")
FOLDERS = (*PACKAGES, "docs", "results", "locks")
SOURCES = {path.relative_to(ROOT).as_posix(): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"(?<![\w/])(test_\w+)(\.\.\.|\.py)?")
_TEST_OF_FILE = re.compile(r"`(test_\w+)(\.\.\.)?`\s+(?:in\s+|\()`([\w/]+\.py)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def functions(path: Path) -> set[str]:
    """The tests in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


TESTS = {name: functions(path) for name, path in SOURCES.items() if name.startswith("tests/")}


def without_blocks(text: str) -> str:
    """The text without fenced blocks."""
    return re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", "", text)


def found_source(name: str) -> str | None:
    """The one file that is meant by its full path, by the end of it, or by its name."""
    ends = [path for path in SOURCES if path == name or path.endswith(f"/{name}")]
    return name if name in ends else ends[0] if len(ends) == 1 else None


def is_test(name: str, tests: set[str], *, elided: bool) -> bool:
    return any(test.startswith(name) for test in tests) if elided else name in tests


def wrong_names(text: str) -> list[str]:
    """Files, folders and tests in backticks that do not exist, or are not the only ones of that name."""
    every = set().union(*TESTS.values())
    wrong = []
    for code in _CODE.findall(without_blocks(text)):
        for word in re.findall(r"[\w./-]+", code):
            name = word.rstrip(".")
            inside = "/" in name and name.partition("/")[0] in FOLDERS
            exists = found_source(name) is not None if name.endswith(".py") else (ROOT / name).exists() or not inside
            if not exists:
                wrong.append(name)
        for name, end in _TEST.findall(code):
            if end != ".py" and not is_test(name, every, elided=bool(end)):
                wrong.append(name)
    for name, end, file in _TEST_OF_FILE.findall(without_blocks(text)):
        if not is_test(name, TESTS.get(found_source(file) or "", set()), elided=bool(end)):
            wrong.append(f"{name} in {file}")
    return wrong


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ +(.*)$", without_blocks(text))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative links of a page in this folder that lead nowhere."""
    wrong = []
    for link in _LINK.findall(without_blocks(text)):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        page = folder / target
        exists = page.exists()
        if anchor and exists:
            exists = anchor in anchors(page.read_text(encoding="utf-8") if target else text)
        if not exists:
            wrong.append(link)
    return wrong


def test_everything_that_a_document_names_exists() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    problems = {page: [*wrong_names(text), *broken_links(text, page.parent)] for page, text in texts.items()}
    assert {page.relative_to(ROOT).as_posix(): wrong for page, wrong in problems.items() if wrong} == {}


def test_documents_are_found() -> None:
    named = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "SECURITY.md", "docs/protocols.md", "results/README.md", "results/bench-ops.md"} <= named


@pytest.mark.parametrize(
    "text",
    [
        "`protocols/gone.py`",
        "`catalogue.py`",  # several files have this name
        "`python launch/gone.py RUN`",
        "`results/gone.md`",
        "`secure_sccvfl/gone/`",
        "`test_nobody_wrote_this`",
        "`test_nobody_wrote...`",
        "`test_documents_are_found` in `tests/architecture/test_locks.py`",
        "`test_documents_are_found` (`test_locks.py`)",
    ],
)
def test_a_wrong_name_is_noticed(text: str) -> None:
    assert wrong_names(text)


def test_names_may_be_short_where_only_one_fits() -> None:
    assert wrong_names("`attacks/labels.py`, `test_documents.py`, `secure_sccvfl/audit/`") == []
    assert (
        wrong_names("`test_documents_are_found` in `tests/architecture/test_documents.py`, `test_documents_are...`")
        == []
    )


@pytest.mark.parametrize("link", ["gone.md", "README.md#gone", "#limits", "docs/gone.svg"])
def test_a_broken_link_is_noticed(link: str) -> None:
    assert broken_links(f"[here]({link})", ROOT)


def test_links_to_pages_headings_and_elsewhere_are_fine() -> None:
    text = (
        "# Two words\n[a](README.md#limits) [b](docs/overview.svg) [c](https://example.org/gone.md) [d](#two-words)"
    )
    assert broken_links(text, ROOT) == []
