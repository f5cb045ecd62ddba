"""The layout of a finished run: on one machine a folder for each party, on a party's own host one for each job.

| | all parties on one machine | one party's host |
|---|---|---|
| training | RUN/party-K/ | OUT/train/ |
| evaluation | RUN/evaluation/party-K/ | OUT/evaluate/ |
| predictions | RUN/examples/party-K/ | OUT/predict/, OUT/predict-1/, ... |

Readers of a run use `RunFolder`, so they need not know which of the two it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.policy.card import PolicyCard, read_card
from secure_sccvfl.protocols.config import ConfigError, SessionConfig, node_folder
from secure_sccvfl.protocols.records.chain import unused_name
from secure_sccvfl.runs.files import CARD, DESCRIPTION

if TYPE_CHECKING:
    from secure_sccvfl.training.modes.options import RunOptions

TRAIN, EVALUATE, PREDICT = "train", "evaluate", "predict"
HEADS = "heads.json"
"""What all parties signed at the end of a job, in the job's folder on each host."""
COMPARED = ("releases", "audit", "ledgers", "result")
"""The digests of a statement that must be the same at all parties."""
_ON_ONE_MACHINE = {TRAIN: ".", EVALUATE: "evaluation", PREDICT: "examples"}


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. `host`: the party on whose host it is; None if all parties' folders are in it."""

    run: Path
    host: int | None = None

    @classmethod
    def of(cls, run: Path) -> RunFolder:
        """Detect the kind of folder."""
        path = run / TRAIN / HEADS
        if not (run / TRAIN).is_dir():
            return cls(run)
        try:
            return cls(run, int(json.loads(path.read_text(encoding="utf-8"))["rank"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(f"{run}: training did not end here, or {TRAIN}/{HEADS} was changed") from None

    def ranks(self, parties: int) -> list[int]:
        """The parties whose folders are here."""
        return list(range(parties)) if self.host is None else [self.host]

    @property
    def first(self) -> int:
        """A party whose folder is here: what is equal at all parties is read there."""
        return self.host or 0

    def part(self, rank: int | None = None, job: str = TRAIN) -> Path:
        """The folder of a job at a party."""
        return self._party_path(self.run / self._name(job), rank)

    def attempts(self, job: str = TRAIN, rank: int | None = None) -> list[Path]:
        """The same, with stopped attempts that were set aside, and later sessions of the same kind."""
        folders = [self.run] if self._name(job) == "." else attempts(self.run, self._name(job))
        return [self._party_path(folder, rank) for folder in folders]

    def _name(self, job: str) -> str:
        return _ON_ONE_MACHINE[job] if self.host is None else job

    def _party_path(self, folder: Path, rank: int | None) -> Path:
        return folder / f"party-{self.first if rank is None else rank}" if self.host is None else folder

    def has(self, job: str) -> bool:
        return self.part(job=job).is_dir()

    def result(self, rank: int | None = None, job: str = TRAIN) -> dict[str, Any]:
        """What a party's job returned."""
        return dict(json.loads((self.part(rank, job) / "result.json").read_text(encoding="utf-8")))

    def given_card(self) -> PolicyCard | None:
        """The policy card that the run was given."""
        path = self.part() / CARD
        return read_card(path) if path.exists() else None

    def session(self) -> SessionConfig:
        """The session file of the run."""
        path = self.run / "session.toml"
        if not path.exists():
            raise ConfigError(f"{self.run} is not the folder of a run: it has no session.toml")
        return load_session(path)

    def options(self) -> RunOptions:
        """The run's settings. The description of the data is the run's own copy, if it has one."""
        from secure_sccvfl.training.modes.options import RunOptions  # imports CrypTen, which few readers need

        settings, copy = dict(self.session().options), self.part() / DESCRIPTION
        pooled = RunOptions.of(settings).data.pooled  # then records are read, which lie next to the original
        return RunOptions.of({**settings, "dataset": str(copy)} if copy.exists() and not pooled else settings)

    def must_hold_all(self, what: str) -> None:
        """Refuse what needs the folders of all parties."""
        if self.host is not None:
            raise ConfigError(f"{self.run} is the folder of party {self.host} alone: {what}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a finished run; ConfigError if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        raise ConfigError(f"{path.parent} is not the folder of a finished run: it has no {path.name}") from None
    except ValueError:
        raise ConfigError(f"{path} cannot be read: it is torn or was changed; `audit verify` tells more") from None


def attempts(folder: Path, session: str) -> list[Path]:
    """The folder of a session of a run, and those of attempts that were stopped and set aside, in order."""
    folders = [p for p in folder.glob(f"{session}*") if re.fullmatch(rf"{session}(-\d+)?", p.name)]
    return sorted(folders, key=lambda p: int(p.name.removeprefix(session).lstrip("-") or 0))


def set_aside(folder: Path, session: str) -> None:
    """Rename the folder of a stopped session; its releases stay on record and are counted."""
    if (folder / session).exists():
        (folder / session).rename(unused_name(folder / session))


def in_order(folder: Path, stem: str) -> list[Path]:
    """audit.jsonl, then audit-1.jsonl, audit-2.jsonl, ... of resumed runs."""
    logs = [p for p in folder.glob(f"{stem}*.jsonl") if re.fullmatch(rf"{stem}(-\d+)?\.jsonl", p.name)]
    return sorted(logs, key=lambda p: int(p.stem.partition("-")[2] or 0))


def logs_in(folders: Sequence[Path], stem: str) -> list[Path]:
    """The logs of this kind in several folders."""
    return [log for folder in folders for log in in_order(folder, stem)]


def result_of(folder: Path, rank: int) -> dict[str, Any]:
    """What a party's job returned, in the folder of a session on one machine."""
    return dict(json.loads((folder / f"party-{rank}" / "result.json").read_text()))


def read_digests(job: Path) -> dict[str, Any]:
    """What was signed at the end of a job."""
    return dict(json.loads((job / HEADS).read_text(encoding="utf-8")))


def own_heads(job: Path, config: SessionConfig) -> dict[str, Any]:
    """This party's own heads in the statement of a job."""
    signed = read_digests(job)
    return dict(signed["statement"]["heads"][node_folder(signed["rank"], config.dealer)])
