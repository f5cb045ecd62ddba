"""Values as TOML writes them, for the files that programs make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(key: str) -> str:
    """A plain key, in quotes only where TOML needs them."""
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else toml(key)
