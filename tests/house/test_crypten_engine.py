"""CrypTen's operators are the engine: which modules still work on shares, and who asks for openings and tuples.

Modules in `ON_SHARES` still handle ring elements themselves. The list may only become shorter.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocols.dealing.party import Party
from protocols.operations import arithmetic
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.secure import SecureEngine
from tests.contract import engines, test_grid
from tests.support import mode_jobs
from tests.support.harness import run_session

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("arithmetic", "banded", "comparison", "selection", "series", "split_step", "weighted_sums")
PUBLIC = {"BAND_ROWS", "even", "FRACTION_BITS", "INPUT_LIMIT", "WIDE_BITS"}
ON_SHARES = {
    "secure_sccvfl/discovery/secure_statistics.py",
    "secure_sccvfl/run/checkpoints.py",
    "secure_sccvfl/run/model_files.py",
    "secure_sccvfl/run/train.py",
}
"""Discovery tables and files."""
RESEARCH = ("research",)


def shares_in(source: str) -> Iterator[str]:
    """Ring elements, shares and kernels that a module imports, and its uses of a session's party."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "party" and "session" in ast.unparse(node.value):
            yield ast.unparse(node)
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for name in (alias.name for alias in node.names if alias.name not in PUBLIC):
            whole = f"{node.module}.{name}"
            kernel = any(whole.startswith(f"protocols.operations.{room}") for room in KERNELS)
            share = whole.startswith("protocols.ring") or name in (
                "words_of",
                "added_words",
                "tensor_of",
                "noise_share",
            )
            if kernel or share or whole == "protocols.dealing.party.Party":
                yield whole


def test_no_other_module_works_on_shares() -> None:
    found = set()
    for path in sorted((ROOT / "secure_sccvfl").rglob("*.py")):
        name = path.relative_to(ROOT)
        if name.parts[1] not in RESEARCH and any(shares_in(path.read_text())):
            found.add(str(name))
    assert found - ON_SHARES == set(), "work on CrypTen tensors instead"
    assert ON_SHARES - found == set(), "these work on tensors now: take them off the list"


GAME, GIVES = "secure_sccvfl/security/share_probe.py", "protocols.session.game"


def test_only_the_share_distinguishing_game_takes_views_of_secrets() -> None:
    found = {
        str(path.relative_to(ROOT)) for path in (ROOT / "secure_sccvfl").rglob("*.py") if GIVES in path.read_text()
    }
    assert found == {GAME}


@pytest.mark.parametrize(
    "source",
    [
        "from protocols.operations import arithmetic",
        "from protocols.operations.banded import product",
        "from protocols.ring import Words",
        "from protocols.session.runtime import Session, words_of",
        "def f(session): return session.party.open_masked('x', [])",
        "class A:\n    def f(self): return self._session.party",
    ],
)
def test_what_works_on_shares_is_found(source: str) -> None:
    assert list(shares_in(source))
    assert not list(shares_in("from protocols.session.runtime import Session, crypten"))


# a run


BELOW = ("protocols/dealing", "protocols/operations", "protocols/net")


def origin() -> str:
    """The first frame above the kernels."""
    frame: Any = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_name == "spying" or any(place in frame.f_code.co_filename for place in BELOW)
    ):
        frame = frame.f_back
    return "?" if frame is None else str(frame.f_code.co_filename)


def asked_by(
    job: Callable[[Session], Any], monkeypatch: pytest.MonkeyPatch, plan: ReleasePlan | None = None
) -> Counter[str]:
    """Of all openings and requests for tuples at party 0: which files they come from."""
    seen: Counter[str] = Counter()

    def spied(name: str) -> Any:
        honest = getattr(Party, name)

        def spying(self: Party, *given: Any, **options: Any) -> Any:
            if self.rank == 0:
                seen[origin()] += 1
            return honest(self, *given, **options)

        return spying

    with monkeypatch.context() as patch:
        for name in ("open_masked", "open_slices", "broadcast", "collect_all", "take", "publish"):
            patch.setattr(Party, name, spied(name))
        run_session(job, 3, plan or ReleasePlan(engines.releases(3).values()))
    return seen


def trained(session: Session) -> None:
    """Edits, both kinds of descent, the choice of a head, and its logits."""
    problem = engines.Problem((3, 2, 4))
    own, engine = problem.of(session.rank, 3), SecureEngine(session, 0, [2])
    batch, penalty = own.inputs(engine)
    grid = test_grid.grid_of(problem, (0.5, 4.0))
    descent = engine.prepare_grid(batch, penalty, grid, test_grid.bounds_of(own, test_grid.guard_length(problem)))
    heads = engine.apart(test_grid.descended(engine, batch, descent, grid, "binary"))
    own.trained(engine, batch, penalty, Step(0.1, 0.5, 0.7, "l1", 0.2), 2)
    engine.check_range(heads, batch)
    kept = engine.choose(heads, batch, penalty, engines.Target("flips", 0.05))
    engine.logits(engine.with_best_temperature(kept, batch, engines.TEMPERATURES), own.x)


def test_every_opening_of_training_comes_from_a_crypten_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asked_by(trained, monkeypatch)
    assert sum(seen.values()) > 300
    assert [place for place in seen if "protocols/session" not in place] == []


@pytest.mark.parametrize("mode", mode_jobs.JOBS)
def test_every_opening_of_a_mode_comes_from_a_crypten_operator(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, plan = mode_jobs.JOBS[mode]()
    seen = asked_by(job, monkeypatch, plan)
    assert sum(seen.values()) > 20
    assert [place for place in seen if "protocols/session" not in place] == []


def test_an_opening_outside_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(session: Session) -> None:
        arithmetic.square(session.party, np.ones(3, np.int64))

    assert [Path(place).name for place in asked_by(job, monkeypatch)] == [Path(__file__).name]
