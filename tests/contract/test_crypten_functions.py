"""CrypTen's tensors tell the truth: every public function of the three kinds is right, or raises.

All cases of one kind run in a few sessions of two parties and of three. Names are found by introspection: a function
without an entry in the table fails.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from protocols.errors import Unavailable
from protocols.records.releases import ReleasePlan
from protocols.session import binding
from protocols.session.binding_functions import IN_PLACE, NO_GRADIENT
from protocols.session.runtime import Session, crypten
from tests.contract.crypten_cases import (
    Case,
    Public,
    Refused,
    Trial,
    computed,
    expected,
    gradient_room,
    shared,
    trials,
)
from tests.contract.crypten_mpc import MPC
from tests.contract.crypten_shares import ARITHMETIC, BINARY
from tests.support.harness import results, run_session

TABLE = {"MPCTensor": MPC, "ArithmeticSharedTensor": ARITHMETIC, "BinarySharedTensor": BINARY}
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "crypten.md"
SESSIONS = {"MPCTensor": 6, "ArithmeticSharedTensor": 1, "BinarySharedTensor": 2}
"""Long jobs are cut, so that each stays far from the harness' time limit on a busy machine."""
DIMENSIONS = range(7)
TIMES = 1_000_000
# fmt: off
NO_FUNCTIONS = frozenset({
    "__class__", "__dict__", "__doc__", "__getattr__", "__getattribute__", "__init__", "__init_subclass__",
    "__module__", "__new__", "__subclasshook__", "__weakref__",
})
# fmt: on
EXAMPLE = torch.tensor([[1.0, -2.0, 3.0, 0.5]] * 3, dtype=torch.float64)

Got = list[torch.Tensor] | Exception


@dataclass
class Outcome:
    """What sessions made of all entries of a kind."""

    got: dict[str, list[tuple[Trial, Got]]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """Refusals and public answers that were not as they must be."""


def outcome(kind: str, parties: int) -> Outcome:
    plan = ReleasePlan(results(parties, DIMENSIONS, TIMES).values())
    whole = Outcome()
    for part in range(SESSIONS[kind]):
        names = list(TABLE[kind])[part :: SESSIONS[kind]]
        made = run_session(functools.partial(run_all, kind=kind, names=names), parties, plan=plan)[0]
        whole.got |= made.got
        whole.wrong |= made.wrong
    return whole


def run_all(session: Session, kind: str, names: list[str]) -> Outcome:
    made = Outcome()
    waiting: list[tuple[Any, list[torch.Tensor]]] = []
    for name in names:
        passed_on = kind == "MPCTensor" and name in ARITHMETIC
        made.got[name], made.wrong[name] = [], []
        for entry in TABLE[kind][name]:
            if isinstance(entry, Case):
                for trial in trials(name, entry, kind, session.parties, passed_on):
                    kept: list[torch.Tensor] = []
                    try:
                        waiting += [(value, kept) for value in computed(session, trial, kind)]
                        made.got[name].append((trial, kept))
                    except (Exception, AssertionError) as error:
                        made.got[name].append((trial, error))
            else:
                made.wrong[name] += answer(session, kind, entry)
    open_all(session, waiting)
    return made


def open_all(session: Session, waiting: list[tuple[Any, list[torch.Tensor]]]) -> None:
    """All results in few rounds."""
    releases = results(session.parties, DIMENSIONS, TIMES)
    for start in range(0, len(waiting), 100):
        batch = waiting[start : start + 100]
        for (_, kept), plain in zip(
            batch, session.open_each([(value, releases[value.dim()]) for value, _ in batch]), strict=True
        ):
            assert plain is not None
            kept.append(plain.double())


def answer(session: Session, kind: str, entry: Refused | Public) -> list[str]:
    """What is wrong with a refusal or a public answer."""
    value = shared(session, EXAMPLE, 16, kind)
    if isinstance(entry, Public):
        got, wanted = entry.call(value), (entry.reference or entry.call)(EXAMPLE)
        return [] if got == wanted else [f"{got} where torch says {wanted}"]
    try:
        entry.call(value)
    except entry.error as error:
        line = str(error)
        return [] if entry.says in line and "\n" not in line else [f"says {line!r}"]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return ["did not raise"]


def faults(made: Outcome, name: str) -> list[str]:
    """What is wrong with one function."""
    wrong = list(made.wrong[name])
    for trial, got in made.got[name]:
        if isinstance(got, Exception):
            # Integers may refuse what would need a fraction, and nothing else.
            if not (trial.case.in_place and trial.bits[0] == 0 and "integers cannot take fractions" in str(got)):
                wrong.append(f"{trial}: {type(got).__name__}: {got}")
            continue
        case = gradient_room(trial.case) if trial.gradient else trial.case
        for value, reference in zip(got, expected(trial), strict=True):
            if not case.close(value, reference.detach().double()):
                off = (value - reference).abs().max() if value.shape == reference.shape else value.shape
                wrong.append(f"{trial}: off by {off}")
    return wrong


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("kind", TABLE)
def test_every_function_is_right_or_raises(kind: str, parties: int) -> None:
    made = outcome(kind, parties)
    assert {name: wrong for name in TABLE[kind] if (wrong := faults(made, name))} == {}
    assert set(made.got) == set(made.wrong) == set(TABLE[kind]), "every function was called"


def test_a_fault_is_noticed() -> None:
    """A wrong value, an unexpected error and a missing refusal each are faults; a right value is none."""
    case = Case(lambda x: x, shapes=((2,),))
    trial = Trial("x", case, (16,), "plain")
    right = expected(trial)
    for got, count in ((right, 0), ([right[0] + 1], 1), (ValueError("no"), 1)):
        assert len(faults(Outcome({"x": [(trial, got)]}, {"x": []}), "x")) == count
    assert faults(Outcome({"x": []}, {"x": ["did not raise"]}), "x") == ["did not raise"]


def test_a_wrong_value_is_noticed() -> None:
    """The comparison can fail: one unit more than a case allows, or another shape."""
    case = Case(lambda x: x, units=1)
    ones = torch.ones(2)
    assert case.close(ones + 2.0**-16, ones)
    assert not case.close(ones + 1.1 * 2.0**-16, ones)
    assert not case.close(torch.ones(1), ones)


def public_names(kind: str) -> set[str]:
    """What a user of the tensor can call, by any of CrypTen's ways to a function."""
    run_session(lambda session: None, 2)  # a session replaces what must not stay
    Tensor = getattr(crypten.mpc, kind, None) or getattr(crypten.mpc.primitives, kind)
    names = {name for name in dir(Tensor) if is_function(Tensor, name)}
    if kind == "MPCTensor":
        names |= set(crypten.gradients.FUNCTION_REGISTRY) | set(Tensor.PYTHON_BUILTIN)
        names |= {f"{name}_" for name in IN_PLACE}
    return names


def is_function(Tensor: Any, name: str) -> bool:
    if name.strip("_").isupper() and not callable(getattr(Tensor, name)):
        return False  # a constant
    if name.startswith("__"):
        return name not in NO_FUNCTIONS and getattr(Tensor, name) is not getattr(object, name, None)
    return not name.startswith("_")


@pytest.mark.parametrize("kind", TABLE)
def test_no_function_is_forgotten(kind: str) -> None:
    assert public_names(kind) == set(TABLE[kind])


def test_other_in_place_forms_raise() -> None:
    names = {name for name in public_names("MPCTensor") if not name.endswith("_")}
    tried = []

    def job(session: Session) -> None:
        value = shared(session, EXAMPLE, 16, "MPCTensor")
        for name in sorted(names - IN_PLACE):
            with pytest.raises(Unavailable, match=rf"^{name}_ is not available on a session$"):
                getattr(value, f"{name}_")
            tried.append(name)

    run_session(job, 2)
    assert len(tried) == 2 * len(names - IN_PLACE) > 100
    assert all(hasattr(torch.Tensor, f"{name}_") for name in IN_PLACE)


def test_functions_without_gradients_raise_where_one_is_asked_for() -> None:
    def job(session: Session) -> None:
        value = shared(session, EXAMPLE, 16, "MPCTensor")
        value.requires_grad = True
        for name in NO_GRADIENT:
            with pytest.raises(Unavailable, match=f"^{name} with gradients is not available on a session$"):
                getattr(value, name)
            with crypten.no_grad():
                assert callable(getattr(value, name))

    run_session(job, 2)


# what the document says


def documented(heading: str) -> set[str]:
    """The names in one line of the document."""
    (line,) = re.findall(rf"^- {re.escape(heading)}: (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", line))


@pytest.mark.parametrize("kind", TABLE)
def test_the_document_lists_what_is_not_available(kind: str) -> None:
    refusals = {
        name: [isinstance(entry, Refused) and entry.says == Refused.says for entry in entries]
        for name, entries in TABLE[kind].items()
    }
    assert documented(f"`{kind}`, never") == {name for name, found in refusals.items() if all(found)}
    some = {name for name, found in refusals.items() if any(found) and not all(found)}
    assert documented(f"`{kind}`, in part") == some


def test_the_document_lists_the_rest() -> None:
    assert documented("written in place") == {f"{name}_" for name in IN_PLACE}
    assert documented("without gradients") == NO_GRADIENT
    assert documented("of the package") == set(binding.UNAVAILABLE)
    openings = {
        name
        for entries in TABLE.values()
        for name, listed in entries.items()
        for entry in listed
        if isinstance(entry, Refused) and "Session.open" in entry.says
    }
    assert documented("openings") == openings
    assert "docs/crypten.md" in (DOCUMENT.parents[1] / "README.md").read_text()
