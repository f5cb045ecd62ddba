"""A number in cells and a crossing as s: training, counterfactual models and certificate, with a known truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import secure_sccvfl as scc

ROWS = 3000
CELLS = {"party": "office", "column": "age", "cells": [20, 30, 40, 50, 60, 70]}
CROSS = {
    "party": "office",
    "column": "sex x age",
    "cross": [{"column": "sex", "groups": ["f", "m"]}, {"column": "age", "cells": [20, 45, 70]}],
}
FEATURES: dict[str, dict[str, Any]] = {
    "grade": {"kind": "category", "categories": ["0", "1"]},
    "amount": {"kind": "number", "low": 0, "high": 1},
    "own": {"kind": "number", "low": 0, "high": 1},
}
CARD = """
dataset = "frames"
version = "1"
owners = ["board"]
""" + "".join(
    f'[decisions.{name}]\nrole = "{role}"\nreason = "known"\nevidence = "policy: known"\n'
    for name, role in {"grade": "M", "amount": "N", "own": "N"}.items()
)


def follows(sex: np.ndarray, age: np.ndarray) -> np.ndarray:
    """The chance of grade 1: a line in age, and a shift by sex."""
    chance: np.ndarray = 0.15 + 0.5 * (age - 20) / 50 + 0.2 * (sex == "m")
    return chance


@pytest.fixture(scope="module", params=[CELLS, CROSS], ids=["cells", "crossed"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Any]:
    rng = np.random.default_rng(0)
    sex, age = rng.choice(["f", "m"], ROWS), rng.uniform(20, 70, ROWS)
    grade = (rng.random(ROWS) < follows(sex, age)).astype(int)
    amount, own = rng.random((2, ROWS))
    late = (rng.random(ROWS) < 1 / (1 + np.exp(-(3.0 * grade + 2 * amount - 2.5)))).astype(int)
    bank = pd.DataFrame({"id": range(ROWS), "amount": amount, "own": own, "late": late})
    office = pd.DataFrame({"id": range(ROWS), "grade": grade, "sex": sex, "age": age})
    data = scc.load(
        frames={"bank": bank, "office": office},
        label=("bank", "late", [0, 1]),
        protected=request.param,
        features=FEATURES,
    )
    card = tmp_path_factory.mktemp("card") / "card.toml"
    card.write_text(CARD)
    return {
        lam: scc.train(data, 4.0, seed=0, card=card, private_model=False, lambdas=(lam,), take_lambda=lam)
        for lam in (0.0, 16.0)
    }


def test_counterfactual_models_see_flips_of_plain_training_and_a_strong_penalty_removes_them(trained: Any) -> None:
    plain, strong = (trained[lam].evaluate()["value"] for lam in (0.0, 16.0))
    for kind in ("all", "kr_all"):
        assert plain[f"fr_{kind}"] > max(0.1, 4 * plain[f"fr_null_{kind}"])
        assert strong[f"fr_{kind}"] < plain[f"fr_{kind}"] / 4
    assert strong["certified"] > plain["certified"] + 0.3


def test_the_generator_follows_the_known_shares_of_every_group(trained: Any) -> None:
    ready = trained[16.0].ready
    attribute, office = ready.data.protected[0], ready.parties[1]
    make = ready.generators(ready.roles, ready.config.generator)[1]
    ages = [20, 30, 40, 50, 60, 70] if len(attribute.factors) == 1 else [20, 45, 70]
    middle = np.add(ages[1:], ages[:-1]) / 2
    expected = (
        (follows(np.array("f"), middle) + follows(np.array("m"), middle)) / 2
        if len(attribute.factors) == 1
        else np.concatenate([follows(np.array(sex), middle) for sex in "fm"])
    )
    column = office.layout.columns(["grade"])[1]
    for source in range(len(attribute.groups)):
        rows = attribute.codes == source
        for target in range(len(attribute.groups)):
            moved = make(office.inputs[rows], source, np.full(rows.sum(), target), 0)[:, column].mean()
            assert moved == pytest.approx(expected[target], abs=0.09)


def test_no_edit_of_the_mediator_changes_a_certified_decision(trained: Any) -> None:
    model = trained[16.0]
    frame = pd.DataFrame({"id": range(200), "amount": np.linspace(0, 1, 200), "own": 0.5})
    answers = [model.predict(frame.assign(grade=grade)).to_numpy() for grade in ("0", "1")]
    certified = model.certificate(frame.assign(grade="0")).to_numpy()
    assert (certified == (answers[0] == answers[1])).all()
