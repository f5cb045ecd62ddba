"""The paper's method as written and its baselines, on the paper's network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.evaluation.networks import EditRows, NetworkConfig, train_network
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, edited_rows
from secure_sccvfl.model.cvae import Cvae, CvaeConfig
from secure_sccvfl.model.generators import GeneratorConfig
from secure_sccvfl.policy.roles import Roles

NETWORK_LAMBDA = 1.2
PAPER_SCALE = 0.25
PAPER_ADVERSARY = 0.03
# The defaults of NetworkConfig are the paper's settings for German; these are its other columns.
PAPER_SETTINGS: Mapping[str, Mapping[str, float]] = {
    "heart": {"hidden": 32, "dropout": 0.10, "rate": 0.010, "epochs": 200, "warmup": 30, "patience": 25},
    "compas": {"hidden": 32, "dropout": 0.10, "rate": 0.005, "epochs": 150, "warmup": 25, "patience": 25},
}


def _settings(ready: Prepared, **changes: float | str) -> NetworkConfig:
    return NetworkConfig(**{**PAPER_SETTINGS.get(ready.data.name, {}), **changes})  # type: ignore[arg-type]


def _network(ready: Prepared, config: NetworkConfig, edits: EditRows | None) -> Fitted:
    data, split, inputs = ready.data, ready.split, ready.inputs
    rows, check = split.train, split.validation
    codes = data.protected[0].codes

    def of_epoch(epoch: int) -> tuple[np.ndarray, np.ndarray]:
        if edits is None:
            raise RuntimeError("this network has no edits")
        return edits(rows, epoch), edits(check, epoch)

    net = train_network(
        ready.widths,
        (inputs[rows], data.label.values[rows], codes[rows]),
        (inputs[check], data.label.values[check]),
        data.task,
        data.outputs,
        config,
        torch_seed(ready.seed, "network"),
        of_epoch if edits is not None else None,
    )

    def white_box(x: torch.Tensor) -> torch.Tensor:
        return net.net((x.float() - net.mean) / net.scale) / net.temperature

    notes = {"epochs_run": net.epochs_run, "best_epoch": net.best_epoch, "warmup": config.warmup}
    own = (lambda picked: edits(picked, 0)) if edits is not None else None
    return Fitted(net, white_box, net.fused, notes, own)


def _cached(make: EditRows, draws: int) -> EditRows:
    """Keep the edits of each part and draw; full-batch epochs ask for the same ones again."""
    kept: dict[tuple[int, int, int], np.ndarray] = {}

    def edits(rows: np.ndarray, epoch: int) -> np.ndarray:
        key = (len(rows), int(rows[0]), epoch % draws)
        if key not in kept:
            kept[key] = make(rows, epoch % draws)
        return kept[key]

    return edits


def table_edits(ready: Prepared, roles: Roles, config: GeneratorConfig) -> EditRows:
    """Rows edited by the true s, from the default run's noisy tables."""
    return _cached(lambda rows, draw: edited_rows(ready, roles, config, rows, draw)[0], config.draws)


def shuffle_edits(ready: Prepared) -> EditRows:
    """Server-Consistency: mediators of another record, drawn at random; no generator."""
    columns = ready.columns(ready.roles.named("M"))

    def edits(rows: np.ndarray, epoch: int) -> np.ndarray:
        order = stream(ready.seed, "shuffle", len(rows), epoch).permutation(len(rows))
        out = ready.inputs[rows].copy()
        out[:, columns] = out[order][:, columns]
        return out

    return edits


def paper_edits(ready: Prepared) -> EditRows:
    """The paper's generator as written: a cVAE per party with the true s, no MMD, a quarter of the edit.

    P is a part of the paper's M and is edited with it.
    """
    codes = ready.data.protected[0].codes
    groups = len(ready.data.protected[0].groups)
    rows = ready.split.train
    models: dict[int, Cvae] = {}
    for party in ready.parties:
        edited = tuple(n for n in party.layout.names if ready.roles.of[n] != "N")
        if edited:
            model = Cvae(party.layout, edited, groups, CvaeConfig(epochs=100, mmd=0.0, kl=1.0))
            seed = torch_seed(ready.seed, "paper", party.name)
            models[party.rank] = model.fit(party.inputs[rows], codes[rows], seed)

    def make(picked: np.ndarray, draw: int) -> np.ndarray:
        pieces = []
        for party in ready.parties:
            inputs, s = party.inputs[picked], codes[picked]
            if party.rank in models:
                inputs = models[party.rank].edit(inputs, s, (s + 1) % groups, PAPER_SCALE)
            pieces.append(inputs)
        return np.hstack(pieces)

    return _cached(make, 1)


def network_erm(ready: Prepared) -> Fitted:
    """The paper's network without any fairness term."""
    return _network(ready, _settings(ready, warmup=0), None)


def adv_nomask(ready: Prepared) -> Fitted:
    return _network(ready, _settings(ready, warmup=0, adversary=1.0), None)


def uniform_cf(ready: Prepared) -> Fitted:
    edits = table_edits(ready, Roles(dict.fromkeys(ready.roles.of, "M")), GeneratorConfig(kind="moments", thinning=0))
    return _network(ready, _settings(ready, lam=NETWORK_LAMBDA), edits)


def policy_blind(ready: Prepared) -> Fitted:
    roles = ready.roles.with_role("M", ready.roles.named("P"))
    return _network(
        ready,
        _settings(ready, lam=NETWORK_LAMBDA),
        table_edits(ready, roles, GeneratorConfig(kind="moments", thinning=0)),
    )


def server_consistency(ready: Prepared) -> Fitted:
    """As written: early stopping counts from the first epoch."""
    config = _settings(ready, lam=NETWORK_LAMBDA, patience_from="start")
    return _network(ready, config, shuffle_edits(ready))


def server_consistency_repaired(ready: Prepared) -> Fitted:
    return _network(ready, _settings(ready, lam=NETWORK_LAMBDA), shuffle_edits(ready))


def paper(ready: Prepared) -> Fitted:
    """SCC-VFL to the letter: cVAE edits of a quarter, adversary, early stopping from the first epoch."""
    config = _settings(ready, lam=NETWORK_LAMBDA, patience_from="start", adversary=PAPER_ADVERSARY)
    return _network(ready, config, paper_edits(ready))


def scc_split(ready: Prepared) -> Fitted:
    """The default's edits and loss on the paper's network: what gradients to the parties would gain."""
    return _network(
        ready, _settings(ready, lam=NETWORK_LAMBDA), table_edits(ready, ready.roles, ready.config.generator)
    )
