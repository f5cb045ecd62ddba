"""What deploy/ starts is accepted by our own parsers, and what it copies is there."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from tests.multiprocess.documented import blocks, is_shell, options_of, statements

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
MODULES = {"party": "run_party", "dealer": "run_dealer"}


def substituted(text: str) -> str:
    """The value of ${NAME:-value}, and 1 for ${NAME}."""
    return re.sub(r"\$\{\w+(?::-([^}]*))?\}", lambda match: match[1] or "1", text)


def instructions(name: str) -> list[str]:
    return re.findall(rf"(?m)^{name} (.*)$", CONTAINERFILE.replace("\\\n", " "))


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(path.read_text())
    return parser["Service"]


@pytest.mark.parametrize("service", sorted(COMPOSE["services"]))
def test_compose_starts_what_our_parsers_accept(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = COMPOSE["services"][service]
    words = ["sccvfl", *map(substituted, settings["command"])]
    name, options = options_of(words, monkeypatch)
    assert name == MODULES[service]
    mounted = {PurePosixPath(text.split(":")[1]): text.split(":")[2:] for text in settings["volumes"]}
    (workdir,) = instructions("WORKDIR")[-1:]
    for path in (options.config, options.certs):
        assert PurePosixPath(workdir, path).is_relative_to(workdir), "paths are those of the folder that is mounted"
    folder = PurePosixPath(workdir)
    assert folder in mounted, "what is written outlives the container"
    assert (mounted[folder] == []) == (service == "party"), "only a party writes: its result, and its ledgers"
    if service == "party":
        assert settings["ports"] == [f"{port}:{port}" for port in instructions("EXPOSE")]
        assert options.listen == f"0.0.0.0:{instructions('EXPOSE')[0]}"
    else:
        assert "ports" not in settings
    assert settings["restart"] == "no" and settings["read_only"] and settings["cap_drop"] == ["ALL"]


def test_the_image_is_built_from_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    build = COMPOSE["x-host"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]).samefile(DEPLOY / "Containerfile")
    copied = [words[:-1] for text in instructions("COPY") if not (words := text.split())[0].startswith("--from")]
    assert copied and all((ROOT / name).exists() for words in copied for name in words)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= {name for words in copied for name in words}
    assert re.search(r"(?m)^env:", (ROOT / "Makefile").read_text()) and "make env" in instructions("RUN")
    assert instructions("ENTRYPOINT") == ['["sccvfl"]'] and instructions("USER") == ["sccvfl"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_start_what_our_parsers_accept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = unit(path)
    program, *words = shlex.split(substituted(settings["ExecStart"]))
    name, options = options_of(["sccvfl", *words], monkeypatch)
    assert name == MODULES[path.stem.removeprefix("sccvfl-")] and PurePosixPath(program).name == "sccvfl"
    home = PurePosixPath("/var/lib", settings["StateDirectory"])
    assert PurePosixPath(settings["WorkingDirectory"]) == home, (
        "ledgers are next to the description: it must be writable"
    )
    assert (
        not options.config.is_absolute() and not options.certs.is_absolute() and settings["ProtectSystem"] == "strict"
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units(path: Path) -> None:
    """The one complaint that is allowed: the program is not installed on this machine."""
    ran = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    lines = [line for line in ran.stderr.splitlines() if path.name in line]
    program = unit(path)["ExecStart"].split()[0]
    assert [line for line in lines if f"Command {program} is not executable" not in line] == []


def test_documented_containers_start_what_our_parsers_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    page = [block for block in blocks(ROOT / "docs" / "operating.md") if is_shell(block)]
    commands = [statement.words for block in page for statement in statements(block)]
    started = [words for words in commands if words[0] == "podman"]
    assert {words[1] for words in started} == {"build", "compose", "run"}
    for words in started:
        if words[1] == "run":
            options_of(words[words.index("sccvfl") :], monkeypatch)
        else:
            assert (ROOT / words[words.index("--file") + 1]).exists()
        if words[1] == "compose":
            assert words[-1] in COMPOSE["services"]


@pytest.mark.parametrize("wrong", ["dealer --config session.toml --rank 0", "party --config session.toml --out out"])
def test_a_wrong_command_would_be_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="not parsed"):
        options_of(["sccvfl", *wrong.split()], monkeypatch)
