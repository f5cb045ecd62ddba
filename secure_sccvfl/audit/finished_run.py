"""What each process of a finished run held about the training records: before the run, and after it.

Before: own columns, and the label or s if the party is its holder. After: what its transcript holds by record, the
gradients of its own activations in all steps of mode `split`, and the noisy tables that were released to it, as
evidence for s of its own records. Of a process, only what it recorded of its own links and releases is read. The
truth comes from the pooled benchmark data.

*Transcripts.* An array with one axis as long as the records says something about each of them, in order: masked
openings, shares, corrections, releases. Where a party sent the same kind of array to all others and received theirs,
it also knows the sum (what was opened) and the exclusive or. Every ring element gives two columns: its value, and its
low 16 bits (where fractions are). Sources with many arrays of one kind (one for each step of training) also give
their mean, in case masks were biased. Data without rows (the dealer's requests) are cut into as many pieces as there
are records. `MOST_WORDS` bounds the columns; every source is served in turn. Releases have a separate bound, so that
what was opened to somebody does not give way to masked elements, of which there are far more.

*The network* sees TLS records. The protocol is public, so anyone who taps the wire knows which frame comes when and
how long it is. TLS 1.3 adds 22 bytes to each record and keeps the order. So the position of every encrypted element
is known: the last bytes of a direction are its frames, back from the goodbye. These encrypted elements, by record,
are the network's columns. The amounts of data reveal who called whom.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch

from secure_sccvfl.audit.attacks.labels import kept_of_split, signals_of
from secure_sccvfl.audit.attacks.view import TorchLogits
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import Split, make_split
from secure_sccvfl.evaluation.methods import white_box_of
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.net.link import HEADER
from secure_sccvfl.protocols.net.transport import Array, Spec, describe
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.records.transcript import Frame, read_transcript
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.releases.catalogue import GRADIENT
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.runs.model_files import PartyModel, load_model
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.options import RunOptions

MOST_RECORDS = 2000
"""Attacks are tested on at most this many records, drawn at random."""

Target = Literal["s", "y"]


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder with the pooled data it was made from."""

    folder: Path
    options: RunOptions
    data: Dataset
    split: Split
    parties: tuple[Party, ...]

    @classmethod
    def load(cls, folder: Path) -> FinishedRun:
        run_folder = RunFolder.of(folder)
        session = run_folder.session()
        run_folder.must_hold_all("attacks need what every process saw")
        options = RunOptions.of(session.options)
        if session.job != "train" or not options.data.pooled:
            raise ConfigError("an evaluation needs a training run on benchmark (or --pooled) data, to know the truth")
        if options.train_config().module is not None:
            raise ConfigError(f"attacks are on linear heads, and this run has head {options.model.head}")
        data = pooled(options.data.dataset, len(session.parties))
        return cls(folder, options, data, make_split(data, options.data.split, options.data.seed), make_parties(data))

    @property
    def trained(self) -> np.ndarray:
        return self.options.train_config().training_rows(self.split)

    @property
    def records(self) -> int:
        return len(self.trained)

    @property
    def rows(self) -> np.ndarray:
        """The attacked training records, by their place among all training records."""
        drawn = stream(self.options.data.seed, "security records").permutation(self.records)
        return np.sort(drawn[:MOST_RECORDS])

    def holder(self, target: Target) -> int:
        names = [table.name for table in self.data.parties]
        return names.index(self.data.label.holder if target == "y" else self.data.protected[0].holder)

    def truth(self, target: Target) -> np.ndarray:
        values = self.data.label.values if target == "y" else self.data.protected[0].codes
        return values[self.trained[self.rows]]

    def coalitions(self, target: Target) -> list[tuple[int, ...]]:
        """All sets of parties without the holder of the attacked secret."""
        others = [rank for rank in range(len(self.parties)) if rank != self.holder(target)]
        return [c for size in range(1, len(others) + 1) for c in combinations(others, size)]

    def name(self, members: Sequence[int]) -> str:
        names = "+".join(self.parties[rank].name for rank in members)
        if len(members) > 1:
            return f"parties {names}"
        return f"label holder {names}" if members[0] == self.holder("y") else f"party {names}"

    def own_columns(self, members: Sequence[int]) -> np.ndarray:
        """What these parties held of each record before the run."""
        rows = self.trained[self.rows]
        blocks = [self.parties[rank].inputs[rows] for rank in members]
        targets: tuple[Target, ...] = ("y", "s")
        for target in targets:
            if self.holder(target) in members:
                blocks.append(self.truth(target)[:, None])
        return np.hstack(blocks)

    def seen(self, members: Sequence[int]) -> np.ndarray:
        """What the links and releases of these parties together showed of each record."""
        frames = (self._transcript(f"party-{rank}") for rank in members)
        words = (item for path in frames for item in seen_by_party(read_transcript(path), self.records))
        return as_columns(words, self.rows)

    def signals(self, members: Sequence[int]) -> np.ndarray:
        """What opened gradients say of each record, pass by pass, those of all members side by side."""
        columns = [self._signals(rank) for rank in members if MODES.get(self.options.training.mode).groups == "shown"]
        return np.hstack([np.zeros((len(self.rows), 0)), *columns])

    def evidence(self, members: Sequence[int]) -> np.ndarray:
        """For each record, log odds of the groups by the noisy tables that these parties received."""
        return np.hstack([self._evidence(rank) for rank in members])

    def seen_by_dealer(self) -> np.ndarray:
        return as_columns(in_pieces(read_transcript(self._transcript("dealer")), self.records), self.rows)

    def seen_by_network(self) -> np.ndarray:
        folders = {rank: f"party-{rank}" for rank in range(len(self.parties))} | {len(self.parties): "dealer"}
        paths = {node: self._transcript(name) for node, name in folders.items()}
        return as_columns(seen_by_network(self.folder / "network", paths, self.records), self.rows)

    def models(self) -> Iterator[PartyModel]:
        for party in self.parties:
            yield load_model(self.folder / f"party-{party.rank}" / "model", party.layout)

    def white_box(self) -> TorchLogits:
        """The model as nobody in the consortium has it, from the shares of all."""
        return white_box_of(*self.head(), {part.rank: part.encoder for part in self.models()}, self.parties)

    def check_white_box(self, answers: np.ndarray, tolerance: float = 0.05) -> None:
        """Refuse a white box that does not give the answers of a real session about the test records."""
        inputs = np.hstack([party.inputs[self.split.test] for party in self.parties])
        with torch.no_grad():
            logits = self.white_box()(torch.tensor(inputs)).numpy()
        apart = float(np.abs(logits - answers).max())
        if apart > tolerance * max(1.0, float(np.abs(answers).max())):
            raise ConfigError(
                f"the model put together from {self.folder} is up to {apart:.3f} away from its own predictions: "
                "attacks on it would say nothing. Make the run again"
            )

    def head(self) -> tuple[np.ndarray, np.ndarray]:
        parts = list(self.models())
        weight, bias = (
            combined([getattr(part, name) for part in parts]) / parts[0].temperature for name in ("weight", "bias")
        )
        return weight, bias

    def encodings(self, rows: np.ndarray) -> np.ndarray:
        """The fused encodings z of these records, which a plaintext server would hold."""
        encoders = {part.rank: part.encoder for part in self.models()}
        return np.hstack([encoders[p.rank](p.inputs[rows]) for p in self.parties])

    def _transcript(self, name: str) -> Path:
        return self.folder / name / "transcript"

    def _signals(self, rank: int) -> np.ndarray:
        """Refuses a run that kept fewer gradients than its transcript has: what is left out would look harmless."""
        steps = kept_of_split(self.folder / f"party-{rank}")
        frames = read_transcript(self._transcript(f"party-{rank}"))
        opened = sum(f.kind == "release" and f.step == GRADIENT.titled(rank) for f in frames)
        if len(steps) < max(opened, 1):
            raise ConfigError(
                f"party {rank} was shown {opened} gradients and kept {len(steps)}: an older version made this run, "
                "and it cannot be judged. Make it again"
            )
        return signals_of(steps, self.records)[self.rows]

    def _evidence(self, rank: int) -> np.ndarray:
        party = self.parties[rank]
        bins = party.take(self.trained[self.rows]).bins()
        model = load_model(self.folder / f"party-{rank}" / "model", party.layout)
        odds = []
        for noisy_tables in model.noisy_tables:
            logs = {
                k: np.log(np.maximum(t, 0.5) / np.maximum(t, 0.5).sum(axis=0)) for k, t in noisy_tables.tables.items()
            }
            if logs:
                odds.append(np.sum([bins[name] @ logs[name] for name in logs], axis=0))
        return np.hstack([np.zeros((len(self.rows), 0)), *odds])


def write_records(data: Dataset, rows: np.ndarray, path: Path) -> None:
    """Records of all parties as the file that a prediction reads; of s, only its holder reads the column."""
    frame = pd.DataFrame({"id": data.ids[rows]})
    for feature, values in zip(data.features, data.values[rows].T, strict=True):
        frame[feature.name] = [feature.text(value) for value in values]
    for attribute in data.protected:
        frame[attribute.name] = np.array(attribute.groups)[attribute.codes[rows]]
    with open(path, "w", newline="", encoding="utf-8", opener=private) as file:
        frame.to_csv(file, index=False)


MOST_WORDS = 3000
MANY = 8
"""With at least this many arrays of one kind, their mean is a separate column."""

_RECORD_HEADER = 5
_APPLICATION_DATA = 23
_ADDED = 17
"""Bytes of a record that are not content: the type inside it and the tag."""
Source = tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """Words by record (records x words) from one source."""

    source: Source
    words: Array


def by_record(array: Array, records: int) -> Array | None:
    """The array with one row per record, or None if it has no such axis.

    A longer vector starts with some words for each record, as sketches of gradients do.
    """
    if array.dtype.kind not in "iu":
        return None
    for axis, length in enumerate(array.shape):
        if length == records:
            return np.moveaxis(array, axis, 0).reshape(records, -1)
    if array.ndim == 1 and array.size > records:
        return array[: array.size // records * records].reshape(records, -1)
    return None


def seen_by_party(frames: Iterable[Frame], records: int) -> Iterator[Seen]:
    """All words about records that one party received, and their sums with its own."""
    sent: Frame | None = None
    came: list[Frame] = []
    for frame in frames:
        if frame.way == "out":
            sent, came = frame, []
            continue
        kind = "tuple" if frame.step.startswith("tuple ") else frame.step
        for number, array in enumerate(frame.arrays):
            rows = by_record(array, records)
            if rows is not None:
                yield Seen((frame.kind, kind, *map(str, frame.peers), str(number)), rows)
        if frame.kind == "data" and sent is not None and sent.step == frame.step:
            came.append(frame)
            if len(came) == len(sent.peers) and all(f.specs == sent.specs for f in came):
                yield from _joined(sent, came, records)


def _joined(sent: Frame, came: Sequence[Frame], records: int) -> Iterator[Seen]:
    for number in range(len(sent.arrays)):
        shares = [by_record(f.arrays[number], records) for f in (sent, *came)]
        if any(share is None for share in shares):
            continue
        stack = np.stack([share for share in shares if share is not None])
        yield Seen(("opened", sent.step, str(number)), _total(stack))
        yield Seen(("opened by xor", sent.step, str(number)), np.bitwise_xor.reduce(stack))


def _total(shares: Array) -> Array:
    """The sum in the ring. If all shares lie below a power of two, the sum modulo that, as the series open them."""
    total: Array = shares.sum(axis=0, dtype=shares.dtype)
    if shares.size and shares.min() >= 0:
        bits = int(shares.max()).bit_length()
        if bits < 8 * shares.dtype.itemsize - 1:
            rest = total.astype(np.int64) & ((1 << bits) - 1)
            return np.where(rest >> max(bits - 1, 0), rest - (1 << bits), rest)
    return total


def in_pieces(frames: Iterable[Frame], records: int) -> Iterator[Seen]:
    """All that was received, in order, cut into one piece of bytes per record."""
    parts = [a.reshape(-1).view(np.uint8) for f in frames if f.way == "in" for a in f.arrays]
    whole = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    length = len(whole) // records
    yield Seen(("pieces",), whole[: length * records].reshape(records, length))


def as_columns(seen: Iterable[Seen], rows: np.ndarray) -> np.ndarray:
    """Features of these rows (rows x columns, float32), every source served in turn."""
    sources: dict[Source, list[Array]] = {}
    digests: set[bytes] = set()
    for item in seen:
        digest = hashlib.blake2b(np.ascontiguousarray(item.words).data, digest_size=16).digest()
        if digest not in digests:  # parties that work together hold many arrays twice
            digests.add(digest)
            sources.setdefault(item.source, []).append(item.words[rows])
    released = {source: arrays for source, arrays in sources.items() if source[0] == "release"}
    others = {source: arrays for source, arrays in sources.items() if source not in released}
    words = np.concatenate([np.zeros((len(rows), 0), np.int64), *_in_turn(others), *_in_turn(released)], axis=1)
    means = [_mean(arrays) for arrays in sources.values() if len(arrays) >= MANY]
    columns = np.concatenate([_value(words), (words & 0xFFFF).astype(np.float64), *means], axis=1)
    return (columns / np.maximum(np.abs(columns).max(axis=0, initial=0.0), 1e-300)).astype(np.float32)


def _in_turn(sources: Mapping[Source, list[Array]]) -> list[Array]:
    picked: list[Array] = []
    left, turn = MOST_WORDS, 0
    while left > 0 and any(turn < len(arrays) for arrays in sources.values()):
        for arrays in sources.values():
            if turn < len(arrays) and left > 0:
                picked.append(arrays[turn][:, :left].astype(np.int64))
                left -= picked[-1].shape[1]
        turn += 1
    return picked


def _value(words: Array) -> np.ndarray:
    return np.asarray(words, dtype=np.float64)


def _mean(arrays: Sequence[Array]) -> np.ndarray:
    """Mean over arrays of one kind, each scaled equally."""
    alike = [a for a in arrays if a.shape == arrays[0].shape]
    scaled = [(v - v.mean(axis=0)) / np.maximum(v.std(axis=0), 1e-12) for v in map(_value, alike)]
    return np.mean([*scaled], axis=0)


def contents(stream: bytes) -> bytes:
    """The encrypted contents of all application records, one after the other."""
    parts, at = [], 0
    while at + _RECORD_HEADER <= len(stream):
        length = int.from_bytes(stream[at + 3 : at + 5])
        body = stream[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        if stream[at] == _APPLICATION_DATA and len(body) >= _ADDED:
            parts.append(body[:-_ADDED])
        at += _RECORD_HEADER + length
    return b"".join(parts)


def frames_to(frames: Sequence[Frame], peer: int) -> list[tuple[int, str, list[Spec]]]:
    """Length, step and shapes of every frame that went to a peer; all of it is public."""
    outgoing = []
    for frame in frames:
        if frame.way == "out" and peer in frame.peers:
            payload = sum(spec.nbytes for spec in frame.specs)
            description = describe(frame.step, frame.specs) if frame.kind == "data" else b""
            outgoing.append((HEADER.size + len(description) + payload, frame.step, frame.specs))
    return outgoing


def seen_by_network(folder: Path, transcripts: Mapping[int, Path], records: int) -> Iterator[Seen]:
    """Encrypted words about records, from the wire-tap's files and the public order of the frames.

    Only lengths and shapes are read from the transcripts; the program alone would give them too.
    """
    frames = {node: list(read_transcript(path)) for node, path in transcripts.items()}
    calls = sorted(folder.glob("*-to.bin"))
    if not calls:
        raise ConfigError(f"no bytes of the network in {folder}: make the run with --transcript")
    for call in calls:
        there = contents(call.read_bytes())
        back = contents(call.with_name(call.name.replace("-to", "-from")).read_bytes())
        rank = int(call.name.split("-")[0])
        caller = _caller(len(there), len(back), rank, frames)
        if caller is None:  # a call that was given up before a session
            continue
        yield from _lined_up(there, frames_to(frames[caller], rank), f"{caller} to {rank}", records)
        yield from _lined_up(back, frames_to(frames[rank], caller), f"{rank} to {caller}", records)


def _caller(there: int, back: int, rank: int, frames: Mapping[int, list[Frame]]) -> int | None:
    """Who sent about this much to a party and got about that much back."""
    spare = {}
    for node in frames:
        if node > rank:
            ways = ((there, frames_to(frames[node], rank)), (back, frames_to(frames[rank], node)))
            left = [length - sum(size for size, _, _ in logged) for length, logged in ways]
            if min(left) >= 0:
                spare[node] = sum(left)
    return min(spare, key=lambda node: spare[node]) if spare else None


def _lined_up(stream: bytes, frames: Sequence[tuple[int, str, list[Spec]]], way: str, records: int) -> Iterator[Seen]:
    at = len(stream) - sum(size for size, _, _ in frames)
    for size, step, specs in frames:
        at += size
        here = at - sum(spec.nbytes for spec in specs)
        for number, spec in enumerate(specs):
            array = np.frombuffer(stream[here : here + spec.nbytes], spec.dtype).reshape(spec.shape)
            here += spec.nbytes
            rows = by_record(array, records)
            if rows is not None:
                yield Seen(("wire", "tuple" if step.startswith("tuple ") else step, way, str(number)), rows)
