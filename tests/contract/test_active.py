"""Active security: kernels compute what they compute in semi-honest sessions; levels do not mix; refusals; marks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.authentication.wide import Wide
from secure_sccvfl.protocols.config import ACTIVE, SEMI_HONEST, ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import InputError
from secure_sccvfl.protocols.records.key_mark import KeyMark, check_key
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.node import connect
from secure_sccvfl.protocols.session.runtime import Session, crypten, share_of
from secure_sccvfl.protocols.session.saving import restore_share, save_share, saved_mac_key
from secure_sccvfl.protocols.steps.aggregation import aggregate
from secure_sccvfl.protocols.steps.choice import withheld
from secure_sccvfl.runs.files import ModelError
from secure_sccvfl.runs.model_files import PartyModel
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.options import RunOptions
from tests.adversarial.test_resumed_heads import interrupted, resumed
from tests.support.sessions import credentials, in_threads, local_config, results, run_session, stopping
from tests.support.two_parties import OPTIONS, people, run_two, write, write_two

RNG = np.random.default_rng(4)
X, Y, NARROW = RNG.uniform(-3, 3, (6, 4)), RNG.uniform(-3, 3, (6, 4)), RNG.uniform(-1, 1, (4, 2))
SQUARE = RNG.uniform(-1, 1, (3, 4, 4))
EVEN = ring.upper_triangles((SQUARE + SQUARE.transpose(0, 2, 1)) / 8)
LOGITS, LABEL = RNG.uniform(-6, 6, (40, 1)), RNG.integers(0, 2, (40, 1))
BLOCKS = [RNG.uniform(-2, 2, (40, width)) for width in (2, 1, 1, 2, 1)]
CODES, COUNTS = RNG.integers(0, 3, 40), np.eye(4, dtype=np.int64)[RNG.integers(0, 4, 40)]
CHOICES = RNG.uniform(-1, 1, (40, 3, 2))
READABLE = RNG.random((5, 40)) > 0.2
Opened = dict[str, np.ndarray]


def symmetric(triangles: np.ndarray) -> np.ndarray:
    return np.stack([np.reshape(one, (4, 4)) for one in map(_full, triangles)])


def _full(triangle: np.ndarray) -> np.ndarray:
    full = np.zeros((4, 4))
    full[np.triu_indices(4)] = triangle
    return full + np.triu(full, 1).T


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def capped(z: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The slope of the capped loss (protocols/operations/sigmoid.py)."""
    steep, shift = 1.5 * z, np.log(2.0)
    return 0.75 * np.where(label == 0, sigmoid(steep + shift), -sigmoid(shift - steep))


Case = tuple[Callable[[Session], Any], Callable[[int], np.ndarray], float]
ONE_HOT = np.eye(3, dtype=np.int64)[CODES]


def given(session: Session, values: np.ndarray, owner: int = 1, bits: int = 16) -> Any:
    return session.owned(values if session.rank == owner else None, owner=owner, shape=values.shape, bits=bits)


def tall(session: Session) -> Any:
    blocks = [
        session.owned(block, owner=rank, shape=block.shape) for rank, block in enumerate(BLOCKS[: session.parties])
    ]
    return crypten.cat(blocks, dim=1).pinned()


def whole(parties: int) -> np.ndarray:
    return np.concatenate(BLOCKS[:parties], axis=1)


def heads(parties: int) -> np.ndarray:
    return np.linspace(-1, 1, 2 * whole(parties).shape[1]).reshape(-1, 2)


def groups(session: Session) -> Any:
    return given(session, ONE_HOT, owner=0, bits=0)


def by_group(session: Session) -> Any:
    """Counts of party 1 by groups of party 0; with active security of rows that both prove to be one-hot."""
    if not session.party.active:
        return given(session, COUNTS, bits=0).group_sums(groups(session), bound=2.0**20)
    own = {0: ONE_HOT, 1: COUNTS}.get(session.rank, np.zeros((40, 0), np.int64))
    widths, rows = [3, 4, *[0] * (session.parties - 2)], [[(0, 3)], [(0, 4)], *[[]] * (session.parties - 2)]
    members, features, *_ = session.proven_bits(own, widths, rows)
    return features.t() @ members


CASES: dict[str, Case] = {
    "shared by its owner": (
        lambda s: s.share(X if s.rank == 1 else None, owner=1, shape=X.shape),
        lambda m: X,
        1e-4,
    ),
    "sum, public factor": (lambda s: given(s, X) * 0.5 - given(s, Y, 0) + 1, lambda m: X / 2 - Y + 1, 1e-4),
    "product": (lambda s: given(s, X) * given(s, Y, 0), lambda m: X * Y, 1e-3),
    "product, rescaled": (
        lambda s: (given(s, X, bits=20) * given(s, Y, 0, 24) / 3).rescale(26),
        lambda m: X * Y / 3,
        1e-4,
    ),
    "square": (lambda s: given(s, X).square(), lambda m: X**2, 1e-3),
    "matrix product": (lambda s: given(s, X).matmul(given(s, NARROW, 0)), lambda m: X @ NARROW, 1e-3),
    "divided": (lambda s: given(s, X) / 7, lambda m: X / 7, 1e-4),
    "truncated": (lambda s: given(s, X, bits=40).rescale(16), lambda m: X, 1e-4),
    "comparison": (lambda s: given(s, X) < 0.5, lambda m: (X < 0.5) * 1.0, 0),
    "equality": (lambda s: given(s, np.rint(X)) == 1, lambda m: (np.rint(X) == 1) * 1.0, 0),
    "maximum": (lambda s: given(s, X).max(dim=1)[0], lambda m: X.max(axis=1), 1e-3),
    "sigmoid": (lambda s: given(s, LOGITS).sigmoid(bound=12), lambda m: sigmoid(LOGITS), 1e-3),
    "sigmoid, clamped": (lambda s: given(s, 90 * LOGITS).sigmoid(), lambda m: sigmoid(90 * LOGITS), 1e-3),
    "tanh": (lambda s: s.tanh(given(s, LOGITS / 2), bound=6), lambda m: np.tanh(LOGITS / 2), 1e-3),
    "log-cosh": (lambda s: s.log_cosh(given(s, LOGITS), 12), lambda m: np.log(2 * np.cosh(LOGITS / 2)), 1e-3),
    "slope of the logistic loss": (
        lambda s: given(s, LOGITS, bits=24).sigmoid_and_slope()[1],
        lambda m: sigmoid(LOGITS) * (1 - sigmoid(LOGITS)),
        2e-3,
    ),
    "capped slope": (
        lambda s: given(s, LOGITS, bits=24).capped_slope(given(s, LABEL, 0, 0), fine=False),
        lambda m: capped(LOGITS, LABEL),
        2e-3,
    ),
    "capped slope, fine": (
        lambda s: given(s, LOGITS, bits=24).capped_slope(given(s, LABEL, 0, 0), fine=True),
        lambda m: capped(LOGITS, LABEL),
        1e-5,
    ),
    "pinned matrix times heads": (
        lambda s: tall(s) @ given(s, heads(s.parties), 0, 24),
        lambda m: whole(m) @ heads(m),
        1e-3,
    ),
    "transposed": (
        lambda s: (tall(s).t() @ given(s, LOGITS, 0, 28) / 40).rescale(26),
        lambda m: whole(m).T @ LOGITS / 40,
        1e-3,
    ),
    "gram": (
        lambda s: (tall(s).gram() / 40).rescale(26),
        lambda m: ring.upper_triangles(whole(m).T @ whole(m)) / 40,
        1e-3,
    ),
    "stack": (
        lambda s: given(s, SQUARE, bits=28).pinned()[[2, 0]].each(given(s, NARROW, 0, 24)).rescale(24),
        lambda m: np.stack([SQUARE[2] @ NARROW[:, 0], SQUARE[0] @ NARROW[:, 1]], axis=1),
        1e-4,
    ),
    "doubled": (
        lambda s: given(s, EVEN, bits=30).doubled(given(s, EVEN, 0, 24), 4)[1],
        lambda m: ring.upper_triangles(symmetric(EVEN) @ symmetric(EVEN)),
        1e-5,
    ),
    "sums by group": (
        by_group,
        lambda m: COUNTS.T @ ONE_HOT,
        0,
    ),
    "selection": (lambda s: given(s, CHOICES).selected(groups(s)), lambda m: CHOICES[np.arange(40), CODES], 1e-4),
    "refused records": (
        lambda s: withheld(s, given(s, LOGITS), READABLE[s.rank], np.ones(40, bool))[0],
        lambda m: LOGITS * READABLE[:m].all(axis=0)[:, None],
        1e-3,
    ),
}


def opened(parties: int, security: str) -> Opened:
    """Every case in one session; also a sum over parties, and a release to one receiver."""
    total, single = Release("total", (0,), (ANY,), "test"), Release("single", (parties - 1,), (ANY, ANY), "test")
    releases = results(parties)

    def job(session: Session) -> tuple[Opened, Any, Any]:
        values = {}
        for name, (compute, *_) in CASES.items():
            value = compute(session)
            values[name] = np.asarray(session.open(value, releases[value.dim()]))
        summed = aggregate(session, X[session.rank], 5.0, total, minimum=2).total
        return values, summed, session.open(given(session, X), single)

    plan = ReleasePlan([*releases.values(), total, single])
    outcomes = run_session(job, parties, plan, options={"security": security})
    assert [one is not None for _, one, _ in outcomes] == [rank == 0 for rank in range(parties)]
    assert [one is not None for *_, one in outcomes] == [rank == parties - 1 for rank in range(parties)]
    for values, *_ in outcomes[1:]:
        assert all(np.array_equal(values[name], outcomes[0][0][name]) for name in CASES)
    return outcomes[0][0] | {"total": outcomes[0][1], "single": np.asarray(outcomes[-1][2])}


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_kernels_give_what_they_give_in_semi_honest_sessions(parties: int) -> None:
    active, usual = (opened(parties, security) for security in (ACTIVE, SEMI_HONEST))
    wanted = {name: (plain(parties), off) for name, (_, plain, off) in CASES.items()}
    wanted |= {"total": (X[:parties].sum(axis=0), 1e-4), "single": (X, 1e-4)}
    for name, (plain, off) in wanted.items():
        assert active[name].shape == plain.shape, name
        assert np.abs(active[name] - plain).max() <= off, name
        assert np.abs(active[name] - usual[name]).max() <= off, name


def test_a_share_without_dimensions_wraps_around_without_a_warning() -> None:
    one = Authenticated.public(np.array(-1))
    assert (one + one + one).words(0) == -3 and (one - one - one).words(0) == 1
    share = Authenticated(Wide(np.full(2, 2**64 - 1, np.uint64), np.zeros(2, np.uint64)), np.array(5, np.uint64))
    assert (share + share).words(0) == 8 and (share + share).words(1) == -2


# levels do not mix


def test_a_party_with_another_level_stops_all_before_anything_is_computed() -> None:
    config, listeners = local_config(2)
    begun = []

    def party(rank: int) -> None:
        own = replace(config, options={"security": ACTIVE} if rank else {})
        connect(own, rank, credentials(rank, 2), listeners[rank])
        begun.append(rank)

    with stopping("options.security is "):
        in_threads([partial(party, rank) for rank in range(2)])
    assert not begun


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A consortium with a model under active security, and options for jobs on it."""
    home = tmp_path_factory.mktemp("active")
    options = write_two(home, people(400, seed=5)) | {"security": ACTIVE}
    assert all(result["security"] == ACTIVE for result in run_two(TrainJob, home / "run", {**options, **OPTIONS}))
    rows = people(20, seed=7, prefix="n")
    write(home / "bank-new.csv", rows, ("amount", "age"))
    write(home / "clinic-new.csv", rows, ("s", "hours", "edu"))
    return home, {**options, "align": "exact", "model": str(home / "run")}


def decided(home: Path, name: str, options: dict[str, Any], **asked: Any) -> list[str]:
    files = [{"records": str(home / f"{party}-new.csv")} for party in ("bank", "clinic")]
    run_two(PredictJob, home / name, {**options, **asked}, files)
    return (home / name / "party-0" / "predictions.csv").read_text().splitlines()


def test_a_model_decides_under_its_own_level_alone(trained: tuple[Path, dict[str, Any]]) -> None:
    home, options = trained
    assert len(decided(home, "ask", options, what_if=True, reasons=True, certified=True)) == 21
    with pytest.raises(ModelError, match=r"^the model was trained with active security"):
        decided(home, "refused", {**options, "security": SEMI_HONEST})


def test_a_model_without_tags_is_refused_with_active_security(tmp_path: Path) -> None:
    options = write_two(tmp_path, people(400, seed=5))
    run_two(TrainJob, tmp_path / "run", {**options, **OPTIONS})
    write(tmp_path / "bank-new.csv", people(2, prefix="n"), ("amount", "age"))
    write(tmp_path / "clinic-new.csv", people(2, prefix="n"), ("s", "hours", "edu"))
    with pytest.raises(ModelError, match=r"^the model was trained with semi-honest security"):
        decided(tmp_path, "ask", {**options, "align": "exact", "model": str(tmp_path / "run"), "security": ACTIVE})


def test_a_saved_share_keeps_its_tag_and_the_part_of_the_key() -> None:
    def job(session: Session) -> tuple[np.ndarray, int]:
        value = session.share(X if session.rank == 1 else None, owner=1, shape=X.shape)
        return save_share(value), session.party.mac_key

    saved = run_session(job, 2, options={"security": ACTIVE})
    keys = [saved_mac_key([share]) for share, _ in saved]
    assert keys == [key for _, key in saved] and len(set(keys)) == 2

    def again(session: Session) -> np.ndarray:
        value = restore_share(saved[session.rank][0], 16)
        return np.asarray(session.open(value, results(2)[2]))

    same = [(key, None) for key in keys]
    assert all(
        np.abs(one - X).max() < 1e-4 for one in run_session(again, 2, mac_keys=same, options={"security": ACTIVE})
    )
    with stopping("uses another part of the MAC key than the one of its model"):
        run_session(again, 2, mac_keys=[same[0], (None, None)], options={"security": ACTIVE})


# keys that a check exposed


def test_a_mark_is_there_while_a_check_could_reveal_the_key(tmp_path: Path) -> None:
    first, second = KeyMark(tmp_path / "model"), KeyMark(tmp_path / "model")
    for mark in (first, second):
        check_key(tmp_path / "model")
        mark.set()
        with pytest.raises(InputError, match="can reveal the MAC key: train again"):
            check_key(tmp_path / "model")
        mark.clear()
    first.set()
    second.set()
    second.clear()  # of another session at the same time
    with pytest.raises(InputError):
        check_key(tmp_path / "model")
    KeyMark().set()


def test_a_model_is_not_used_again_after_a_check_failed(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    home, options = trained
    copy = tmp_path / "run"
    shutil.copytree(home / "run", copy)
    shutil.copytree(home / "sccvfl-ledgers", tmp_path / "sccvfl-ledgers")
    before = {path.relative_to(copy) for path in copy.rglob("*")}
    honest = PredictJob.load

    def changed(self: PredictJob, *args: Any) -> PartyModel:
        model = honest(self, *args)
        if self.rank:
            share_of(model.bias).pair.lo[0] += np.uint64(1)
        return model

    asked = {**options, "model": str(copy)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PredictJob, "load", changed)
        with stopping("the MACs of opened values do not verify"):
            decided(home, "altered", asked)
    added = {path.relative_to(copy) for path in copy.rglob("mac-key-exposed-*")}
    assert {path.parts[0] for path in added} == {"party-0", "party-1"} and not added & before
    with pytest.raises(InputError, match=r"^party-0/model: a check of MACs failed or was cut off"):
        decided(home, "again", asked)


@pytest.mark.parametrize("own_key", [True, False])
def test_a_run_resumes_under_its_key_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_key: bool) -> None:
    options = {**write_two(tmp_path, people(400, seed=5)), **OPTIONS, "security": ACTIVE}
    interrupted(tmp_path / "run", options)
    if own_key:
        exposed = KeyMark(tmp_path / "run" / "party-1" / "model")
        exposed.set()
        with pytest.raises(InputError, match=r"^party-1/model: a check of MACs failed"):
            resumed(tmp_path / "run", options)
        exposed.clear()
        assert resumed(tmp_path / "run", options)[0]["ok"]
    else:
        monkeypatch.setattr(TrainJob, "mac_key", lambda self, out: (None, None))
        with stopping("the MACs of opened values do not verify"):
            resumed(tmp_path / "run", options)
        assert not list(tmp_path.rglob("model.json"))


# refusals


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "aware"},
        {"mode": "dp"},
        {"kappa": 0.1},
        {"private_model": False},
        {"sketch": "clipped"},
        {"mode": "split", "private_model": False},
        {"method": "paper", "mode": "split", "private_model": False},
        {"head": "mlp", "private_model": False},
        {"conditional": True},
        {"gain": True},
        {"consistency_from": "records"},
    ],
)
def test_what_has_no_tags_is_refused_in_one_line(settings: dict[str, Any]) -> None:
    RunOptions.of({"dataset": "german", **settings})
    with pytest.raises(ConfigError, match=r"^security = active does not cover ") as refused:
        RunOptions.of({"dataset": "german", **settings, "security": ACTIVE})
    assert "\n" not in str(refused.value)


def test_hidden_alignment_and_shards_are_refused_and_own_data_are_prealigned(tmp_path: Path) -> None:
    options = write_two(tmp_path, people(40))
    own = {"dataset": options["dataset"]}
    assert (
        RunOptions.of(own).data.align == "hidden" and RunOptions.of({**own, "security": ACTIVE}).data.align == "exact"
    )
    with pytest.raises(ConfigError, match=r"^align = hidden does not work with security = active"):
        RunOptions.of({**own, "security": ACTIVE, "align": "hidden"})
    with pytest.raises(ConfigError, match=r"^.shards.: shards have no MAC tags"):
        SessionConfig(("a:7000", "b:7000"), options={"security": ACTIVE}, shards={"count": 2})
