"""Tables of results: one type that renders Markdown and the terminal.

Cells are escaped, so that a name from outside cannot break a table or become a link. `MarkdownText` is text that is
Markdown already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secure_sccvfl.accounting.plain_text import markdown, plain

Row = Mapping[str, Any]


class MarkdownText(str):
    """Text that is Markdown already, such as a link or a word in bold: not escaped."""


@dataclass(frozen=True)
class Column:
    """How a table shows one value of each row.

    value: the row's key (default: the title), or a function of the row. A missing value or None is an empty cell.
    form: a format specification. scale: what a number is divided by.
    """

    title: str
    value: str | Callable[[Row], object] = ""
    form: str = ""
    scale: float | None = None

    def cell(self, row: Row) -> str:
        value = self.value(row) if callable(self.value) else row.get(self.value or self.title)
        if value is None or isinstance(value, MarkdownText):
            return value or ""
        return format(value if self.scale is None else value / self.scale, self.form)  # type: ignore[operator]


@dataclass(frozen=True)
class Table:
    """Titles of columns, and cells by row."""

    titles: Sequence[str]
    rows: Sequence[Sequence[object]]

    @classmethod
    def of(cls, rows: Iterable[Row], columns: Sequence[Column]) -> Table:
        return cls([column.title for column in columns], [[column.cell(row) for column in columns] for row in rows])

    def __str__(self) -> str:
        """As Markdown."""
        lines = [map(_escaped, self.titles), *(map(_escaped, row) for row in self.rows)]
        head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
        return "\n".join([head, "|" + "---|" * len(self.titles), *body])

    def show(self, title: str, width: int | None = None, left: Sequence[str] = (), last: str = "") -> None:
        """Print to the terminal. left: columns of text. last: a row that holds this cell ends a section."""
        import sys

        from rich.console import Console
        from rich.table import Table as Screen
        from rich.text import Text

        screen = Screen(title=plain(title))
        for name in self.titles:
            screen.add_column(plain(name), justify="left" if name in left else "right")
        for row in self.rows:
            screen.add_row(*(Text(plain(cell)) for cell in row), end_section=bool(last) and last in row)
        Console(width=None if sys.stdout.isatty() else width).print(screen)


def page(*parts: object) -> str:
    """Paragraphs and tables, with a blank line between two."""
    return "\n\n".join(str(part) for part in parts if part is not None) + "\n"


def _escaped(cell: object) -> str:
    return str(cell) if isinstance(cell, MarkdownText) else markdown(cell)
