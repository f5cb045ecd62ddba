"""Draft the description of your data: each party from its own file, then all drafts merged into one.

    sccvfl init bank.csv --party bank --label late             writes draft-bank.toml
    sccvfl init employer.csv --party employer --protected over_40
    sccvfl init bureau.csv --party bureau --id customer
    sccvfl init --merge draft-bank.toml draft-bureau.toml draft-employer.toml --name loans
    sccvfl init --merge draft-*.toml --name loans --session session.toml --address bank=bank.example:7100

A draft has kinds, units to fill in, public ranges, categories and marks of gaps. Ranges are rounded
outward to a grid and are never the least and largest values; values in fewer than 5 records are not
listed. Still, ALL OF IT BECOMES PUBLIC among the parties: somebody at the party must read and approve
it before it is sent to whoever merges. Nobody needs another's data for that. What only the party's own
people should know is shown on the screen and not written. Then: sccvfl check loans.toml --party bank.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.arguments import answer, argument, program
from protocols.config import ConfigError


def run(options: argparse.Namespace) -> int:
    return merge(options) if options.merge else draft(options)


def draft(options: argparse.Namespace) -> int:
    """One party's draft from its own table."""
    from secure_sccvfl.data.drafts import draft_of

    if options.file is None:
        raise ConfigError("name your file, or the drafts to --merge")
    if misplaced := [name for name in ("name", "session", "address") if getattr(options, name)]:
        raise ConfigError(f"--{misplaced[0]} goes with --merge")
    party = options.party or options.file.stem
    new = draft_of(options.file, party, id_column=options.id, label=options.label, protected=options.protected)
    out = options.out or Path(f"draft-{party}.toml")
    _write(out, new.text())
    return answer(
        options,
        {"draft": str(out), "id": new.id, "features": len(new.features), "notes": new.notes},
        f"{out}: {len(new.features)} columns of {party}, id {new.id!r}",
        *(f"  {column}: {note}" for column, note in new.notes),
        f"  all of {out} becomes public among the parties: read it, fill in units and meanings, and approve it",
    )


def merge(options: argparse.Namespace) -> int:
    """One description of all drafts, and a session file if asked for."""
    from secure_sccvfl.data.drafts import merged, read_draft, session_text
    from secure_sccvfl.data.files import description_text

    if not options.name:
        raise ConfigError("--merge needs --name, the name of the data set")
    if options.file is not None or (options.address and options.session is None):
        raise ConfigError("--merge takes drafts alone, and --address goes with --session")
    spec = merged([read_draft(path) for path in _each(options.merge)], options.name)
    out = options.out or Path(f"{options.name}.toml")
    addresses = dict(_address(text) for text in options.address)
    session = session_text(spec, out.name, addresses) if options.session is not None else None
    _write(out, description_text(spec))
    if session is not None:
        _write(options.session, session)
    lines = [f"{out}: {len(spec['parties'])} parties ({', '.join(spec['parties'])}), task {spec['task']}"]
    lines.append(f"  next, at each party: sccvfl check {out} --party {next(iter(spec['parties']))}")
    if session is not None:
        lost = ", ".join(name for name in spec["parties"] if name not in addresses)
        lines.append(
            f"{options.session}: the same for every host" + (f"; write the address of {lost}" if lost else "")
        )
    return answer(options, {"description": str(out), "parties": list(spec["parties"])}, *lines)


def _each(paths: list[Path]) -> list[Path]:
    """The files that are meant, also where no shell has replaced `draft-*.toml` by them."""
    return [file for path in paths for file in (sorted(path.parent.glob(path.name)) or [path])]


def _address(text: str) -> tuple[str, str]:
    name, mark, address = text.partition("=")
    if not mark or not name:
        raise ConfigError(f"--address must look like bank=bank.example:7100, not {text!r}")
    return name, address


def _write(path: Path, text: str) -> None:
    """A new file: what people have edited is not written over."""
    if path.exists():
        raise ConfigError(f"{path} is there already; remove it, or name another file with --out")
    path.write_text(text, encoding="utf-8")


main = program(
    "init",
    run,
    argument("file", nargs="?", type=Path, help="your CSV or parquet file"),
    argument("--party", metavar="NAME", help="this party's name (default: that of the file)"),
    argument("--id", metavar="COLUMN", help="the column that names records (default: guessed)"),
    argument("--label", metavar="COLUMN", help="the column that is to be predicted, if this party has it"),
    argument("--protected", metavar="COLUMN", action="append", default=[], help="a protected column, or more"),
    argument("--merge", metavar="DRAFT", nargs="+", type=Path, help="drafts of all parties, in their order"),
    argument("--name", help="merge: name of the data set"),
    argument("--session", metavar="FILE", type=Path, help="merge: also write a session file for all hosts"),
    argument("--address", metavar="NAME=HOST:PORT", action="append", default=[], help="where a party listens"),
    argument("--out", type=Path, help="the new file (default draft-PARTY.toml, or NAME.toml)"),
)

if __name__ == "__main__":
    sys.exit(main())
