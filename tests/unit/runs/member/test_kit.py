"""A start-up kit has what a member needs and no secret, and its commands are those of the documentation."""

from __future__ import annotations

import re
import shlex
import zipfile
from pathlib import Path

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.net.certificates import spoken
from secure_sccvfl.runs.member.plan import make_plan
from tests.multiprocess.documented import options_of
from tests.unit.runs.member.conftest import edit


@pytest.fixture
def authority(certificates: Path) -> str:
    return str(certificates.parent / "authority")


def test_a_kit_for_each_member_has_public_files_and_commands_alone(
    desk: Path, config: SessionConfig, authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["kit", "session.toml", "--authority", authority]) == 0
    kits = {}
    for path in sorted(desk.glob("kit-*.zip")):
        with zipfile.ZipFile(path) as archive:
            kits[path.stem] = {name: archive.read(name).decode() for name in archive.namelist()}
    public = {"session.toml", "ca.pem", "commands.txt"}
    assert set(kits["kit-dealer"]) == {*public, "dealer.pem"}
    for rank in range(3):
        assert set(kits[f"kit-party-{rank}"]) == {*public, f"party-{rank}.pem", "own.toml", "card.json"}
    assert not any("PRIVATE KEY" in text for files in kits.values() for text in files.values())
    commands = kits["kit-party-1"]["commands.txt"]
    assert spoken(make_plan(config).digest) in commands and "approvals/party-1.json" in commands
    programs = [line.split() for files in kits.values() for line in files["commands.txt"].splitlines()]
    ours = [words for words in programs if words[0] == "sccvfl"]
    assert len(ours) == 3 * 7 + 4
    for words in ours:
        options_of(words, monkeypatch)


@pytest.mark.parametrize(
    ("old", "new", "words", "message"),
    [
        (None, "", ["--member", "party-7"], "no member 'party-7'; available: party-0, party-1, party-2, dealer"),
        (None, "", ["--authority", "nowhere"], "a kit of party-0 needs nowhere/ca.pem, which is not there"),
        ('"own.toml"', '"far/own.toml"', [], "session.toml names far/own.toml, which is not next to it"),
        (
            r"party-1 = .*",
            'party-1 = "' + "0" * 64 + '"',
            [],
            "is not the certificate that session.toml pins for party-1",
        ),
        (r"\[certificates\][^\[]*", "", [], "session.toml pins no certificates: first `sccvfl certs pin"),
    ],
)
def test_a_kit_that_would_not_work_is_not_written(
    desk: Path,
    authority: str,
    capsys: pytest.CaptureFixture[str],
    old: str | None,
    new: str,
    words: list[str],
    message: str,
) -> None:
    if old is not None:
        path = desk / "session.toml"
        path.write_text(re.sub(old, new, path.read_text()))
    assert main(["kit", "session.toml", "--authority", authority, *words]) == 2
    assert message in capsys.readouterr().err and not list(desk.glob("kit-*"))


def test_a_private_key_never_gets_into_a_kit(
    desk: Path, authority: str, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (desk / "card.json").open("a") as card:
        card.write((certificates / "party-0" / "key.pem").read_text())
    assert main(["kit", "session.toml", "--authority", authority]) == 2
    assert "card.json holds a private key" in capsys.readouterr().err and not list(desk.glob("kit-*"))
    edit(desk / "session.toml", 'card = "card.json"\n', "")
    assert main(["kit", "session.toml", "--authority", authority]) == 0
    assert main(["kit", "session.toml", "--authority", authority]) == 2
    assert "kit-party-0.zip is there already" in capsys.readouterr().err


def test_no_name_in_a_session_file_makes_a_command(desk: Path, authority: str) -> None:
    session, text = desk / "session.toml", (desk / "session.toml").read_text()
    (desk / "own;touch x.toml").write_text((desk / "own.toml").read_text())
    session.write_text('name = "a\\ntouch x"\n' + text.replace('"own.toml"', '"own;touch x.toml"'))
    assert main(["kit", "session.toml", "--authority", authority, "--member", "party-0"]) == 0
    with zipfile.ZipFile(desk / "kit-party-0.zip") as archive:
        lines = archive.read("commands.txt").decode().splitlines()
    assert all(line.startswith(("# ", "sccvfl ")) for line in lines)
    assert any(shlex.split(line)[:3] == ["sccvfl", "check", "own;touch x.toml"] for line in lines)
