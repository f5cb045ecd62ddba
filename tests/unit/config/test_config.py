"""The configuration: parser, session files, listing and schema follow from the fields; the flat form is canonical."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from secure_sccvfl.config.fields import json_schema, listing, option, options_of
from secure_sccvfl.config.sections import BY_WIRE, OPTIONS, SECTIONS, Config
from secure_sccvfl.config.session_file import load_session, moved_options, top_level_schema
from secure_sccvfl.launch.arguments import given_options
from secure_sccvfl.launch.cli import main
from secure_sccvfl.launch.run_mpc import make_parser
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.training.modes.options import RunOptions

PARTIES = 'parties = ["127.0.0.1:1", "127.0.0.1:2"]\n'


def test_names_are_unique_and_every_field_is_documented() -> None:
    assert len({o.path for o in OPTIONS}) == len(BY_WIRE) == len(OPTIONS)
    assert all(o.doc and "\n" not in o.doc for o in OPTIONS)
    assert set(Config().flat()) == set(BY_WIRE)


def test_help_lists_at_most_twenty_options_and_every_field_is_a_flag() -> None:
    parser = make_parser()
    shown = [a for a in parser._actions if a.option_strings and a.help != argparse.SUPPRESS]
    assert len(shown) <= 20
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {f"--{o.flag}" for o in OPTIONS if o.flag} <= flags
    assert "--guard" in flags and "--guard" not in parser.format_help()


def test_a_new_option_is_one_field() -> None:
    """A field that nothing else names is parsed, listed, in the schema, in session files and in the flat form."""
    section = make_dataclass("Section", [("colour", int, option(3, "how blue", wire="hue"))], frozen=True)
    options_class = make_dataclass("Made", [("paint", section)], frozen=True)
    globals().update(Section=section)
    (entry,) = options_of(options_class)
    parser = argparse.ArgumentParser()
    entry.add_to(parser)
    assert parser.parse_args(["--hue", "5"]).hue == entry.check(5) == 5
    assert list(listing((entry,))) == ["[paint]", "  colour (int; default: 3)", "      how blue"]
    properties = json_schema((entry,), {})["properties"]["paint"]["properties"]
    assert properties == {"colour": {"description": "how blue", "type": "integer", "default": 3}}


def test_set_reaches_every_option_and_says_what_is_misspelt() -> None:
    def given(*arguments: str) -> dict[str, object]:
        return given_options(make_parser().parse_args(list(arguments)))

    assert given("--set", "training.proxy_penalty=0.2", "--set", "training.lambda=2") == {
        "guard": 0.2,
        "take_lambda": 2,
    }
    assert given("--set", "data.align=psi") == given("--align", "revealed") == {"align": "revealed"}
    assert given("--set", "training.lambdas=[1, 3]", "--set", "discovery.gain=true") == {
        "gain": True,
        "lambdas": [1, 3],
    }
    for text, message in (
        ("training.proxy_penalti=1", "did you mean 'training.proxy_penalty'"),
        ("discovery.gain=no", "gain must be true or false, not 'no'"),
        ("epsilon", "must look like privacy.epsilon=4"),
    ):
        with pytest.raises(ConfigError, match=message):
            given("--set", text)
    with pytest.raises(ConfigError, match="given before"):
        given("--guard", "1", "--set", "training.proxy_penalty=2")


def test_sections_of_a_session_file_are_the_flat_options(tmp_path: Path) -> None:
    flat, nested = tmp_path / "flat.toml", tmp_path / "nested.toml"
    flat.write_text(PARTIES + '[options]\ndataset = "german"\nguard = 0.2\nalign = "exact"\n')
    nested.write_text(
        PARTIES + '[data]\ndataset = "german"\nalign = "pre-aligned"\n[training]\nproxy_penalty = 0.2\n'
    )
    assert load_session(flat).digest() == load_session(nested).digest() == SessionConfig.load(flat).digest()
    assert RunOptions.of(load_session(nested).options).training.proxy_penalty == 0.2
    assert moved_options(flat).endswith(
        "dataset is data.dataset, guard is training.proxy_penalty, align is data.align"
    )
    assert moved_options(nested) == ""
    for text, message in (
        ("[training]\nproxy_penalti = 1", r"\[training\]: unknown option.*did you mean 'proxy_penalty'"),
        (
            "[options]\nguard = 1\n[training]\nproxy_penalty = 1",
            r"\[options\] has guard, and \[training\] has it too",
        ),
        ("[trainin]\nsteps = 1", "unknown setting 'trainin'"),
        ('training = "fast"', "training is a section"),
    ):
        nested.write_text(PARTIES + text)
        with pytest.raises(ConfigError, match=message):
            load_session(nested)


def test_the_list_and_the_schema_have_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    lines = capsys.readouterr().out
    assert all(f"  {o.key} (" in lines and o.doc in lines for o in OPTIONS)
    assert main(["options", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {*SECTIONS, *top_level_schema()}
    assert schema["properties"]["data"]["properties"]["align"]["enum"][0] == "pre-aligned"


def test_settings_change_by_their_flat_names_alone() -> None:
    changed = Config().changed(guard=0.5, epsilon=2.0)
    assert changed.flat() == {**Config().flat(), "guard": 0.5, "epsilon": 2.0}
    assert Config.of_flat(**changed.flat()) == changed


def test_reading_a_configuration_imports_no_torch() -> None:
    code = "import sys; from secure_sccvfl.config.rules import resolved; resolved({'dataset': 'german'}); "
    code += "from secure_sccvfl.config.session_file import load_session; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
