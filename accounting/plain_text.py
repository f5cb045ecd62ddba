"""Makes text from outside (names in descriptions, ledgers, cards) harmless on a terminal and in Markdown.

The author of a description chooses the names in it, and everybody else reads them in reports and logs.
"""

from __future__ import annotations

import re
import unicodedata

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BLANK = frozenset("\t\n\r\v\f\x85\u2028\u2029")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# An underscore inside a word is not emphasis; elsewhere it is. A colon or a dot ends text that would become a link.
_SPECIAL = re.compile(r"[\\`*\[\]{}|~$]|(?<![^\W_])_|_(?![^\W_])|(?<=\{)%|(?<=:)/(?=/)|(?<=www)\.", re.IGNORECASE)
_START = re.compile(r"^(\s*\d*)([-+#=.)])(?=[-#=\s]|$)")


def plain(text: object) -> str:
    """One line that moves no cursor and turns no direction: what could is spelt out, as in \\x1b."""
    return "".join(_shown(char) for char in str(text))


def _shown(char: str) -> str:
    if char in _BLANK:
        return " "
    if char in _BIDI or unicodedata.category(char) in ("Cc", "Cs"):
        return char.encode("unicode_escape").decode()
    return char


def markdown(text: object) -> str:
    """The same words in Markdown, also for a table cell: no HTML, link, emphasis, code, formula or template."""
    marked = _SPECIAL.sub(lambda match: "\\" + match[0], plain(text))
    return _START.sub(r"\1\\\2", marked.translate(_ENTITIES))


def code(text: object) -> str:
    """The same words between backticks, outside a table."""
    return "`" + plain(text).replace("`", "'") + "`"
