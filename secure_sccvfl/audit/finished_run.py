"""What each place of a finished run held about the training records: before the run, and after it.

Before: own columns, and the label or s if the party is its holder. After: what its transcript holds by record, the
gradients of its own activations in all steps of mode `split`, and the noisy tables that were released to it, as
evidence for s of its own records. Nothing is read from a process
except what it wrote down of its own links and releases. Attacks are judged by the truth from the pooled benchmark
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch

from protocols.config import ConfigError
from protocols.records.private import private
from protocols.records.transcript import read_transcript
from protocols.session.saving import combined
from secure_sccvfl.audit.attacks.gradients import kept_of_split, signals_of
from secure_sccvfl.audit.attacks.view import TorchLogits
from secure_sccvfl.audit.transcripts import as_columns, in_pieces, seen_by_network, seen_by_party
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import Split, make_split
from secure_sccvfl.evaluation.methods import affine_white_box
from secure_sccvfl.models.encoders import Encoder, FeatureEncoder, NetworkEncoder
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
        run_folder.must_hold_all("attacks need what every place saw")
        options = RunOptions.of(session.options)
        if session.job != "train" or not options.data.pooled:
            raise ConfigError("an evaluation needs a training run on benchmark (or --pooled) data, to know the truth")
        if options.train_config().module is not None:
            raise ConfigError(f"attacks are on linear heads, and this run has head {options.model.head}")
        data = pooled(options.data.dataset, len(session.parties))
        return cls(folder, options, data, make_split(data, options.data.split, options.data.seed), make_parties(data))

    @property
    def trained(self) -> np.ndarray:
        """The rows of the records that the model was trained with."""
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

    def own(self, members: Sequence[int]) -> np.ndarray:
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
        places = {rank: f"party-{rank}" for rank in range(len(self.parties))} | {len(self.parties): "dealer"}
        paths = {node: self._transcript(place) for node, place in places.items()}
        return as_columns(seen_by_network(self.folder / "network", paths, self.records), self.rows)

    def models(self) -> Iterator[PartyModel]:
        """The parties' parts of the model."""
        for party in self.parties:
            yield load_model(self.folder / f"party-{party.rank}" / "model", party.layout)

    def white_box(self) -> TorchLogits:
        """The model as nobody in the consortium has it: the harness combines the shares of all."""
        return white_box_of(*self.head(), {part.rank: part.encoder for part in self.models()}, self.parties)

    def check_white_box(self, answers: np.ndarray, tolerance: float = 0.05) -> None:
        """Refuse a white box that does not give the answers of a real session about the test records."""
        inputs = np.hstack([party.inputs[self.split.test] for party in self.parties])
        with torch.no_grad():
            made = self.white_box()(torch.tensor(inputs)).numpy()
        apart = float(np.abs(made - answers).max())
        if apart > tolerance * max(1.0, float(np.abs(answers).max())):
            raise ConfigError(
                f"the model put together from {self.folder} is up to {apart:.3f} away from its own predictions: "
                "attacks on it would say nothing. Make the run again"
            )

    def head(self) -> tuple[np.ndarray, np.ndarray]:
        """Calibrated weight and bias, from the shares of all parties."""
        parts = list(self.models())
        weight, bias = (
            combined([getattr(part, name) for part in parts]) / parts[0].temperature for name in ("weight", "bias")
        )
        return weight, bias

    def encodings(self, rows: np.ndarray) -> np.ndarray:
        """The fused encodings z of these records, which a plaintext server would hold."""
        encoders = {part.rank: part.encoder for part in self.models()}
        return np.hstack([encoders[p.rank](p.inputs[rows]) for p in self.parties])

    def _transcript(self, place: str) -> Path:
        return self.folder / place / "transcript"

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
        for sketch in model.sketches:
            logs = {k: np.log(np.maximum(t, 0.5) / np.maximum(t, 0.5).sum(axis=0)) for k, t in sketch.tables.items()}
            if logs:
                odds.append(np.sum([bins[name] @ logs[name] for name in logs], axis=0))
        return np.hstack([np.zeros((len(self.rows), 0)), *odds])


def white_box_of(
    weight: np.ndarray, bias: np.ndarray, encoders: Mapping[int, Encoder], parties: Sequence[Party]
) -> TorchLogits:
    """A head on the parties' encoders, differentiable in the input space of all of them."""
    widths = [party.layout.width for party in parties]
    encode = [_in_torch(encoders[party.rank], party) for party in parties]

    def logits(x: torch.Tensor) -> torch.Tensor:
        parts = zip(encode, x.split(widths, dim=1), strict=True)
        return torch.cat([one(part) for one, part in parts], dim=1) @ torch.tensor(weight) + torch.tensor(bias)

    return logits


def _in_torch(encoder: Encoder, party: Party) -> TorchLogits:
    """One party's encoder as a differentiable function of its input space."""
    if isinstance(encoder, NetworkEncoder):
        network = encoder
        return lambda x: network.activations(x.float()).double()
    if isinstance(encoder, FeatureEncoder):
        plain, layer = _in_torch(encoder.plain, party), encoder
        weight, bias, mean = (torch.tensor(v) for v in (layer.weight, layer.bias, layer.mean))

        def features(x: torch.Tensor) -> torch.Tensor:
            base = plain(x)
            return torch.cat([base, torch.relu(base @ weight + bias) - mean], dim=1)

        return features
    return affine_white_box(np.eye(encoder.columns), np.zeros(encoder.columns), {party.rank: encoder}, (party,))


def write_records(data: Dataset, rows: np.ndarray, path: Path) -> None:
    """Records of all parties as the file that a prediction reads: the id column, every feature, and s.

    Its holder alone reads s, and only if the model uses it.
    """
    frame = pd.DataFrame({"id": data.ids[rows]})
    for feature, values in zip(data.features, data.values[rows].T, strict=True):
        frame[feature.name] = [feature.text(value) for value in values]
    for attribute in data.protected:
        frame[attribute.name] = np.array(attribute.groups)[attribute.codes[rows]]
    with open(path, "w", newline="", encoding="utf-8", opener=private) as file:
        frame.to_csv(file, index=False)
