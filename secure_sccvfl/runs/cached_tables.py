"""Tables that were paid for, at one party of a run: kept next to the ledger, and used again if all parties agree.

Before a run with kept tables opens anything, every party looks for its own file, checks it alone, and tells the
others a number: it fits, or why not. All stop together if one does not. Then they compare a digest of the releases,
so that nobody trains with the tables of another run. Nothing of a table is sent. What a run needs and was not kept is
refused here, before it starts; nothing is ever charged on the side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.config.sections import CACHED
from secure_sccvfl.discovery.cached_releases import (
    CachedRelease,
    CachedReleaseError,
    CachedReleases,
    cached_files,
    load_releases,
    save_releases,
)
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import NOISY_TABLES, charge_number, statistics_charges
from secure_sccvfl.runs.files import run_names, tables_used
from secure_sccvfl.runs.model_files import model_folder
from secure_sccvfl.training.modes.options import RunOptions

FITS, NONE, DAMAGED, DESCRIPTION, SPLIT, RECORDS, UNPAID, OTHERWISE = range(8)
WHY = {
    NONE: "has no cached releases of that run next to its ledger",
    DAMAGED: "has cached releases that were changed or cannot be read",
    DESCRIPTION: "has tables of another description: other columns, bins or public ranges",
    SPLIT: "has tables of the same records, split otherwise: use that run's seed, split, private_model, gain",
    RECORDS: "has tables of other records than those to train on now",
    UNPAID: "has tables that no charge in its ledger paid for",
    OTHERWISE: "has tables of records that were brought together otherwise: use the align of that run",
}
WHOLE = "all"
"""The digest of the records of all parts together, next to those of the parts."""


@dataclass(frozen=True)
class About:
    """What the tables of this run must be about."""

    schema: str
    records: Mapping[str, str]
    align: str = "exact"


class TableFile:
    """The kept tables of a run that makes its own: a file that grows with every release."""

    def __init__(self, folder: Path, tables: CachedReleases, run: str) -> None:
        """`tables`: without releases; a run that resumes goes on with the file that its first session began."""
        self._folder, self._run, self.tables = folder, run, tables
        for path in cached_files(folder):
            if path.stem == tables.runs[0]:
                self.tables = load_releases(path)

    def keep(self, name: str, release: CachedRelease) -> None:
        self.tables = self.tables.with_release(name, release, self._run)
        save_releases(self._folder, self.tables)


def agreed_tables(
    session: Session, folder: Path, options: RunOptions, budget: Budget, about: About
) -> CachedReleases:
    """Run by all parties together, before anything is opened: the kept tables that the options name."""
    state, tables = _fitting(session.rank, folder, options, budget, about)
    states = session.tell_all("kept tables", state)
    wrong = next(((rank, s) for rank, s in enumerate(states) if s != FITS), None)
    if wrong is not None:
        raise ProtocolError(f"party {wrong[0]} {WHY[wrong[1]]}; nothing was opened or charged")
    if tables is None:
        raise RuntimeError("tables that fit were not found")
    if len(set(session.swap_bytes("releases of the kept tables", tables.ids))) > 1:
        raise ProtocolError("the parties' cached tables are of different releases: name the same run at every party")
    _check_covered(tables, options)
    return tables


def _fitting(
    rank: int, folder: Path, options: RunOptions, budget: Budget, about: About
) -> tuple[int, CachedReleases | None]:
    runs = (
        None if options.privacy.cached_tables == CACHED else _sessions_of(Path(options.privacy.cached_tables), rank)
    )
    state: int = NONE
    fitting: list[CachedReleases] = []
    for path in cached_files(folder):
        try:
            tables = load_releases(path)
        except CachedReleaseError:
            state = max(state, DAMAGED) if runs is None or path.stem in runs else state
            continue
        if runs is not None and not runs & set(tables.runs):
            continue
        verdict = _fit(tables, rank, budget, about)
        state = max(state, verdict)
        if verdict == FITS:
            fitting.append(tables)
    if not fitting:
        return state, None
    order = {charge.key: number for number, charge in enumerate(budget.charges)}
    return FITS, max(fitting, key=lambda kept: max(order[r.key] for r in kept.releases.values()))


def _fit(tables: CachedReleases, rank: int, budget: Budget, about: About) -> int:
    if tables.schema != about.schema or tables.rank != rank:
        return DESCRIPTION
    if tables.align != about.align:
        return OTHERWISE
    if tables.records != about.records:
        return SPLIT if tables.records.get(WHOLE) == about.records[WHOLE] else RECORDS
    return FITS if tables.is_paid(budget) else UNPAID


def _sessions_of(run: Path, rank: int) -> set[str]:
    folder = model_folder(str(run), rank).parent
    names = {*run_names(folder), *tables_used(folder)}
    if not names:
        raise ConfigError(f"{run} is not the folder of a run; tables = {CACHED!r} takes the last ones that fit")
    return names


def _check_covered(tables: CachedReleases, options: RunOptions) -> None:
    """Refuse a run that needs a statistic which was never opened. More refreshes than were kept are left out."""
    config = options.train_config()
    for name in statistics_charges(config, config.discovery):
        if charge_number(name) == 0 and name not in tables.releases:
            raise ConfigError(f"{name!r} was never opened in that run: choose settings without it, or pay again")
    length = tables.releases[NOISY_TABLES.charged_as(0)].numbers.get("length")
    clip = options.discovery.clip if options.discovery.table_kind == "clipped" else None
    if length != clip:
        kind = "counts" if length is None else f"clipped to {length:g}"
        raise ConfigError(f"the cached releases are {kind}: set table_kind and clip as they are, or release again")


def check_tabled(tables: CachedReleases, wanted: Collection[str]) -> None:
    """Refuse a run that needs the table of a column which has none. wanted: `RunOptions.tabled`, empty for all."""
    lacking = sorted(set(wanted) - set(tables.tabled)) if wanted else ["all columns"]
    if tables.tabled and lacking:
        raise ConfigError(
            f"the cached tables are of {', '.join(tables.tabled)} alone, as its card decided every column; "
            f"this run needs {', '.join(lacking)}: keep to that card, or release again; nothing was opened or charged"
        )


def tables_record(tables: CachedReleases) -> dict[str, Any]:
    """What results and reports say of the tables that were used; the same at every party."""
    return {"runs": list(tables.runs), "releases": sorted(r.key for r in tables.releases.values())}


def tables_in_words(tables: CachedReleases, private_model: bool) -> str:
    """One line, said before anything runs. private_model: whether this run charges a head."""
    return (
        f"statistics of s are those kept of run {tables.runs[-1][:12]} ({len(tables.releases)} releases, paid for): "
        f"no table is opened or charged again; what was not kept is left out; "
        f"{'the head of this run is charged' if private_model else 'the model is not private and is not charged'}"
    )
