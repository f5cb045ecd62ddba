"""Session files: the top level is `protocols.config.SessionConfig`, the sections are those of `Config`."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from secure_sccvfl.config.sections import BY_WIRE, SECTIONS, flattened
from secure_sccvfl.protocols.config import ConfigError, SessionConfig


def load_session(path: Path) -> SessionConfig:
    """Read a session file with sections, or with the flat [options] of earlier versions."""
    return SessionConfig.load(path, _with_flat_options)


def _with_flat_options(file: dict[str, Any]) -> dict[str, Any]:
    tables = {name: file[name] for name in SECTIONS if name in file}
    flat, older = flattened(tables), file.get("options", {})
    if not isinstance(older, dict):
        return file
    older = {name: BY_WIRE[name].canonical(value) if name in BY_WIRE else value for name, value in older.items()}
    if twice := sorted(set(flat) & set(older)):
        raise ConfigError(f"[options] has {twice[0]}, and [{BY_WIRE[twice[0]].section}] has it too: keep one")
    return {**{k: v for k, v in file.items() if k not in tables}, "options": {**older, **flat}}


def moved_options(path: Path) -> str:
    """One line that names where the flat options of an earlier session file are now; "" if it has none."""
    older = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("options", {})
    moved = [f"{name} is {BY_WIRE[name].path}" for name in older if name in BY_WIRE]
    return f"{path}: [options] is the form of earlier versions, still read: {', '.join(moved)}" if moved else ""


def top_level_schema() -> dict[str, Any]:
    types = {str: "string", float: "number", int: "integer"}
    hints = get_type_hints(SessionConfig)
    return {
        f.name: {"type": types[hints[f.name]]}
        if hints[f.name] in types
        else {"type": "object"}
        if f.default is dataclasses.MISSING and f.default_factory is not dataclasses.MISSING
        else {"type": "array", "items": {"type": "string"}}
        for f in dataclasses.fields(SessionConfig)
    }
