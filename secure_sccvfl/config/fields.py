"""How a field of the configuration describes itself, and everything that is derived from its description.

A field is one line, `option(default, "documentation", ...)`. Parsers, session files, plans, the list of options and
the JSON Schema all follow from it. Its `wire` name is its key in the flat form that session files of earlier
versions, run folders, checkpoints and plan digests hold.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from secure_sccvfl.data.registry import imported
from secure_sccvfl.protocols.config import ConfigError, unknown_name, wrong_kind


@dataclass(frozen=True)
class Option:
    """One field as it describes itself.

    wire: its flat name, by default the name of the field. flag: its command-line flag ("" for none), by default the
    flat name. shown: listed in `--help`. registry: import path of the registry that names its values; a Literal type
    needs none. synonyms: current names of values whose flat form is older. inferred: what its default follows from,
    where that is not the same for every run. The section and the type come from the class that has the field.
    """

    default: Any
    doc: str
    wire: str = ""
    flag: str | None = None
    shown: bool = False
    registry: str = ""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    inferred: str = ""
    section: str = ""
    attribute: str = ""
    hint: Any = str

    @property
    def key(self) -> str:
        """Its key in the section; `lambda_` is `lambda` there."""
        return self.attribute.rstrip("_")

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def is_list(self) -> bool:
        return get_origin(self.hint) is tuple

    @property
    def values(self) -> tuple[str, ...]:
        """The values of the flat form; empty: any of its type."""
        if self.registry:
            return tuple(imported(self.registry))
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that people write, by their current names."""
        current = {old: new for new, old in self.synonyms.items()}
        return tuple(current.get(value, value) for value in self.values)

    @property
    def type_name(self) -> str:
        if self.values:
            return " | ".join(self.choices)
        return "numbers" if self.is_list else str(self.hint.__name__)

    @property
    def default_text(self) -> str:
        shown = str(self.default).lower() if isinstance(self.default, bool) else f"{self.default}"
        shown = ", ".join(f"{v:g}" for v in self.default) if self.is_list else shown
        return self.inferred or shown or "none"

    def canonical(self, value: Any) -> Any:
        """The name of a value in the flat form."""
        return self.synonyms.get(value, value) if isinstance(value, str) else value

    def check(self, value: Any) -> Any:
        """The flat value; one of another type raises ConfigError ("no" is text, which Python would read as true)."""
        value = self.canonical(value)
        if self.values:
            if value not in self.values:
                raise ConfigError(f"no {self.wire} {value!r}; available: {', '.join(self.choices)}")
        elif self.is_list:
            if not isinstance(value, (list, tuple)) or any(wrong_kind(v, float) for v in value):
                raise ConfigError(f"{self.wire} must be a list of numbers, not {value!r}")
        elif (problem := wrong_kind(value, self.hint)) is not None:
            raise ConfigError(f"{self.wire} {problem}")
        return value

    def add_to(self, parser: argparse._ActionsContainer, *, shown: bool = False) -> None:
        """The field as an argument of a program; its destination is the flat name. shown: in its help in any case."""
        given: dict[str, Any] = {"dest": self.wire, "help": f"{self.doc} (default: {self.default_text})"}
        if not (self.shown or shown):
            given["help"] = argparse.SUPPRESS
        if self.hint is bool:
            given["action"] = argparse.BooleanOptionalAction
        elif self.values:
            given |= {"choices": (*self.choices, *self.synonyms.values()), "metavar": f"{{{','.join(self.choices)}}}"}
        elif self.is_list:
            given |= {"type": float, "nargs": "+"}
        else:
            given |= {"type": self.hint, "metavar": self.key.upper()}
        parser.add_argument(f"--{self.flag}", **given)

    def schema(self) -> dict[str, Any]:
        types = {bool: "boolean", int: "integer", float: "number", str: "string"}
        entry: dict[str, Any] = {"description": self.doc}
        if self.values:
            entry["enum"] = [*self.choices, *self.synonyms.values()]
        elif self.is_list:
            entry |= {"type": "array", "items": {"type": "number"}}
        else:
            entry["type"] = types[self.hint]
        return entry if self.inferred else {**entry, "default": self.default}


def option(default: Any, doc: str, **facts: Any) -> Any:
    """A field of a section: its default, its documentation, and further facts of `Option`."""
    return field(default=default, metadata={"option": Option(default, doc, **facts)})


def options_of(config: type) -> tuple[Option, ...]:
    return tuple(
        replace(
            entry := f.metadata["option"],
            wire=entry.wire or f.name,
            flag=(entry.wire or f.name).replace("_", "-") if entry.flag is None else entry.flag,
            section=name,
            attribute=f.name,
            hint=get_type_hints(section)[f.name],
        )
        for name, section in get_type_hints(config).items()
        for f in fields(section)
    )


def parsed_setting(text: str, options: tuple[Option, ...]) -> tuple[str, Any]:
    """Flat name and value of `section.key=value`, the argument of `--set`."""
    path, mark, value = text.partition("=")
    entry = {o.path: o for o in options}.get(path.strip())
    if not mark:
        raise ConfigError(f"--set must look like privacy.epsilon=4, not {text!r}")
    if entry is None:
        raise ConfigError(unknown_name("option", path.strip(), [o.path for o in options]))
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return entry.wire, value.strip()
    return entry.wire, float(parsed) if entry.hint is float and type(parsed) is int else parsed


def listing(options: tuple[Option, ...]) -> Iterator[str]:
    """All options by section, for people: name, type, default, documentation."""
    section = ""
    for entry in options:
        if entry.section != section:
            section = entry.section
            yield f"[{section}]"
        yield f"  {entry.key} ({entry.type_name}; default: {entry.default_text})"
        yield f"      {entry.doc}"


def json_schema(options: tuple[Option, ...], session: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a session file: `session` describes its top level, the options its sections."""
    sections: dict[str, dict[str, Any]] = {}
    for entry in options:
        sections.setdefault(entry.section, {})[entry.key] = entry.schema()
    tables = {
        name: {"type": "object", "additionalProperties": False, "properties": p} for name, p in sections.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "secure_sccvfl session file",
        "type": "object",
        "required": ["parties"],
        "properties": {**session, **tables},
    }
