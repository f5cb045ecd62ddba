"""Drafts of all parties as one description, and the skeleton of a session file. Nobody's data are needed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protocols.config import SessionConfig
from secure_sccvfl.data.cells import WRITING, DataError, cut
from secure_sccvfl.data.features import check_disjoint, check_entries, dictionary
from secure_sccvfl.data.files import check_description, read_toml, toml

JOBS = ("selftest", "train", "evaluate")
PORT = 7100
_WANTED: dict[str, Any] = {"party": str, "id": str, "file": str, "features": list}
_OPTIONAL: dict[str, Any] = {"label": dict, "task": str, "protected": list, **WRITING}


def read_draft(path: Path) -> dict[str, Any]:
    """A party's draft, as its people left it."""
    draft = read_toml(path, "draft")
    check_entries(path.name, draft, _WANTED, _OPTIONAL)
    if odd := sorted(set(draft) - {*_WANTED, *_OPTIONAL}):
        raise DataError(f"{path.name}: unknown keys {odd}; a draft is what `sccvfl init` writes")
    return draft


def merged(drafts: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """One description; DataError if the drafts do not fit together."""
    parties = [draft["party"] for draft in drafts]
    if len(set(parties)) < len(parties) or len(parties) < 2:
        raise DataError(f"a description needs drafts of two parties or more, each once, not of {', '.join(parties)}")
    keys = {draft["id"]: draft["party"] for draft in drafts}
    if len(keys) > 1:
        names = ", ".join(f"{cut(key)} at {party}" for key, party in keys.items())
        raise DataError(f"the id column has different names ({names}): rename it in the files, and in the drafts")
    holders = [draft for draft in drafts if "label" in draft]
    if len(holders) != 1:
        names = ", ".join(draft["party"] for draft in holders) or "none"
        raise DataError(f"one party must have the label (`sccvfl init --label COLUMN`), not {names}")
    protected = [{"party": draft["party"], **entry} for draft in drafts for entry in draft.get("protected", ())]
    if not protected:
        raise DataError("no draft has a protected attribute (`sccvfl init --protected COLUMN`)")
    spec = {
        "name": name,
        "task": holders[0].get("task", "binary"),
        "id": drafts[0]["id"],
        "label": {"party": holders[0]["party"], **holders[0]["label"]},
        "protected": protected,
        "parties": {
            draft["party"]: {key: draft[key] for key in ("file", *WRITING, "features") if key in draft}
            for draft in drafts
        },
    }
    check_description(spec, name)
    check_disjoint(dictionary(spec["parties"]))
    columns = {row["name"] for one in spec["parties"].values() for row in one["features"]}
    for entry in (spec["label"], *protected):
        if entry["column"] in columns:
            column = f"column {cut(entry['column'])} of {entry['party']}"
            raise DataError(f"{column} is the label or protected, and a feature too: take it out of the features")
    return spec


def session_text(spec: Mapping[str, Any], dataset: str, addresses: Mapping[str, str]) -> str:
    """A session file for all hosts; a party without an address gets one to fill in."""
    names = list(spec["parties"])
    if strangers := sorted(set(addresses) - set(names)):
        raise DataError(f"--address names {', '.join(strangers)}, which is no party; available: {', '.join(names)}")
    hosts = [addresses.get(name, f"{name.replace(' ', '-')}.example:{PORT}") for name in names]
    SessionConfig(tuple(hosts), names=tuple(names), jobs=JOBS, options={"dataset": dataset})
    lines = ["# The same file on every host, with the description next to it."]
    lines += [f"parties = {toml(hosts)}", f"names = {toml(names)}", f"jobs = {toml(list(JOBS))}"]
    return "\n".join([*lines, "", "[data]", f"dataset = {toml(dataset)}", ""])
