"""V_leak: secret figures are the plaintext ones; they find a leak where one is, and chance where none is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.training.engine import CURVATURE
from secure_sccvfl.training.leak import Leak, adversaries_alone, balanced_targets, leaks
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from tests.support.harness import run_session

PARTIES, HOLDER, FLOOR = 3, 1, 20
EVERYONE = tuple(range(PARTIES))
PLAN = [
    Release("columns", EVERYONE, (ANY,), "test"),
    Release("leak", EVERYONE, (4,), "test", times=2),
]
ROWS = (300, 200)


def problem(groups: int, strength: float, seed: int = 0) -> tuple[list[np.ndarray], list[dict[int, np.ndarray]]]:
    """Groups of unlike sizes, and columns of which those of party 0 follow s; columns of a party are not alone."""
    rng = np.random.default_rng(seed)
    share = np.array([0.75, 0.25]) if groups == 2 else np.array([0.6, 0.25, 0.15])
    codes, rows = [], []
    for count in ROWS:
        s = rng.choice(groups, count, p=share)
        blocks = {rank: rng.normal(size=(count, 4)) @ (np.eye(4) + 0.5) + 3.0 for rank in EVERYONE}
        blocks[0][:, 1] += strength * np.eye(groups)[s][:, -1]
        blocks[0][:, 2] += strength * np.eye(groups)[s][:, 0]
        codes.append(s)
        rows.append(blocks)
    return codes, rows


def measured(engine: Any, codes: list[Any], rows: list[dict[int, np.ndarray]], groups: int, floor: int) -> Leak:
    """The leak of what this process holds, by a descent of the adversary's own."""
    steep, ridge = CURVATURE["binary"], {rank: np.full(block.shape[1], 0.05) for rank, block in rows[0].items()}
    label = np.zeros(ROWS[0]) if isinstance(engine, PlainEngine) or engine.session.rank == 0 else None
    check = None if label is None else np.zeros(ROWS[1])
    batches = [engine.bind(part, known, ridge) for part, known in zip(rows, (label, check), strict=True)]
    flat = {rank: steep * (block**2).mean(axis=0) + ridge[rank] for rank, block in rows[0].items()}
    known = [SimpleNamespace(name="s", groups=tuple(map(str, range(groups))), codes=code) for code in codes]
    guessers = adversaries_alone(engine, batches[0], flat, steep, known[:1])
    found = leaks(engine, guessers, batches[1], known[1:], floor, lambda event, told: None)["s"]
    return Leak(**found)


def in_plaintext(groups: int, strength: float, floor: int = FLOOR) -> Leak:
    codes, rows = problem(groups, strength)
    return measured(PlainEngine(), codes, rows, groups, floor)


def in_secret(groups: int, strength: float, floor: int = FLOOR) -> list[Any]:
    codes, rows = problem(groups, strength)

    def job(session: Any) -> Any:
        engine = SecureEngine(session, 0, [HOLDER])
        mine = [{session.rank: part[session.rank]} for part in rows]
        held = codes if session.rank == HOLDER else [None, None]
        found = measured(engine, held, mine, groups, floor)
        return found, session.costs["leak"].rounds, [entry["release"] for entry in session.released]

    return run_session(job, PARTIES, ReleasePlan(PLAN))


@pytest.mark.parametrize(("groups", "counted", "floor"), [(2, 2, FLOOR), (3, 3, FLOOR), (3, 2, 2 * FLOOR)])
def test_the_secret_leak_is_the_plain_one_and_only_its_figures_are_opened(
    groups: int, counted: int, floor: int
) -> None:
    """Fixed point may turn a guess whose fitted values nearly agree: at most one record of each group here."""
    expected = in_plaintext(groups, 2.0, floor)
    for found, rounds, released in in_secret(groups, 2.0, floor):
        assert released == ["columns", "leak"]
        assert found.groups == expected.groups == counted and found.chance == 1 / counted
        assert found.largest == pytest.approx(expected.largest, abs=1e-6)
        assert found.balanced == pytest.approx(expected.balanced, abs=1 / floor / counted)
        assert found.recovered == pytest.approx(expected.recovered, abs=1.2 / ROWS[1])
        if groups == 2:
            assert rounds == 4 + 1 + 4 + 8 + 2, "fit, masks of validation records, fitted values, guesses, opening"


def test_a_leak_is_found_and_chance_where_there_is_none() -> None:
    """Nothing to find: within three standard errors of chance (seeded). Naming the larger group is no recovery."""
    none, some = in_plaintext(2, 0.0), in_plaintext(2, 3.0)
    error = 0.5 * np.sqrt(0.25 / 150 + 0.25 / 50)
    assert abs(none.balanced - 0.5) < 3 * error < 0.13 < some.balanced - 0.5
    assert none.recovered < none.largest < some.recovered


def test_a_group_with_too_few_records_takes_no_part() -> None:
    codes, rows = problem(3, 2.0)
    codes[1][codes[1] == 2] = 0
    codes[1][:5] = 2
    made = measured(PlainEngine(), codes, rows, 3, FLOOR)
    assert made.groups == 2 and made.chance == 0.5
    sizes = np.bincount(codes[1])
    assert made.largest == sizes.max() / (ROWS[1] - 5), "the small group is in no figure"
    alone = measured(PlainEngine(), codes, rows, 3, 190)
    assert alone == Leak(None, None, None, None, 0)


@pytest.mark.parametrize("groups", [2, 3])
def test_no_figure_tells_of_a_group_below_the_floor(groups: int) -> None:
    """Differencing: all records minus the large groups. The one person of a small group is recovered or is not."""
    _, rows = problem(groups, 0.0)
    codes = np.arange(ROWS[1]) % (groups - 1)
    codes[7] = groups - 1
    right = np.ones(ROWS[1], bool)
    guesses = []
    for is_recovered in (True, False):
        right[7] = is_recovered
        guesses.append(np.where(right, codes, 0))
    told = [recovered(guess, rows[1], codes, groups, FLOOR) for guess in guesses]
    assert told[0] == told[1]
    assert told[0][3] == groups - 1, "how many groups count"
    if groups == 2:
        assert told[0][:3] == (0.0, 0.0, 0.0), "of a single group nothing is opened"
    within = recovered(guesses[1], rows[1], codes, groups, 1)
    assert within != recovered(guesses[0], rows[1], codes, groups, 1), "else no test"


def recovered(guess: np.ndarray, rows: Any, codes: np.ndarray, groups: int, floor: int) -> tuple[float, ...]:
    """Figures of a head that guesses these groups, whatever the records."""
    one_hot, engine = np.eye(groups)[guess], PlainEngine()
    head: Any = lambda rows: one_hot[:, 1:] - one_hot[:, :1] if groups == 2 else one_hot  # noqa: E731
    batch = engine.bind(rows, np.zeros(len(codes)), {rank: np.zeros(block.shape[1]) for rank, block in rows.items()})
    return engine.recovered(head, batch, codes, 0, groups, floor)


def test_targets_weigh_every_group_alike_and_stay_in_the_ring() -> None:
    codes = np.array([0] * 90 + [1] * 10)
    two = balanced_targets(codes, 2)
    assert two is not None and two.sum() == pytest.approx(0) and np.abs(two).max() == 1
    three = balanced_targets(codes, 3)
    assert three is not None and np.allclose(three.sum(axis=0), [10, 10, 0]), "a group without a record has no weight"
