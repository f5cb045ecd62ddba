"""Values as TOML writes them, for the files that programs make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_EXACT = 1 << 53
"""From here on, a floating-point number stands for several whole ones."""


def toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key_text(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return json.dumps(int(value) if whole else value)


def key_text(key: str) -> str:
    """A plain key, in quotes only where TOML needs them."""
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else toml(key)
