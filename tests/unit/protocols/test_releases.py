"""Plans, the desk, and the hash chain."""

import json
from pathlib import Path

import pytest

from secure_sccvfl.protocols.errors import LogError, ProtocolError, UndeclaredRelease
from secure_sccvfl.protocols.records.chain import HashChain, read_chain
from secure_sccvfl.protocols.records.releases import ANY, Receipt, Release, ReleaseDesk, ReleasePlan

SCORE = Release("score", (0, 2), (3, ANY), "report", event="sketch", times=2)
FREE = Release("free", (0,), (1,), "report")
PAID = Receipt("sketch", "run sketch")


def desk(log: Path | None = None) -> ReleaseDesk:
    return ReleaseDesk(ReleasePlan([SCORE, FREE]), parties=3, log=log)


def test_a_declared_release_is_admitted_and_written(tmp_path: Path) -> None:
    log = tmp_path / "party" / "releases.jsonl"
    head = desk(log).admit(SCORE, (3, 7), PAID).head
    (line,) = read_chain(log)
    assert line["hash"] == head and line["release"] == "score" and line["shape"] == [3, 7]
    assert line["receivers"] == [0, 2] and line["event"] == "sketch"
    assert line["charge"] == "run sketch"


@pytest.mark.parametrize(
    "release",
    [
        Release("other", (0,), (3, ANY), "report"),
        Release("score", (0, 1, 2), (3, ANY), "report", event="sketch", times=2),
        Release("score", (0, 2), (3, ANY), "another purpose", event="sketch", times=2),
        Release("score", (0, 2), (3, ANY), "report", event=None, times=2),
    ],
)
def test_anything_but_the_declared_release_raises(release: Release) -> None:
    with pytest.raises(UndeclaredRelease, match="not in the run plan"):
        desk().admit(release, (3, 7), PAID)


@pytest.mark.parametrize("shape", [(2, 7), (3,), (3, 7, 1), ()])
def test_another_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(UndeclaredRelease, match="declared as"):
        desk().admit(SCORE, shape, PAID)


def test_more_often_than_declared_raises() -> None:
    at = desk()
    for number in range(2):
        at.admit(SCORE, (3, 1), Receipt("sketch", f"run sketch-{number}"))
    with pytest.raises(UndeclaredRelease, match="already made 2 times"):
        at.admit(SCORE, (3, 1), Receipt("sketch", "run sketch-2"))


@pytest.mark.parametrize(
    ("release", "shape", "receipt", "why"),
    [
        (SCORE, (3, 1), None, "needs the receipt"),
        (SCORE, (3, 1), Receipt("moments", "run moments"), "paid by sketch, not by moments"),
        (FREE, (1,), PAID, "paid by None, not by sketch"),
    ],
)
def test_what_was_not_paid_for_is_not_opened_nor_written(tmp_path, release, shape, receipt, why) -> None:
    at = desk(tmp_path / "releases.jsonl")
    with pytest.raises(UndeclaredRelease, match=why):
        at.admit(release, shape, receipt)
    assert at.chain.entries == []


def test_a_receipt_pays_once() -> None:
    at = desk()
    at.admit(SCORE, (3, 1), PAID)
    with pytest.raises(UndeclaredRelease, match="has paid for an opening already"):
        at.admit(SCORE, (3, 1), PAID)
    at.admit(SCORE, (3, 1), Receipt("sketch", "run sketch, again"))


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"purpose": ""},
        {"receivers": ()},
        {"receivers": (0, 0)},
        {"receivers": (-1,)},
        {"times": 0},
    ],
)
def test_bad_declarations_raise(bad: dict[str, object]) -> None:
    good = {"name": "a", "receivers": (0,), "shape": (), "purpose": "b"}
    with pytest.raises(ProtocolError):
        Release(**{**good, **bad})  # type: ignore[arg-type]


def test_a_receiver_that_is_no_party_raises() -> None:
    with pytest.raises(ProtocolError, match="not a party"):
        ReleaseDesk(ReleasePlan([SCORE]), parties=2)


def test_a_name_declared_twice_raises() -> None:
    with pytest.raises(ProtocolError, match="declared twice"):
        ReleasePlan([SCORE, SCORE])


def test_plans_differ_by_any_field() -> None:
    other = Release("score", (0, 2), (3, ANY), "report", event="sketch", times=3)
    assert ReleasePlan([SCORE]).digest() != ReleasePlan([other]).digest()


def chain_of(path: Path) -> list[str]:
    chain = HashChain(path)
    for number in range(4):
        chain.append({"value": number})
    return path.read_text().splitlines()


def edited(lines: list[str]) -> list[str]:
    changed = json.loads(lines[1])
    changed["value"] = 99
    return [lines[0], json.dumps(changed), *lines[2:]]


@pytest.mark.parametrize(
    "damage",
    [
        edited,
        lambda lines: lines[:1] + lines[2:],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:3], lines[3][:20]],
        lambda lines: lines[1:],
    ],
    ids=["changed", "dropped", "swapped", "repeated", "torn", "beheaded"],
)
def test_a_damaged_chain_is_detected(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "log.jsonl"
    lines = chain_of(path)
    assert len(read_chain(path)) == 4
    path.write_text("\n".join(damage(lines)) + "\n")  # type: ignore[operator]
    with pytest.raises(LogError, match="does not continue the chain"):
        read_chain(path)


def test_a_line_of_another_log_is_noticed(tmp_path: Path) -> None:
    """Its number and its hash are right; only what it follows is not."""
    for name in ("one", "other"):
        HashChain(tmp_path / name).extend([{"release": name}, {"release": "score"}])
    lines = [(tmp_path / name).read_text().splitlines()[number] for number, name in enumerate(("one", "other"))]
    (tmp_path / "spliced").write_text("\n".join(lines) + "\n")
    with pytest.raises(LogError, match="line 2 does not continue the chain"):
        read_chain(tmp_path / "spliced")


def test_a_head_stands_for_every_line_before_it() -> None:
    """Whoever rewrites an early line, with a right hash and a right link to it, cannot keep the head."""
    heads = []
    for first in ("sketch", "sketch of more"):
        chain = HashChain()
        chain.extend([{"release": first}, {"release": "score"}, {"release": "last"}])
        heads.append(chain.head)
    assert heads[0] != heads[1]


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    chain_of(tmp_path / "log.jsonl")
    with pytest.raises(FileExistsError):
        HashChain(tmp_path / "log.jsonl")
