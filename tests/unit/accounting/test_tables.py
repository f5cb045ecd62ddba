"""Tables render what rows hold, and nothing in a cell breaks them."""

from __future__ import annotations

import pytest

from secure_sccvfl.accounting.tables import Column, MarkdownText, Table, page

ROWS = [{"name": "a|b", "seconds": 0.25, "bytes": 1500}, {"name": "[c](d)", "seconds": None}]
COLUMNS = (
    Column("name"),
    Column("ms", "seconds", ".1f", 1e-3),
    Column("kB", "bytes", ".1f", 1e3),
    Column("more", lambda row: MarkdownText("**yes**") if "bytes" in row else None),
)


def test_cells_are_scaled_formatted_and_escaped() -> None:
    assert str(Table.of(ROWS, COLUMNS)).splitlines() == [
        "| name | ms | kB | more |",
        "|---|---|---|---|",
        "| a\\|b | 250.0 | 1.5 | **yes** |",
        "| \\[c\\](d) |  |  |  |",
    ]


def test_a_table_on_the_terminal_has_every_cell_and_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Table(("name", "ms"), [("bad \x1b[31m name", 1.5), ("plain", 2)]).show("title", 60, ("name",), "plain")
    output = capsys.readouterr().out
    assert "title" in output and "1.5" in output and "plain" in output
    assert "\x1b" not in output and r"\x1b[31m name" in output


def test_a_page_leaves_out_what_is_none() -> None:
    assert page("text", None, Table(("a",), [(1,)])) == "text\n\n| a |\n|---|\n| 1 |\n"
