"""The entry of a card that declares a use of s, and what is refused without it."""

import datetime
from dataclasses import replace
from types import SimpleNamespace

import pytest

from secure_sccvfl.policy.card import LEGAL_NOTE, USES_S, AwareEntry, PolicyCard, read_card, shipped_card
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports.policy_card import card_markdown
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modes.sealed import declared
from tests.support.aware_card import ENTRY, write_card

TODAY = datetime.date(2026, 6, 1)
FULL = AwareEntry("equal rates", "law", "board", "2026-06-01")


def test_a_card_keeps_its_entry(tmp_path):
    card = read_card(write_card(tmp_path / "card.toml"))
    assert card.aware == AwareEntry(
        "offer both groups the same rate of loans", "a test", "policy board", "2999-01-31"
    )
    assert PolicyCard.of(card.to_json()) == card
    assert "aware" not in shipped_card("german").to_json() and shipped_card("german").aware is None
    text = card_markdown(card)
    assert USES_S.capitalize() in text and LEGAL_NOTE in text and "Review due: 2999-01-31" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('purpose = "offer both groups the same rate of loans"', 'purpose = " "', "needs purpose in words"),
        (
            'legal_basis = "a test"\n',
            "",
            r"legal_basis, owner and review_due, and nothing else; got owner, purpose, review_due",
        ),
        ('owner = "policy board"', 'owner = "b"\nwhy = "x"', "and nothing else; got .*why"),
        ("2999-01-31", "soon", "'soon' is no date; write it as 2027-01-31"),
        ('owner = "policy board"', "owner = 3", "needs owner in words, got 3"),
        (ENTRY, "\naware = 3\n", "unknown|each decision"),
    ],
)
def test_an_entry_that_says_too_little_is_refused(tmp_path, old, new, message):
    assert old in ENTRY
    with pytest.raises(PolicyError, match=message):
        read_card(write_card(tmp_path / "card.toml", ENTRY.replace(old, new)))


def test_a_date_may_be_written_as_a_date_of_toml(tmp_path):
    entry = ENTRY.replace('"2999-01-31"', "2999-01-31")
    aware = read_card(write_card(tmp_path / "card.toml", entry)).aware
    assert aware is not None and aware.review_due == "2999-01-31"


def test_a_use_of_s_without_an_entry_or_after_its_review_is_refused():
    card = replace(shipped_card("german"), aware=FULL)
    assert declared(card, TODAY) == FULL
    with pytest.raises(ConfigError, match=r"was to be reviewed by 2026-06-01"):
        declared(card, TODAY + datetime.timedelta(days=1))
    for without in (None, shipped_card("german")):
        with pytest.raises(ConfigError, match=r"must declare it in an entry \[aware\]"):
            declared(without, TODAY)


def test_the_mode_refuses_what_it_does_not_support(tmp_path):
    card = str(write_card(tmp_path / "card.toml"))
    mode, schema = gradient_mode("aware"), RunOptions().schema(3)
    mode.check(RunOptions.of({"mode": "aware", "card": card}), schema)
    for settings, message in (
        ({"dp_sampling": 0.5}, "dp_sampling is for mode dp"),
        ({"card": ""}, "must declare it"),
    ):
        with pytest.raises(ConfigError, match=message):
            mode.check(RunOptions.of({"mode": "aware", "card": card, **settings}), schema)
    with pytest.raises(ConfigError, match="one protected attribute; german has 2"):
        mode.check(RunOptions.of({"mode": "aware", "card": card}), replace(schema, protected=schema.protected * 2))


def test_its_lambda_is_its_own_unless_one_is_named():
    assert RunOptions.of({"mode": "aware"}).training.lambdas == (0.1,)
    assert RunOptions.of({"mode": "aware", "lambdas": [2, 4]}).training.lambdas == (2.0, 4.0)
    assert RunOptions.of({}).training.lambdas == RunOptions().training.lambdas != (0.1,)


def test_a_card_that_leaves_a_column_to_discovery_is_refused(tmp_path):
    """The size of the model follows from the roles, and the dealer receives sizes."""
    path = write_card(tmp_path / "card.toml")
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("purpose = {")))
    options = RunOptions.of({"dataset": "german", "mode": "aware", "card": str(path)})
    with pytest.raises(ConfigError, match="decides every column; 'purpose' is left to discovery"):
        options.check(3)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize(("asked", "what"), [("scores", "scores"), ("what_if", "decisions in other groups")])
def test_values_that_reveal_s_of_a_model_that_uses_it_are_opened_on_public_data_only(pooled, asked, what):
    lasting = replace(FULL, review_due="2999-01-31")
    model = SimpleNamespace(aware=lasting, held_out=SimpleNamespace(pooled=pooled))
    job = SimpleNamespace(model=model, card=None, options=RunOptions.of_flat(**{asked: True}))
    if pooled:
        assert PredictJob._declared(job) == lasting
        return
    with pytest.raises(ConfigError, match=f"its {what} would tell s of a record"):
        PredictJob._declared(job)
