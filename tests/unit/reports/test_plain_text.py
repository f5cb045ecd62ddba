"""Names from outside stay words: in every Markdown file that carries them, and on the terminal."""

from __future__ import annotations

import datetime
import io
import json
import logging
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from rich.table import Table as Screen

from secure_sccvfl.accounting.budget import Account, Charge, Terms
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.plain_text import code, markdown, plain
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.accounting.report import Notes, build_report, to_markdown
from secure_sccvfl.accounting.tables import Table
from secure_sccvfl.audit.report import TITLES, _cells, _pgd_table
from secure_sccvfl.policy.card import Approval, Decision, PolicyCard
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports.policy_card import card_markdown
from secure_sccvfl.reports.results import Evaluation, Report
from secure_sccvfl.reports.tables import markdown as result_tables
from secure_sccvfl.runs import console
from secure_sccvfl.runs.local.screens import show_report
from tests.unit.reports import literal

HOSTILE = (
    "<img src=x onerror=alert(1)>\"'&{{7*7}}",
    "x[/red]",
    "[red]x",
    "a|b",
    "\x1b[2Jcleared\x1b]0;title\x07",
    "\x9b31m",
    "two\nlines\r\n# heading",
    "[link](javascript:alert(1))",
    "![picture](http://evil.example/x.png)",
    "https://evil.example www.evil.example",
    "*bold* __too__ _and_ ~~gone~~ `code` $x$",
    "<!-- comment",
    "\\| \\",
    "- item",
    "1. first",
    "&lt;b&gt;",
    ":smile:",
    "a\u202eb",
    "\ud800",
    "{% raw %}",
)
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
WORDS = {"inline", "text", "softbreak", "paragraph_open", "paragraph_close", "code_inline"}
OURS = ("heading", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td", "strong")


def read(text: str) -> tuple[str, list[list[str]]]:
    """What a reader sees of Markdown: all words, and the cells of each row; anything but our own forms fails."""
    words, rows = [], []
    tokens = READER.parse(text)
    for at, token in enumerate(tokens):
        for part in (token, *(token.children or ())):
            assert part.type in WORDS or part.type.rsplit("_", 1)[0] in OURS, (part.type, part.content)
            words += [part.content] if part.type in ("text", "code_inline") else []
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("th_open", "td_open"):
            rows[-1].append("".join(part.content for part in tokens[at + 1].children or ()))
    return "\n".join(words), rows


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_read_as_it_is_written(name: str) -> None:
    for text in (f"{markdown(name)} x", f"- {markdown(name)}", f"# {markdown(name)}."):
        words, _ = read(text)
        assert plain(name).strip() in "".join(words.split("\n"))
    _, rows = read(f"| a | b |\n|---|---|\n| {markdown(name)} | {markdown(name)} |\n")
    assert rows[1] == [plain(name).strip()] * 2
    assert plain(name).strip().replace("`", "'") in read(f"by {code(name)}: x")[0]
    assert "://" not in markdown(name) and "www." not in markdown(name), "no link of its own"
    assert "{{" not in markdown(name) and "{%" not in markdown(name), "no template of a site generator"


@settings(max_examples=200, deadline=None)
@given(st.text(st.one_of(st.sampled_from(string.punctuation + " \n\x1b"), st.characters()), max_size=12))
def test_any_name_is_one_cell_of_words(name: str) -> None:
    _, rows = read(f"| a | b |\n|---|---|\n| x{markdown(name)}x | y |\n")
    assert rows[1] == [f"x{plain(name)}x", "y"]
    shown = plain(name)
    assert shown.isprintable() or not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)


@pytest.fixture(scope="module")
def budget() -> dict[str, Any]:
    records = RecordSet(np.arange(9, dtype=np.uint64))
    charge = Charge("key", Event("NAME", 2.0, 4.0, records.digest, mechanism="paper"))
    account = Account(Terms(8.0, 1e-5), (charge,), {records.digest: records})
    return build_report(account, Notes("NAME", ({"name": "NAME", "purpose": "NAME"},)))


@pytest.mark.parametrize("name", HOSTILE)
def test_every_markdown_file_holds_names_as_words(name: str, budget: dict[str, Any]) -> None:
    event = {"kind": "appeal", "number": name, "date": "2026-01-01", "who": name, "text": name, "feature": name}
    review = {**event, "kind": "review", "deltas": {name: {"proposed": ["M", None], "score": [0.1, None]}}}
    owners = ({"name": name, "contact": name}, name)
    fields = {"dictionary": {name: dict.fromkeys(("meaning", "measurement", "confounders", "relation"), name)}}
    fields |= {"approvals": (Approval(name, "", name, name, name),), "follows": {"version": name, "approved": name}}
    card = PolicyCard(name, name, owners, {name: Decision("P", name, name, name)}, (event, review), **fields)
    words, rows = read(card_markdown(card))
    shown = plain(name).strip()
    assert rows[1][:2] == [shown, "P"] and rows[1][3:] == [shown, shown] and "overridden" in rows[1][2]
    assert rows[3] == [shown, shown, shown, "", shown, shown]
    assert f"by {plain(name)} (feature {plain(name)}" in words.replace("\n", "")
    words, rows = read(to_markdown(json.loads(json.dumps(budget).replace('"NAME"', json.dumps(name)))))
    assert rows[4][0] == f"{plain(name)} (paper's mechanism)".strip(), "after the table of parts"
    assert f"{plain(name)}: {plain(name)}".strip() in words.replace("\n", "")
    row = {"dataset": name, "split": "iid", "seeds": 2, "method": "scc", "judge": None, "metric": "acc"}
    read(result_tables("main", [{**row, "mean": 0.5, "low": 0.4, "high": 0.6}]))
    view = {"view": name, "attack": "pgd", "strength": 0.1, "promise": "", "leak": None, "forced": None}
    view |= dict.fromkeys(("related",)) | dict.fromkeys(
        ("rate", "low", "high", "chance", "control", "gain", "gain_low", "gain_high"), 0.5
    )
    _, rows = read(str(Table(TITLES, [_cells(view)])))
    assert rows[1][0] == shown and len(rows[1]) == 8
    assert read(str(_pgd_table([view])))[1][1][0] == shown


def report_of(name: str) -> Report:
    noisy = Evaluation(kind="noisy", epsilon_rdp=1.0, cap=8.0, delta=1e-5)
    names = {"dataset": name, "baselines": {name: {"acc": 0.5}}, "roles": {name: "M"}, "warnings": (name,)}
    return literal.report(metrics={"acc": 0.5}, evaluation=noisy, noise={"acc": 0.1}, **names)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_terminal_shows_names_and_obeys_none(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every piece of text goes through `render_str` of the screen; a colour of our own is a `Text`."""
    show_report(report_of(name), tmp_path)
    console.say(name)
    console.say(name, error=True)

    def stop() -> int:
        raise ConfigError(name)

    assert console.guarded("program", stop) == console.WRONG_USE
    out, err = capsys.readouterr()
    assert plain(name) in out and plain(name) in err
    for text in (out, err):
        assert not any((ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160 for char in text)
        assert "\u202e" not in text


def test_a_table_and_a_bare_string_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = Screen("x[/red]", title="[/red]")
    table.add_row("[red]x[/red][/red]")
    shown = console.screen()
    assert isinstance(shown, Console)
    shown.print(table)
    shown.print("x[/red] :smile:", "\x1b[31m")
    out = capsys.readouterr().out
    assert "[red]x[/red][/red]" in out and "x[/red] :smile: \\x1b[31m" in out


def test_a_log_line_is_one_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(console._Line("%(levelname)s %(message)s"))
    record = logging.LogRecord("party", logging.INFO, "", 0, "column %s", ("\x1b[2J\nINFO forged",), None)
    handler.emit(record)
    assert stream.getvalue() == "INFO column \\x1b[2J INFO forged\n"


def test_a_card_of_today_reads_as_before() -> None:
    """Names that need no escape are left alone: underscores inside words, hyphens, spaces, numbers."""
    for name in ("credit_amount", "non-anginal", "fr own", "-0.003", "1.25", "3 of 4", datetime.date.min.isoformat()):
        assert markdown(name) == name
