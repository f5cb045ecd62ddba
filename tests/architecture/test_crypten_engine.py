"""CrypTen's operators are the engine: no module works on shares, and every opening comes from an operator."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.protocols.net.transport import Spec
from secure_sccvfl.protocols.operations import arithmetic
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.secure import SecureEngine
from tests.contract import engines, test_grid
from tests.support import golden, mode_jobs, openings
from tests.support.sessions import run_session

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("arithmetic", "banded", "comparison", "group_table")
PUBLIC = {"BAND_ROWS", "even", "FRACTION_BITS", "INPUT_LIMIT", "WIDE_BITS"}
BENCHMARKS = ("secure_sccvfl", "research", "benchmarks")


def shares_in(source: str) -> Iterator[str]:
    """Ring elements, shares and kernels that a module imports, and its uses of a session's party or of `wrap`."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("party", "wrap")
            and "session" in ast.unparse(node.value)
        ):
            yield ast.unparse(node)
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for name in (alias.name for alias in node.names if alias.name not in PUBLIC):
            whole = f"{node.module}.{name}"
            kernel = any(whole.startswith(f"secure_sccvfl.protocols.operations.{module}") for module in KERNELS)
            kernel |= whole == f"secure_sccvfl.protocols.operations.sigmoid.{name}" and name.islower()
            share = whole.startswith("secure_sccvfl.protocols.ring") or name in (
                "share_of",
                "tensor_of",
                "noise_share",
            )
            if kernel or share or whole == "secure_sccvfl.protocols.dealing.party.Party":
                yield whole


def test_no_module_works_on_shares() -> None:
    offenders = set()
    for path in sorted((ROOT / "secure_sccvfl").rglob("*.py")):
        name = path.relative_to(ROOT)
        if name.parts[:3] != BENCHMARKS and any(shares_in(path.read_text())):
            offenders.add(str(name))
    assert offenders == set(), "work on CrypTen tensors instead"


FILES = {
    *("secure_sccvfl/runs/checkpoints.py", "secure_sccvfl/runs/model_files.py"),
    *("secure_sccvfl/research/split/mode.py", "secure_sccvfl/research/split/stopping.py"),
}
SAVING = {
    "combined": {"secure_sccvfl/audit/finished_run.py"},
    "views_of_a_square": {"secure_sccvfl/audit/share_probe.py"},
    "saved_mac_key": {"secure_sccvfl/runs/checkpoints.py", "secure_sccvfl/runs/model_files.py"},
    **dict.fromkeys(("restore_share", "save_share"), FILES),
}
"""Who may save a share, restore it, combine the shares of all parties, or take views of secrets."""


def test_shares_reach_files_of_checkpoints_and_models_alone() -> None:
    importers: dict[str, set[str]] = {name: set() for name in SAVING}
    for path in [*(ROOT / "secure_sccvfl").rglob("*.py"), *(ROOT / "launch").rglob("*.py")]:
        name = path.relative_to(ROOT)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "secure_sccvfl.protocols.session.saving":
                for alias in node.names:
                    if name.parts[:3] != BENCHMARKS:
                        importers[alias.name].add(str(name))
    assert importers == SAVING


@pytest.mark.parametrize(
    "source",
    [
        "from secure_sccvfl.protocols.operations import arithmetic",
        "from secure_sccvfl.protocols.operations.banded import product",
        "from secure_sccvfl.protocols.ring import RingArray",
        "from secure_sccvfl.protocols.session.runtime import Session, share_of",
        "def f(session): return session.party.open_masked('x', [])",
        "class A:\n    def f(self): return self._session.party",
        "def f(session, words): return session.wrap(words, 16)",
        "from secure_sccvfl.protocols.operations.group_table import group_table",
        "from secure_sccvfl.protocols.operations.sigmoid import evaluate",
    ],
)
def test_what_works_on_shares_is_found(source: str) -> None:
    assert list(shares_in(source))
    assert not list(shares_in("from secure_sccvfl.protocols.session.runtime import Session, crypten"))


# a whole run


def trained(session: Session) -> None:
    """Counterfactuals, both kinds of optimizer, measures, and logits."""
    problem = engines.Problem((3, 2, 4))
    party, engine = problem.of(session.rank, 3), SecureEngine(session, 0, [2])
    batch, penalty = party.inputs(engine)
    grid = test_grid.grid_of(problem, (0.5, 4.0))
    descent = engine.second_order(batch, penalty, grid, test_grid.bounds_of(party, test_grid.guard_length(problem)))
    heads = engine.apart(test_grid.descended(engine, batch, descent, grid, "binary"))
    party.trained(engine, batch, penalty, Step(0.1, 0.5, 0.7, 0.2), 2)
    engine.check_range(heads, batch)
    engine.measure(heads, batch, penalty)
    engine.best_temperature(heads[0], batch, engines.TEMPERATURES)
    engine.logits(heads[0], party.x)


def seen_in(job: Callable[[Session], Any], plan: ReleasePlan | None = None) -> Counter[tuple[str, str]]:
    with openings.watched() as seen:
        run_session(job, 3, plan or ReleasePlan(engines.releases(3).values()))
    return seen


def test_every_opening_of_training_comes_from_a_crypten_operator() -> None:
    """With first-order steps too, which no default run takes. test_golden.py checks whole runs."""
    seen = seen_in(trained)
    assert sum(seen.values()) > 300
    assert openings.outside(seen) == []


def test_every_opening_of_mode_aware_comes_from_a_crypten_operator() -> None:
    seen = seen_in(*mode_jobs.JOBS["aware"]())
    assert sum(seen.values()) > 20
    assert openings.outside(seen) == []


@pytest.mark.parametrize(
    ("added", "noticed"),
    [
        (lambda session: arithmetic.square(session.party, np.ones(3, np.int64)), {"open_masked", "take"}),
        (lambda session: session.party.take("square", (3,)), {"take"}),
        (lambda session: session.party.transport.exchange("x", *to_all(session)), {"exchange"}),
        (lambda session: session.party.publish("x", 0, np.ones(1) if session.rank == 0 else None, ONE), {"publish"}),
        (lambda session: session.party.open_slices("x", np.ones(9, np.int64)), {"open_slices"}),
    ],
)
def test_an_opening_outside_is_noticed(added: Callable[[Session], Any], noticed: set[str]) -> None:
    """An operator next to it is not."""

    def job(session: Session) -> None:
        session.public(np.ones(3)).square()
        added(session)

    openings_outside = openings.outside(seen_in(job))
    assert {f"{name} in {Path(__file__).name}" for name in noticed} <= set(openings_outside)
    assert all(line.endswith(f" in {Path(__file__).name}") for line in openings_outside)


def test_an_opening_that_is_added_to_discovery_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is squared by a kernel, in code of the method."""
    honest = SecureStatistics.release

    def release(self: SecureStatistics, *given: Any) -> Any:
        arithmetic.square(self._session.party, np.ones(3, np.int64))
        return honest(self, *given)

    monkeypatch.setattr(SecureStatistics, "release", release)
    with openings.watched() as seen:
        golden.computed("statistics, 2 parties", tmp_path)
    openings_outside = openings.outside(seen)
    assert {"take in test_crypten_engine.py", "open_masked in test_crypten_engine.py"} <= set(openings_outside)


ONE = Spec("<f8", (1,))


def to_all(session: Session) -> tuple[dict[int, list[np.ndarray]], dict[int, list[Spec]]]:
    others = [rank for rank in range(session.parties) if rank != session.rank]
    return {rank: [np.ones(1)] for rank in others}, {rank: [ONE] for rank in others}
