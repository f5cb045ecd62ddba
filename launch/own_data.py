"""Your own data before a run: draft and merge descriptions, check a file, preview an alignment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from secure_sccvfl.data.drafts import Keep
from secure_sccvfl.data.features import DataError, counted
from secure_sccvfl.data.id_shapes import AS_THEY_ARE, RULES
from secure_sccvfl.launch.arguments import answer, argument, program
from secure_sccvfl.protocols.alignment.interface import AlignKind
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.console import OK, WRONG_USE


@program(
    "init",
    argument("file", nargs="?", type=Path, help="your CSV or parquet file"),
    argument("--party", metavar="NAME", help="this party's name (default: that of the file)"),
    argument("--id", metavar="COLUMN", help="the column that names records (default: guessed)"),
    argument("--label", metavar="COLUMN", help="the column that is to be predicted, if this party has it"),
    argument("--protected", metavar="COLUMN", action="append", default=[], help="a protected column, or more"),
    argument("--category", metavar="COLUMN", action="append", default=[], help="a category that is coded as numbers"),
    argument(
        "--duplicates",
        choices=get_args(Keep),
        help="write FILE-unique.csv, which keeps the first, the last or none of the records with one id, and use it",
    ),
    argument("--merge", metavar="DRAFT", nargs="+", type=Path, help="drafts of all parties, in their order"),
    argument("--name", help="merge: name of the data set"),
    argument(
        "--ids",
        choices=(*RULES, AS_THEY_ARE),
        action="append",
        default=[],
        help="merge: which ways to write an id are equal, if the drafts' shapes of ids differ",
    ),
    argument("--session", metavar="FILE", type=Path, help="merge: also write a session file for all hosts"),
    argument("--address", metavar="NAME=HOST:PORT", action="append", default=[], help="where a party listens"),
    argument("--out", type=Path, help="the new file (default draft-PARTY.toml, or NAME.toml)"),
)
def init(options: argparse.Namespace) -> int:
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

        sccvfl init bank.csv --party bank --label late --duplicates first
        sccvfl init --merge draft-*.toml --name loans --ids strip-zeros

    A repeated id is refused with its rows; --duplicates also writes a copy without, bank-unique.csv, which
    the draft names; bank.csv stays as it is. A draft has the shape of the ids (length, characters, zeros in
    front), and --merge refuses shapes that would not match: with --ids, 0012 and 12 (strip-zeros), AB and ab
    (ignore-case), or 12.0 and 12 (whole-numbers) are one person.
    """
    return merge(options) if options.merge else draft(options)


def draft(options: argparse.Namespace) -> int:
    from secure_sccvfl.data.drafts import draft_of, without_duplicates

    if options.file is None:
        raise ConfigError("name your file, or the drafts to --merge")
    if misplaced := [name for name in ("name", "session", "address", "ids") if getattr(options, name)]:
        raise ConfigError(f"--{misplaced[0]} goes with --merge")
    party, file, repaired = options.party or options.file.stem, options.file, []
    out = options.out or Path(f"draft-{party}.toml")
    if options.duplicates:
        _is_new(out)
        file, rows = without_duplicates(file, party, options.id, options.duplicates)
        if rows:
            left_out = f"{counted(len(rows), 'row')}: {', '.join(map(str, rows[:20]))}"
            repaired.append(f"{file}: {options.file} without {left_out}{', ...' if len(rows) > 20 else ''}")
    named = {"id_column": options.id, "label": options.label, "protected": options.protected}
    try:
        new = draft_of(file, party, **named, category=options.category)
    except DataError:
        if repaired:
            file.unlink()
        raise
    _write(out, new.text())
    return answer(
        options,
        {"draft": str(out), "id": new.id, "features": len(new.features), "notes": new.notes},
        *repaired,
        f"{out}: {len(new.features)} columns of {party}, id {new.id!r}: {new.id_shape.words}",
        *(f"  {column}: {note}" for column, note in new.notes),
        f"  all of {out} becomes public among the parties: read it, fill in units and meanings, and approve it",
    )


def merge(options: argparse.Namespace) -> int:
    from secure_sccvfl.data.drafts import merged, read_draft, session_text
    from secure_sccvfl.data.files import description_text

    if not options.name:
        raise ConfigError("--merge needs --name, the name of the data set")
    if options.file is not None or (options.address and options.session is None):
        raise ConfigError("--merge takes drafts alone, and --address goes with --session")
    spec = merged([read_draft(path) for path in _each(options.merge)], options.name, options.ids)
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


def _is_new(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} is there already; remove it, or name another file with --out")


def _write(path: Path, text: str) -> None:
    """A new file: what people have edited is not written over."""
    _is_new(path)
    path.write_text(text, encoding="utf-8")


@program(
    "check",
    argument("description", type=Path, help="the description of all parties"),
    argument("--party", required=True, metavar="NAME", help="whose file is checked"),
    argument("--file", type=Path, help="a file in place of the one that the description names"),
    argument("--card", default="", help="policy card whose mediators and proxies need two values or more"),
)
def check(options: argparse.Namespace) -> int:
    """Check your own file against the description, offline: every problem at once, and what to write.

        sccvfl check loans.toml --party bank                   the file that the description names
        sccvfl check loans.toml --party bank --file other.csv  another one
        sccvfl check loans.toml --party bank --json

    Cells are read as a run reads them. For each problem it shows the column, how many cells, the first rows
    (counted from the first record) with their ids, and the line of the description to change or what else
    to do. Warnings are about traps that your own columns show: one value only, an identifier, a copy of the
    label or of the protected column. Only your own files are read, and nothing is sent.
    """
    from secure_sccvfl.data.checks import check as read
    from secure_sccvfl.policy.card import named_card

    card = named_card(options.card, str(options.description))
    result = read(options.description, options.party, options.file, () if card is None else card.roles.descendants)
    lines = [f"{result.file} as {result.party}: {result.records} records, {result.columns} columns"]
    for number, problem in enumerate(result.problems, 1):
        first, second = problem.lines()
        lines += [f"  {number}. {first}", f"     {second.strip()}"]
    lines += [f"  warning: {warning}" for warning in result.warnings]
    many = counted(len(result.problems), "problem")
    lines.append(f"{many}: a run would refuse this file" if result.problems else "no problem")
    answer(options, result.as_record(), *lines)
    return WRONG_USE if result.problems else OK


@program(
    "align",
    argument("dataset", type=Path, help="the description of the data"),
    argument("--party", required=True, help="this party: its name, or its number from 0"),
    argument("--align", choices=get_args(AlignKind), default="hidden", help="the mode; default: hidden"),
    argument("--seed", type=int, default=0, help="the seed of the run, which the parts follow from"),
    argument("--dry-run", action="store_true", help="look at this party's records alone; needed"),
)
def align(options: argparse.Namespace) -> int:
    """What would an alignment reveal? One party looks at its own records before anything is sent.

        sccvfl align loans.toml --party bank --dry-run
        sccvfl align loans.toml --party bank --dry-run --align revealed

    It reads the files of this party by the rule for ids of the description, reports records without an
    id and ids that occur twice, counts the records of each part, and says what the mode would reveal to
    whom. Nothing is sent, and nobody else takes part. The alignment itself is the first phase of every
    run; job = "align" in a session file does it alone.
    """
    from secure_sccvfl.data.party_data import own_part, own_schema
    from secure_sccvfl.runs.alignment import REVEALS, own_counts

    if not options.dry_run:
        raise ConfigError(
            'add --dry-run: an alignment with the others is the first phase of a run, or job = "align" in a session '
            "file (sccvfl party)"
        )
    schema = own_schema(options.dataset)
    names = {name: rank for rank, party in enumerate(schema.parties) for name in (party, str(rank))}
    if options.party not in names:
        raise ConfigError(f"no party {options.party!r}; available: {', '.join(schema.parties)}")
    rank = names[options.party]
    counts = own_counts(own_part(options.dataset, rank, options.seed))
    record = {
        "party": schema.parties[rank],
        "align": options.align,
        "id": list(schema.id_rule.columns),
        "records": counts,
        "reveals": REVEALS[options.align],
    }
    return answer(
        options,
        record,
        f"{record['party']}: {counts['all']} records, each with a unique id ({schema.id_rule.name})",
        f"parts: {counts['train']} to train, {counts['validation']} to validate, {counts['test']} to test",
        f"align = {options.align} reveals, {REVEALS[options.align]}",
    )
