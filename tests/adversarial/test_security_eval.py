"""The security evaluation on real transcripts: a sound run passes, and each switched-off defence is caught."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.audit import inference
from secure_sccvfl.audit.attacks.catalogue import NO_GAIN
from secure_sccvfl.audit.bounds import audit
from secure_sccvfl.audit.evaluation import ATTACK, Row, ViewAttacks
from secure_sccvfl.audit.finished_run import FinishedRun, Target, contents, seen_by_network, write_records
from secure_sccvfl.audit.inference import Inference, dependence, gain_interval, infer
from secure_sccvfl.audit.report import assemble, checks, markdown
from secure_sccvfl.audit.share_probe import columns, drawn, held
from secure_sccvfl.launch import run_dealer, run_mpc, run_party, security_eval
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.errors import LocalError
from secure_sccvfl.protocols.net.link import HEADER
from secure_sccvfl.protocols.net.transport import describe
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.records.transcript import LIMIT, Transcript, read_transcript
from secure_sccvfl.research.split.mode import SplitConfig
from tests.adversarial.recorded import OpeningJob, no_masks, open_gradients, record
from tests.support.chance import confirmed
from tests.support.randomness import fresh
from tests.support.sessions import run_session

RARE = 0.004
"""How often a leak is called in a sound run: masks are new in every run."""
TIMES = 4
"""So many fresh runs in a row must each tell something: RARE^4 = 2.6e-10. What tells without masks, tells always."""


@pytest.fixture(scope="module", autouse=True)
def quick_choice() -> Iterator[None]:
    """The attacker chooses its columns by two folds instead of five. What is called a leak rests on other records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "FOLDS", 2)
        yield


@pytest.fixture(scope="module")
@fresh
def sound(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return record(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def maskless(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    with pytest.MonkeyPatch.context() as patch:
        no_masks(patch)
        return record(tmp_path_factory.mktemp("maskless"))


def verdicts(run: FinishedRun, *wanted: tuple[Target, tuple[int, ...] | str]) -> list[bool | None]:
    """Whether a leak is called for each of these views."""
    attacks = ViewAttacks(run)
    for target, view in wanted:
        truth = run.truth(target)
        if isinstance(view, str):
            seen = run.seen_by_dealer() if view == "dealer" else run.seen_by_network()
            attacks.add(ATTACK[target], view, truth, None, seen, promise=NO_GAIN)
        else:
            assert run.holder(target) not in view
            seen, signals = run.seen(view), run.signals(view)
            attacks.add(
                ATTACK[target], run.name(view), truth, run.own_columns(view), seen, signals=signals, promise=NO_GAIN
            )
    attacks.decide(RARE)
    return [row.leak for row in attacks.rows if row.promise == NO_GAIN]


def leaks(first: FinishedRun, folder: Path, *wanted: tuple[Target, tuple[int, ...] | str]) -> bool:
    """Whether a leak is called in this run, and in every other one that is then made."""
    runs = itertools.chain([first], (record(folder / str(number)) for number in itertools.count()))
    return confirmed(lambda: True in verdicts(next(runs), *wanted), TIMES)


@pytest.mark.chance(1e-9)  # RARE to the power of TIMES
def test_a_sound_run_reveals_nothing(sound: FinishedRun, tmp_path: Path) -> None:
    assert (sound.holder("s"), sound.holder("y")) == (1, 0)
    assert not leaks(sound, tmp_path, ("s", (0, 2)), ("y", (1, 2)), ("s", "dealer"), ("y", "network"))


def test_all_coalitions_without_the_holder_are_looked_at(sound: FinishedRun) -> None:
    assert sound.coalitions("s") == [(0,), (2,), (0, 2)]
    assert sound.coalitions("y") == [(1,), (2,), (1, 2)]
    assert sound.name((0,)) == "label holder bank" and sound.name((1, 2)) == "parties employer+bureau"


def test_missing_masks_are_caught(maskless: FinishedRun) -> None:
    assert verdicts(maskless, ("s", (2,)), ("y", (2,))) == [True, True]


def test_opened_gradients_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_gradients(monkeypatch)
    run = record(tmp_path, OpeningJob)
    assert verdicts(run, ("y", (2,))) == [True]
    assert any(
        f.kind == "release" and f.step == "gradients" for f in read_transcript(tmp_path / "party-2/transcript")
    )


def test_mode_split_gives_s_away_and_the_evaluation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a linear attacker, who finds nothing in the gradients of the warm-up, which an older run kept alone."""
    monkeypatch.setattr(inference, "CHOICES", ("logreg",))
    run = record(tmp_path, mode="split", steps=20)
    assert verdicts(run, ("s", (2,)), ("y", (2,))) == [True, True]
    truth, columns_of_party, signals = run.truth("s"), run.own_columns((2,)), run.signals((2,))
    assert signals.shape[1] == 20 + SplitConfig().warmup

    control = infer(columns_of_party, None, truth, 0)

    def gain(used: np.ndarray) -> float:
        inference = infer(columns_of_party, None, truth, 0, used)
        return gain_interval(inference.chosen, inference.against(control), inference.truth, 1 - RARE)[1]

    assert gain(signals) > 0 >= gain(signals[:, : SplitConfig().warmup])


def in_the_clear(run: FinishedRun, folder: Path) -> Path:
    """The same frames in TLS records that encrypt nothing."""
    folder.mkdir()
    nodes = ["party-0", "party-1", "party-2", "dealer"]
    frames = [list(read_transcript(run.folder / node / "transcript")) for node in nodes]
    for rank in range(3):
        for caller in range(rank + 1, 4):
            for source, target, way in ((caller, rank, "to"), (rank, caller, "from")):
                plain = bytearray(b"handshake")
                for frame in frames[source]:
                    if frame.way == "out" and target in frame.peers:
                        header = describe(frame.step, frame.specs) if frame.kind == "data" else b""
                        plain += bytes(HEADER.size) + header + b"".join(a.tobytes() for a in frame.arrays)
                pieces = (plain[at : at + 16384] for at in range(0, len(plain), 16384))
                records = (b"\x17\x03\x03" + (len(p) + 17).to_bytes(2) + p + bytes(17) for p in pieces)
                (folder / f"{rank}-{caller}-{way}.bin").write_bytes(b"".join(records))
    return folder


@pytest.mark.chance(1e-9)  # RARE to the power of TIMES: keys of TLS are always fresh
def test_a_network_that_is_not_encrypted_is_caught(
    maskless: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same words encrypted are not: it is TLS that hides them here."""
    no_masks(monkeypatch)
    assert not leaks(maskless, tmp_path, ("s", "network"))
    network = maskless.folder / "network"
    network.rename(tmp_path / "kept")
    in_the_clear(maskless, network)
    assert verdicts(maskless, ("s", "network")) == [True]


def test_the_wire_is_lined_up_with_the_frames(maskless: FinishedRun, tmp_path: Path) -> None:
    folder = in_the_clear(maskless, tmp_path / "clear")
    paths = {n: maskless.folder / p / "transcript" for n, p in enumerate(["party-0", "party-1", "party-2", "dealer"])}
    signals = [
        s
        for s in seen_by_network(folder, paths, maskless.records)
        if s.source[:3] == ("wire", "masked block", "1 to 0")
    ]
    sent = [f.arrays[0] for f in read_transcript(paths[1]) if f.way == "out" and f.step == "masked block"]
    rows = [a for a in sent if len(a) == maskless.records]
    assert signals and len(signals) == len(rows)
    assert all(np.array_equal(s.words, a) for s, a in zip(signals, rows, strict=True))


def test_what_the_tap_saw_is_not_what_was_sent(sound: FinishedRun) -> None:
    sent = [
        f for f in read_transcript(sound.folder / "party-1/transcript") if f.way == "out" and f.step == "masked block"
    ]
    needle = sent[0].arrays[0].tobytes()[:64]
    streams = [p.read_bytes() for p in sorted((sound.folder / "network").glob("*.bin"))]
    assert sum(len(s) for s in streams) > 1_000_000
    assert not any(needle in s for s in streams)
    assert all(len(contents(s)) < len(s) for s in streams)


def game(
    monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[pytest.MonkeyPatch], None] | None
) -> tuple[bool, float]:
    """Whether the coalition of parties 1 and 2 tells party 0's secrets apart, and how often it is right."""
    with monkeypatch.context() as patch:
        if sabotage:
            sabotage(patch)
        parts = run_session(lambda session: held(session, 0, 1000), 3, ReleasePlan([]))[1:]
    truth, seen = drawn(1000, 0), columns(parts)
    inference = infer(None, seen, truth, 0)
    gain, low, _ = gain_interval(inference.chosen, None, inference.truth, 0.999)
    return low > 0 or dependence(seen, truth, 0) < 0.001, gain


def short_masks(patch: pytest.MonkeyPatch) -> None:
    """Eight bits in the place of 64."""
    sound = tuples.Field.expand
    patch.setattr(tuples.Field, "expand", lambda self, draw, rank: sound(self, draw, rank) & 0xFF)


@pytest.mark.chance(1e-9)  # in one game .002: .001 for its interval, .001 for dependence; four in a row 2e-11
def test_shares_of_two_secrets_cannot_be_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not confirmed(lambda: game(monkeypatch, None)[0], TIMES)


@pytest.mark.parametrize("sabotage", [no_masks, short_masks])
def test_missing_and_short_masks_are_detected(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    caught, gain = game(monkeypatch, sabotage)
    assert caught and gain > 0.4


def test_one_telling_column_among_thousands_is_noticed_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 500)
    noise = (rng.integers(-(2**63), 2**63 - 1, (500, 3000)) / 2**63).astype(np.float32)
    assert dependence(noise, truth, 0) > 0.01
    telling = noise.copy()
    telling[:, 1234] += 0.5 * truth
    assert dependence(telling, truth, 0) < 0.001
    columns_of_party = rng.normal(size=(500, 5))
    inference, control = infer(columns_of_party, telling, truth, 0), infer(columns_of_party, None, truth, 0)
    assert gain_interval(inference.chosen, control.chosen, inference.truth, 0.95)[1] > 0


def test_the_test_of_columns_holds_its_level() -> None:
    """Under shuffled truths its p-values are uniform: few small ones in many trials."""
    rng = np.random.default_rng(1)
    seen = rng.normal(size=(120, 50)).astype(np.float32)
    small = sum(dependence(seen, rng.permutation(np.arange(120) % 2), k) < 0.1 for k in range(30))
    assert small <= 9  # binomial(30, .1): 10 or more has a chance of .05 %


def by_halves(seen: np.ndarray, truth: np.ndarray, half: np.ndarray) -> Inference:
    """The simplest attacker: which side of the middle of the means that the other half shows."""
    guess = np.zeros(len(truth), int)
    for labelled in (half, ~half):
        low, high = (seen[labelled & (truth == group)].mean() for group in (0, 1))
        guess[~labelled] = (seen[~labelled] > (low + high) / 2) == (high > low)
    return Inference(truth, guess, {})


def test_a_column_of_noise_is_called_a_leak_no_more_often_than_said(sound: FinishedRun) -> None:
    """Both halves err alike: intervals that took them for independent would call 18 % instead of 10 % here."""
    rng, called, trials, truth = np.random.default_rng(2), 0, 300, np.arange(400) % 2
    for _ in range(trials):
        attacks = ViewAttacks(sound)
        attacks.rows = [Row("aia", "noise", None, 0.5, 0.4, 0.6, 0.5, promise=NO_GAIN)]
        attacks._kept["aia", "noise"] = by_halves(rng.normal(size=400), truth, rng.permutation(400) < 200), None
        attacks.decide(error=0.2)
        called += bool(attacks.rows[0].leak)
    assert called <= 45  # binomial(300, .1): more has a chance of .1 %


def test_gain_is_paired() -> None:
    truth = np.repeat([0, 1], 200)
    same = np.zeros(400, int)
    assert gain_interval(same, same, truth, 0.95) == (0.0, 0.0, 0.0)
    gain, low, high = gain_interval(truth, same, truth, 0.95)
    assert (gain, low, high) == (0.5, 0.5, 0.5)


def test_a_report_says_what_does_not_hold(sound: FinishedRun) -> None:
    rng = np.random.default_rng(0)
    noise = (rng.normal(0, 1.4, 2000), rng.normal(1, 1.4, 2000))
    rows = [
        Row("aia", "dealer", None, 0.7, 0.6, 0.8, 0.5, 0.5, 0.2, 0.1, 0.3, 0.7, NO_GAIN, 0.2, True),
        Row("aia", "dealer", 10, 0.6, 0.5, 0.7, 0.5, 0.5),
        Row("pgd", "white box of this run", 0.2, 0.1, 0.05, 0.15, 0.0),
        Row("pgd", "white box of erm", 0.2, 0.08, 0.05, 0.11, 0.0),
    ]
    report = assemble(sound, rows, {"sketch": audit(*noise, 1.426, 1e-5)}, 1.0)
    heads = [c["check"] for c in report["checks"][4:]]
    assert report["ok"] is False and [c["holds"] for c in report["checks"][:4]] == [False, False, True, True]
    assert len(heads) == 2 and all("head" in name for name in heads), "charged, and not audited here"
    assert (
        "**leak**" in markdown(report)
        and "promise not met" in markdown(report)
        and "target not met" in markdown(report)
    )
    assert set(json.loads(json.dumps(report))["rows"][0]) >= {"attack", "view", "strength", "rate", "gain_high"}
    assert [c["holds"] for c in checks([], {"sketch": audit(noise[0], noise[1] + 4, 1.426, 1e-5)})] == [False, False]


def test_transcripts_are_private_bounded_and_never_silent(sound: FinishedRun, tmp_path: Path) -> None:
    for path in sound.folder.glob("*/transcript/*"):
        assert path.stat().st_mode & 0o077 == 0
    kept = Transcript(tmp_path / "t", limit=100)
    with pytest.raises(LocalError, match="larger than 100 bytes"):
        kept.note("in", [0], "data", "step", [np.zeros(20)])
    kept.close()
    with pytest.raises(ConfigError, match="already exists"):
        Transcript(tmp_path / "t", LIMIT)
    with pytest.raises(ConfigError, match="make the run with --transcript"):
        list(read_transcript(tmp_path / "nothing"))


def test_mistakes_give_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in (
        ([str(tmp_path)], "is not the folder of a run"),
        ([str(tmp_path), "--seed", "1"], "--seed goes with --fresh"),
    ):
        assert security_eval.main(arguments) == 2
        assert line in capsys.readouterr().err
    description = tmp_path / "loans.toml"
    description.write_text("")
    assert (
        run_mpc.main(["--dataset", str(description), "--parties", "3", "--transcript", "--out", str(tmp_path / "r")])
        == 2
    )
    assert "benchmark or --pooled" in capsys.readouterr().err


def test_transcripts_of_own_data_are_refused_by_hand_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, transcript = tmp_path / "session.toml", tmp_path / "transcript"
    asked = ["--config", str(config), "--transcript", str(transcript)]
    for options in ({"dataset": "loans.toml"}, {"dataset": "german", "pooled": False}):
        parties = ("127.0.0.1:1", "127.0.0.1:2")
        config.write_text(SessionConfig(parties, job="train", options=options).to_toml())
        assert run_party.main([*asked, "--rank", "0", "--out", str(tmp_path / "out")]) == 2
        assert "benchmark or --pooled" in capsys.readouterr().err
        assert run_dealer.main(asked) == 2
        assert "benchmark or --pooled" in capsys.readouterr().err
    assert not transcript.exists()


def test_records_can_be_read_back(sound: FinishedRun, tmp_path: Path) -> None:
    import pandas as pd

    rows = sound.split.test[:40]
    write_records(sound.data, rows, tmp_path / "r.csv")
    frame = pd.read_csv(tmp_path / "r.csv", dtype="string", keep_default_na=False)
    read = np.column_stack([f.read(frame[f.name]) for f in sound.data.features])
    assert np.array_equal(read, sound.data.values[rows], equal_nan=True)
