"""How many rounds and bytes a run takes follows from public things alone, whatever the values are.

Before, announced numbers were text, and the length of a message was that of their digits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session import runtime
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from tests.support.sessions import run_session, stopping
from tests.support.two_parties import BANK, CLINIC, OPTIONS, People, people, run_two, write, write_data, write_two

NUMBERS = Release("numbers", (0, 1), (ANY,), "test", times=9)
VALUES = ({"a": 0.0, "b": 1.0}, {"a": -1.2345678901234567e-300, "b": 1 / 3})


def sizes_of_a_run(home: Path, seed: int) -> list[dict[str, dict[str, int]]]:
    """Rounds and bytes of each phase at each party, for other values of the same shape."""
    data = people(300, seed=seed)
    if seed == 2:
        data["hours"][:] = np.where(np.arange(300) % 2, 0.5, 0.9)
        data["s"][:] = np.arange(300) % 7 == 0
        data["y"][:] = np.arange(300) % 9 == 0
    options = {"dataset": str(write_data(home, data)), "card": str(home / "card.toml"), **OPTIONS}
    trained = run_two(TrainJob, home / "run", options)
    return sizes(trained) + sizes(run_two(EvaluateJob, home / "figures", {**options, "model": str(home / "run")}))


def sizes(results: list[Any]) -> list[dict[str, dict[str, int]]]:
    return [
        {phase: {k: v for k, v in cost.items() if k != "seconds"} for phase, cost in one["cost"].items()}
        for one in results
    ]


def test_rounds_and_bytes_of_a_training_and_an_evaluation_do_not_depend_on_the_data(tmp_path: Path) -> None:
    first, *others = (sizes_of_a_run(tmp_path / str(seed), seed) for seed in range(3))
    assert first[0] and all(other == first for other in others)


def test_nor_do_those_of_a_prediction_depend_on_cells_or_on_who_was_asked_for_before(tmp_path: Path) -> None:
    base = write_two(tmp_path, people(300))
    run_two(TrainJob, tmp_path / "run", {**base, **OPTIONS})

    def ask(name: str, bank: People, clinic: People) -> list[dict[str, dict[str, int]]]:
        files = [write(tmp_path / f"{name}-b.csv", bank, BANK), write(tmp_path / f"{name}-c.csv", clinic, CLINIC)]
        options = {**base, "align": "exact", "model": str(tmp_path / "run")}
        return sizes(run_two(PredictJob, tmp_path / name, options, [{"records": str(path)} for path in files]))

    new, other = people(20, 1, "n"), people(20, 2, "o")
    first = ask("first", new, new)
    assert ask("again", {**new, "amount": np.full(20, 0.9)}, new) == first
    unreadable = np.where(np.arange(20) < 7, "no such kind", other["edu"])
    assert ask("other", other, {**other, "edu": unreadable}) == first
    assert ask("fewer", *[{k: v[:19] for k, v in other.items()}] * 2) != first, "the number of people is public"


def bytes_of(values: dict[str, float]) -> int:
    def job(session: Session) -> int:
        before = session.total_cost.sent
        announced = session.announce({f"{session.rank} {name}": value for name, value in values.items()}, NUMBERS)
        assert [announced[f"1 {name}"] for name in values] == list(values.values()), "to the last bit"
        return session.total_cost.sent - before

    return int(run_session(job, 2, ReleasePlan([NUMBERS]))[0])


def test_an_announcement_is_as_long_as_its_names_make_it() -> None:
    assert len({bytes_of(values) for values in VALUES}) == 1
    assert len({len(json.dumps(values)) for values in VALUES}) == 2, "as text they would differ"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_announced_and_not_taken(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(session: Session) -> Any:
        return session.announce({str(session.rank): value if session.rank else 1.0}, NUMBERS)

    with pytest.raises(ExceptionGroup, match="parties failed") as stopped:
        run_session(job, 2, ReleasePlan([NUMBERS]))
    assert "a number to announce is not finite" in str(stopped.value.exceptions)
    honest, checked = np.isfinite, []

    def careless(array: Any) -> Any:
        """The sender's own check is off: the first one of each party."""
        checked.append(1)
        return np.ones_like(array, bool) if len(checked) <= 2 else honest(array)

    monkeypatch.setattr(runtime.np, "isfinite", careless)
    with stopping("party 1: sent an announcement that cannot be read"):
        run_session(job, 2, ReleasePlan([NUMBERS]))
