"""The state of a run, kept by each party.

A checkpoint holds the party's shares of the head, its own noisy tables, the public state, and what its gradient
mode adds: noisy sums that it was shown (`dp`), encoder and optimiser (`split`).

Every party writes the same numbers. The last two are kept, because a fault can find one party a step ahead of
another. To resume, the parties tell each other what they have and continue from the last common checkpoint: the
same number, written in the same session, since shares of two executions of a step do not add up to anything. A
release is never undone: tables and sums in a checkpoint are not released (or charged) again. A release that was
charged but is in no common checkpoint is charged again under the new session's name, or refused by the cap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.config.rules import REMOVED
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.residuals import Conditional
from secure_sccvfl.protocols.config import SEMI_HONEST, ConfigError
from secure_sccvfl.protocols.dealing.randomness import KEY_BYTES
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.private import naming, private
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.saving import restore_share, save_share, saved_mac_key
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.runs.model_files import below, restored_shares, restored_tables, table_arrays
from secure_sccvfl.training.engine import Measures
from secure_sccvfl.training.modules import HeadSpec
from secure_sccvfl.training.shared import SharedHead, SharedModule, Weights
from secure_sccvfl.training.trainer import State, Trial

KEPT = 2
FOLLOWS = ("align", "certificate", "records")
"""Settings that may differ because others do: they are named last."""
ADDED = {"certificate": "False", "baselines": "False", "security": SEMI_HONEST}
"""Settings that checkpoints of earlier versions do not have, and what these runs did."""
DIGEST = 64
PARTS = ("weight", "bias", "velocity", "bias_velocity")
_NONE = -1


class Checkpoints:
    """The checkpoints of one party in a folder. `settings`: what else a state follows from; public."""

    def __init__(self, folder: Path, run: str, settings: Mapping[str, str] | None = None) -> None:
        self.folder, self.run, self._session, self.settings = folder, run, run, dict(settings or {})
        self.number = 0
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, state: State) -> None:
        """Write the next checkpoint; it is complete or does not exist."""
        self.number += 1
        arrays: dict[str, Any] = {}
        heads = {"head": state.head, **{f"trial {number}": head for number, head in enumerate(state.heads)}}
        for name, head in heads.items():
            if isinstance(head, SharedModule):
                arrays |= {f"{name} weights {part}": save_share(value) for part, value in head.weights.items()}
                arrays |= {f"{name} velocity {part}": save_share(value) for part, value in head.velocity.items()}
            elif head is not None:
                arrays |= {f"{name} {part}": save_share(getattr(head.weights, part)) for part in PARTS}
                arrays |= {f"{name} scale": head.scale, f"{name} zero": np.array(head.weights.zero)}
        arrays |= table_arrays(state.noisy_tables)
        arrays |= {f"own {name}": value for name, value in state.mode_arrays.items()}
        facts = {
            "run": self.run,
            "session": self._session,
            "settings": self.settings,
            "number": self.number,
            "refreshes": state.refreshes,
            "sketches": [{**vars(one), "tables": list(one.tables)} for one in state.noisy_tables],
            "finding": None if state.assignment is None else state.assignment.as_record(),
            "conditional": None if state.conditional is None else [asdict(c) for c in state.conditional],
            "trials": [asdict(t) for t in state.trials],
            "taken": state.taken,
            "heads": len(state.heads),
            "records": state.records,
        }
        if isinstance(state.head, SharedModule):
            facts["module"] = {**asdict(state.head.spec), "outputs": state.head.outputs}
        target = self.folder / f"{self.number}.npz"
        part = target.with_suffix(".part")
        with naming(part), open(part, "wb", opener=private) as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
        part.replace(target)
        (self.folder / f"{self.number - KEPT}.npz").unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse to continue with other settings than those of the run.

        Each party checks alone, before any exchange. A model that is half of one seed's split and half of another's
        has seen records that it is tested on.
        """
        for facts in self._kept().values():
            at_start = facts["settings"]
            for name in sorted(at_start.keys() | self.settings.keys(), key=lambda name: (name in FOLLOWS, name)):
                was, now = (
                    at_start.get(name, ADDED.get(name, "none")),
                    self.settings.get(name, str(REMOVED.get(name, "none"))),
                )
                if was != now:
                    difference = f"{name} {was}, not {now}" if max(len(was), len(now)) < DIGEST else f"other {name}"
                    raise ConfigError(
                        f"cannot resume: the run began with {difference}; go on as it began, or train again"
                    )

    def resume(self, session: Session, task: Task) -> State:
        """The state of the last checkpoint that every party has, of one and the same run."""
        self.check()
        facts = self._kept()
        have = list(facts)
        if have:
            self.run = facts[have[-1]]["run"]
        have = [number for number in have if facts[number]["run"] == self.run]
        padded = np.array([*have, *[_NONE] * (KEPT - len(have))], np.int64)
        numbers_of_all = session.swap_bytes("checkpoints", padded.tobytes())
        runs_told = session.swap_bytes("run to resume", bytes.fromhex(self.run))
        sessions_here = b"".join(bytes.fromhex(facts[number]["session"]) for number in have)
        writers = session.swap_bytes("sessions of checkpoints", sessions_here.ljust(KEPT * KEY_BYTES, b"\0"))
        checkpoints_of_all = [
            _checkpoints_in(numbers, names) for numbers, names in zip(numbers_of_all, writers, strict=True)
        ]
        common = {number for number, _ in set.intersection(*checkpoints_of_all)}
        if all(checkpoints_of_all) and len(set(runs_told)) > 1:
            raise ProtocolError("the parties' checkpoints are of different runs: name the same run at every party")
        if not common:
            raise ProtocolError("the parties have no checkpoint in common: start the run again")
        self.number = max(common)
        return self._state(self.number, task)

    def _kept(self) -> dict[int, dict[str, Any]]:
        """The last checkpoints with their descriptions; those of older versions describe too little."""
        have = sorted(int(path.stem) for path in self.folder.glob("*.npz"))[-KEPT:]
        return {n: facts for n in have if {"session", "settings"} <= (facts := self._facts(n)).keys()}

    def _facts(self, number: int) -> dict[str, Any]:
        with np.load(self.folder / f"{number}.npz") as file:
            return dict(json.loads(str(file["facts"])))

    def _state(self, number: int, task: Task) -> State:
        with np.load(self.folder / f"{number}.npz") as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays["facts"]))

        def module(name: str) -> SharedModule | None:
            spec = dict(facts["module"])
            outputs = spec.pop("outputs")
            weights, velocity = (restored_shares(arrays, f"{name} {kind} ") for kind in ("weights", "velocity"))
            return SharedModule(HeadSpec(**spec), weights, velocity, task, outputs) if weights else None

        def head(name: str) -> SharedHead | SharedModule | None:
            if "module" in facts:
                return module(name)
            if f"{name} scale" not in arrays:
                return None
            weight, bias, *velocities = [restore_share(arrays[f"{name} {part}"], HEAD_BITS) for part in PARTS]
            return SharedHead(
                Weights(weight, bias, velocities[0], velocities[1], bool(arrays.get(f"{name} zero", False))),
                arrays[f"{name} scale"],
                task,
            )

        def measured(entry: Mapping[str, Any]) -> Trial:
            seen = entry["validation"]
            return Trial(entry["lam"], None if seen is None else Measures(**seen), entry["steps"])

        assignment = facts["finding"]
        return State(
            head=head("head"),
            noisy_tables=restored_tables(facts["sketches"], arrays),
            refreshes=facts["refreshes"],
            assignment=None if assignment is None else RoleAssignment.of_record(assignment),
            conditional=None
            if facts["conditional"] is None
            else tuple(Conditional(**measure) for measure in facts["conditional"]),
            trials=tuple(measured(t) for t in facts["trials"]),
            taken=facts["taken"],
            heads=tuple(head(f"trial {number}") for number in range(facts["heads"])),
            records=facts.get("records", 0),
            mode_arrays=below(arrays, "own "),
        )


def saved_key(folder: Path) -> MacKey | None:
    """This party's part of the MAC key of the last checkpoint in a folder; None without tags, or without a head."""
    last = max(folder.glob("*.npz"), key=lambda path: int(path.stem), default=None)
    if last is None:
        return None
    with np.load(last) as file:
        return saved_mac_key(file[name] for name in file.files if name.rpartition(" ")[2] in PARTS)


def _checkpoints_in(numbers: bytes, writers: bytes) -> set[tuple[int, bytes]]:
    names = [writers[at : at + KEY_BYTES] for at in range(0, len(writers), KEY_BYTES)]
    pairs = zip(np.frombuffer(numbers, np.int64).tolist(), names, strict=True)
    return {(number, name) for number, name in pairs if number != _NONE}
