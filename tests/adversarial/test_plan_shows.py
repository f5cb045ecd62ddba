"""What people see before they sign: every setting that they agree to, and no session file that does without approval.

Before, noise, min_group, ledger, scores, receiver and the id rule changed the digest of a plan and none of its lines,
and the file that was to be approved could switch approval off.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.launch import run_party
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.runs.member import outlook
from secure_sccvfl.runs.member.outlook import plan_lines
from secure_sccvfl.runs.member.plan import ApprovalError, check_approvals, make_plan
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.two_parties import ADDRESSES, DESCRIPTION, people, write_data

HERE: dict[str, Any] = {"rows": None, "ledgers": {}, "estimates": {}}
PINS = {name: "ab" * 32 for name in ("party-0", "party-1", "dealer")}


@pytest.fixture
def config(tmp_path: Path) -> SessionConfig:
    options = {"dataset": str(write_data(tmp_path, people(50)))}
    return SessionConfig(
        parties=ADDRESSES, jobs=("train", "evaluate"), certificates=PINS, connect=600.0, options=options
    )


def lines(config: SessionConfig, **options: Any) -> list[str]:
    given = replace(config, options={**config.options, **options})
    return [line for line in plan_lines(make_plan(given), HERE) if not line.startswith("digest of the plan")]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"noise": "dealer"}, '  option privacy.noise = "dealer" (default "dealer+holder")'),
        ({"min_group": 1}, "  option evaluation.min_group = 1 (default 20)"),
        ({"ledger": "fresh"}, '  option privacy.ledger = "fresh"'),
        ({"scores": True}, "  option session.scores = true (default false)"),
        ({"receiver": 1}, "  option session.receiver = 1 (default -1)"),
        ({"evaluations": 1}, "  option evaluation.planned = 1 (default 4)"),
        ({"align": "revealed"}, '  option data.align = "revealed" (default "hidden")'),
        ({"card": "\x1b[2Jcard.toml"}, '  option training.card = "\\u001b[2Jcard.toml"'),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_every_option_that_is_not_the_default_is_a_line(
    config: SessionConfig, options: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunOptions, "policy", lambda self, schema=None: None)  # the card of this name is not there
    plain = lines(config)
    assert line in lines(config, **options) and line not in plain
    assert "all settings are the default" in plain


@pytest.mark.parametrize("change", [{"deadline": 5.0}, {"idle": 60.0}, {"connect": 60.0}, {"approval": "required"}])
def test_so_is_every_setting_of_the_session(config: SessionConfig, change: dict[str, Any]) -> None:
    ((name, value),) = change.items()
    assert any(line.startswith(f"  {name} = ") and str(value) in line for line in lines(replace(config, **change)))


def test_no_setting_is_without_a_line(config: SessionConfig) -> None:
    """A field of a session file that is added later must be shown too."""
    apart = {"parties", "name", "job", "jobs", "names", "certificates", "options"}
    assert {f.name for f in fields(SessionConfig)} == apart | set(outlook.SETTINGS)


def test_the_level_of_security_and_what_it_covers_is_a_line(config: SessionConfig) -> None:
    usual, active = lines(config), lines(config, security="active")
    assert any(line.startswith("security: semi-honest. This needs parties that follow") for line in usual)
    assert any(line.startswith("security: active. If a party deviates") for line in active)


def test_the_id_rule_is_a_line(config: SessionConfig, tmp_path: Path) -> None:
    assert "ids: made of column 'id'" in lines(config)
    rule = 'id = { columns = ["id"], case = "lower" }'
    (tmp_path / "own.toml").write_text(DESCRIPTION.replace('id = "id"', rule))
    assert "ids: made of column 'id', upper and lower case alike" in lines(config)


def test_without_the_lines_a_change_of_noise_shows_nowhere(
    config: SessionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: only the digest differs."""
    monkeypatch.setattr(outlook, "_settings", lambda plan: iter(()))
    assert lines(config) == lines(config, noise="dealer") == lines(config, min_group=1)


@pytest.mark.parametrize(
    ("change", "says"), [({"approval": "none"}, 'says approval = "none"'), ({"certificates": {}}, "pins no certif")]
)
def test_a_host_that_requires_approval_starts_no_session_without(
    config: SessionConfig,
    change: dict[str, Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the option, and by the variable of the host; without either the file decides."""
    given = replace(config, **change)
    assert check_approvals(given, tmp_path) == []
    with pytest.raises(ApprovalError, match=says):
        check_approvals(given, tmp_path, required=True)
    file = tmp_path / "session.toml"
    file.write_text(given.to_toml())
    started: list[int] = []
    monkeypatch.setattr("secure_sccvfl.runs.member.member.Member.run", lambda self, listener: started.append(0) or 0)
    command = ["--rank", "0", "--config", str(file), "--certs", str(tmp_path), "--out", str(tmp_path / "out")]
    assert run_party.main(command) == 0 and started == [0]
    assert run_party.main([*command, "--require-approval"]) != 0
    assert "this host requires an approved plan, and the session file" in capsys.readouterr().err
    predict = ["predict", *command, "--records", "new.csv", "--require-approval"]
    assert run_party.main(predict) != 0
    monkeypatch.setenv(run_party.REQUIRED, "1")
    assert run_party.main(command) != 0 and started == [0]
