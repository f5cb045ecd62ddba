"""Session files: what is wrong is said; what is right comes back the same."""

import importlib.metadata
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import ConfigError, SessionConfig, code_digest, code_parts, split_address

TWO = ("a.example:7000", "b.example:7000")


def test_a_file_comes_back_the_same(tmp_path: Path) -> None:
    prints = dict.fromkeys(("party-0", "party-1", "dealer"), "0" * 64)
    config = SessionConfig(
        TWO,
        deadline=5,
        options={"seed": 3, "name": 'quote " and ü', "list": [1, 2]},
        jobs=("selftest", "train"),
        names=("bank", "bureau"),
        certificates=prints,
    )
    assert config.needs_approval and config.node_name(1) == "party 1 (bureau)"
    path = tmp_path / "session.toml"
    path.write_text(config.to_toml())
    loaded = SessionConfig.load(path)
    assert loaded == config and loaded.digest() == config.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parties": TWO[:1]}, "at least 2 parties"),
        ({"parties": (TWO[0], TWO[0])}, "same address"),
        ({"parties": ("nowhere", TWO[0])}, "host:port"),
        ({"parties": ("a:0", TWO[0])}, "host:port"),
        ({"parties": ("a:99999", TWO[0])}, "host:port"),
        ({"transport": "pigeon"}, "tls, gloo"),
        ({"deadline": 0}, "deadline"),
        ({"connect": 0}, "connect"),
        ({"deadline": float("nan")}, "deadline"),
        ({"idle": -1}, "idle"),
        ({"frame_limit": 10}, "frame_limit"),
        ({"names": ("bank",)}, "names"),
        ({"names": ("bank", "bank")}, "names"),
        ({"certificates": {"party-0": "0" * 64}}, "one entry for each"),
        ({"certificates": dict.fromkeys(("party-0", "party-1", "dealer"), "odd")}, "SHA-256"),
        ({"approval": "perhaps"}, "required, none"),
        ({"approval": "required"}, "must name the certificates"),
    ],
)
def test_settings_that_cannot_work(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionConfig(**{"parties": TWO, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["parties = 3", "", 'parties = ["a:1", "b:2"]\ndeadline = "soon"', 'parties = ["a:1", "b:2"]\nfoo = 1']
)
def test_files_that_cannot_work(tmp_path: Path, text: str) -> None:
    path = tmp_path / "session.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        SessionConfig.load(path)


def test_every_setting_counts_in_the_digest() -> None:
    times = {"connect": 1.0, "deadline": 61.0, "idle": 1.0}
    for key, value in {"name": "x", "job": "x", "options": {"a": 1}, "transport": "gloo", **times}.items():
        assert SessionConfig(TWO).digest() != SessionConfig(TWO, **{key: value}).digest(), key  # type: ignore[arg-type]


def test_addresses_and_a_digest_of_the_code() -> None:
    assert split_address("[::1]:80") == ("::1", 80) and split_address("h:65535") == ("h", 65535)
    assert len(code_digest()) == 32


def test_builds_of_one_version_have_the_same_code_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(torch: str) -> dict[str, str]:
        versions = {"torch": torch, "numpy": "2.4.6"}
        monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
        return code_parts.__wrapped__()

    assert parts("2.13.0") == parts("2.13.0+cpu") == parts("2.13.0+cu130") != parts("2.13.1+cpu")
