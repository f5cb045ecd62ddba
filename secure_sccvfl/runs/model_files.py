"""A party's part of a trained model on disk: its encoder and tables in the clear, its share of the head.

`model.json` names the run and the public description it belongs to, and carries the digest of itself and of
`model.npz`. A changed file, or a share from another run, is refused. Its owner can make the digest again: the others
notice if it changed what all have in common (`PartyModel.public`), and not if it changed its share of the head.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.groups import structure_of
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Party
from secure_sccvfl.data.registry import imported
from secure_sccvfl.data.splits import SplitKind
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.models.aware import AwareEncoders, make_aware
from secure_sccvfl.models.encoders import Encoder, FeatureEncoder, Network, PlainEncoder
from secure_sccvfl.models.generators import Generator, GeneratorConfig, make_generator
from secure_sccvfl.policy.card import AwareEntry
from secure_sccvfl.policy.roles import Proxies, Role, Roles
from secure_sccvfl.protocols.alignment.interface import AlignKind
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.records.private import naming, private
from secure_sccvfl.protocols.session.saving import restore_share, save_share, saved_mac_key
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.runs.files import ModelError, content_digest, read_model
from secure_sccvfl.training.config import BASELINES, Controls, EvaluationKind
from secure_sccvfl.training.modules import HeadSpec
from secure_sccvfl.training.shared import Shared

ENCODER = "secure_sccvfl.research.paper.networks:MlpEncoder"
NETWORKS = "secure_sccvfl.research.paper.generators:restored"
"""How encoders and generators of mode `split` are read; other models do not import them."""


@dataclass(frozen=True)
class HeldOut:
    """Which records a model was trained on, which were held out, and how the latter may be reported.

    split and pooled: how the parts were made, with the model's seed. parts: the salted digest of the records of
    each part. evaluation: whether figures of the test part carry noise, as all agreed before training. controls: what
    they are compared with; both are settled before the first figure. align: how records were brought together. With
    `hidden` the digests are those of this party's own records. own: that of all own records, common or not; "" in
    models of earlier versions. certificate: whether the share of certified test records may be released. baselines:
    whether figures of baseline heads are.
    """

    split: SplitKind
    pooled: bool
    evaluation: EvaluationKind
    parts: Mapping[str, str]
    controls: Controls = "none"
    align: AlignKind = "exact"
    own: str = ""
    certificate: bool = False
    baselines: bool = False


@dataclass(frozen=True)
class PartyModel:
    """What one party keeps of a model. `weight` and `bias` are the unscaled head: CrypTen tensors.

    aware: the declared use of s, of a model that uses it. networks: this party's trained generators as arrays, by
    protected attribute; empty where generators follow from what was released. policy: version and date of approval of
    the card that it was trained under; empty without a card. predictions: how many people it may answer for, as all
    parties approved before training; None in models of earlier versions, which have the default. charged: the key
    under which every ledger has the charge of a private head; empty for a model that is not private. module: what the
    head is, if it is not linear; layers: its weights by name, shared. `weight` and `bias` are then empty. baselines:
    weights and biases of the heads that the model is compared with. mac_key: with active security, this party's part
    of the key of the tags that its shares have.
    """

    run: str
    rank: int
    parties: int
    schema: str
    task: str
    temperature: float
    lam: float | None
    roles: Mapping[str, Role]
    generator: GeneratorConfig
    seed: int
    held_out: HeldOut
    encoder: Encoder
    noisy_tables: tuple[NoisyTables, ...]
    weight: Shared
    bias: Shared
    aware: AwareEntry | None = None
    proxies: Proxies = "guard"
    networks: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    policy: Mapping[str, str] = field(default_factory=dict)
    generator_seed: int = -1
    predictions: int | None = None
    charged: str = ""
    module: HeadSpec | None = None
    layers: Mapping[str, Shared] = field(default_factory=dict)
    baselines: Mapping[str, tuple[Shared, Shared]] = field(default_factory=dict)
    mac_key: MacKey | None = field(default=None, repr=False)

    @property
    def drawn_seed(self) -> int:
        """The seed of encoders and edits; `seed` is that of the split."""
        return self.seed if self.generator_seed < 0 else self.generator_seed

    @property
    def released_in(self) -> str:
        """The run that paid for the head: a later session of that run saves the same head under its own name."""
        return self.charged.partition(" ")[0] or self.run

    def __repr__(self) -> str:
        return f"<PartyModel of run {self.run[:12]}, party {self.rank} of {self.parties}>"

    def public(self) -> bytes:
        """Stands for what must be the same in every party's part: if one part was changed, the others notice."""
        used = None if self.aware is None else self.aware.as_record()
        held_out = asdict(self.held_out)
        del held_out["own"]
        if self.held_out.align == "hidden":
            del held_out["parts"]
        policy = dict(self.policy)
        seeds = (self.seed, self.drawn_seed)
        fixed = (self.run, self.parties, self.schema, self.task, seeds, held_out, used, self.proxies, policy)
        module = None if self.module is None else asdict(self.module)
        facts = (*fixed, False, self.predictions, self.charged, module)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()

    def aware_encoders(self, layout: Layout) -> AwareEncoders:
        """This party's encoder of a model that uses s, made again from what was released."""
        private = bool(self.charged)
        return {self.rank: make_aware(layout, self.encoder, self.noisy_tables[0], Roles(dict(self.roles)), private)}

    def columns(self, layout: Layout) -> int:
        """How many columns of the head are this party's."""
        return self.encoder.columns if self.aware is None else self.aware_encoders(layout)[self.rank].columns

    def generators(self, party: Party) -> dict[str, Generator]:
        """The local generator of each protected attribute, as trained, or made again from what was released."""
        roles = Roles(dict(self.roles), self.proxies)
        if self.networks:
            names, restored = party.layout.names, imported(NETWORKS)
            columns = ([n for n in names if n in role] for role in (roles.edited, roles.penalized))
            fixed = (party.layout, *columns, self.generator)
            return {attribute: restored(*fixed, network) for attribute, network in self.networks.items()}
        given = (roles, self.generator, self.drawn_seed, party.inputs)
        return {
            s.attribute: make_generator(party.layout, s.tables, s.deviation, *given, s.structure)
            for s in self.noisy_tables
        }


def trained_networks(
    generators: Mapping[str, Mapping[int, Generator]], rank: int
) -> dict[str, dict[str, np.ndarray]]:
    """A party's generators that were trained, as arrays; by protected attribute."""
    networks = {attribute: by_rank[rank] for attribute, by_rank in generators.items()}
    return {name: generator.arrays() for name, generator in networks.items() if isinstance(generator, Network)}


def no_weights(outputs: int) -> tuple[Shared, Shared]:
    """Weight and bias of a model whose head is a module: empty."""
    return restore_share(np.zeros((0, outputs), np.int64), HEAD_BITS), restore_share(np.zeros(0, np.int64), HEAD_BITS)


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with this, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def restored_shares(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Shared]:
    """Shares of a head's weights that were saved under names that begin with this."""
    return {name: restore_share(share, HEAD_BITS) for name, share in below(arrays, prefix).items()}


def table_arrays(noisy_tables: Iterable[NoisyTables]) -> dict[str, np.ndarray]:
    """Noisy tables as arrays; the rest of them is in facts."""
    return {f"table {one.attribute} {name}": table for one in noisy_tables for name, table in one.tables.items()}


def restored_tables(facts: Iterable[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> tuple[NoisyTables, ...]:
    """Noisy tables from the facts and arrays of a model or a checkpoint."""
    return tuple(
        NoisyTables(
            one["attribute"],
            {name: arrays[f"table {one['attribute']} {name}"] for name in one["tables"]},
            one["deviation"],
            one["releases"],
            one.get("records", ""),
            structure_of(one.get("structure", ())),
        )
        for one in facts
    )


FACTS = {
    **{name: name for name in ("run", "rank", "parties", "task", "temperature", "roles", "proxies", "seed")},
    **{"scheme": "schema", "lambda": "lam"},
}
"""Fields of a model by their names in `model.json`."""
_OF_HEAD = ("weight", "bias")
OPTIONAL: Mapping[str, Any] = {"policy": {}, "generator_seed": -1, "predictions": None, "charged": ""}
"""Fields that are left out of `model.json` where they have this value."""


def save_model(model: PartyModel, folder: Path) -> str:
    """Write both files; returns the digest."""
    arrays: dict[str, Any] = {"weight": save_share(model.weight), "bias": save_share(model.bias)}
    arrays |= {f"head {name}": save_share(layer) for name, layer in model.layers.items()}
    for name, head in model.baselines.items():
        arrays |= {f"{part} of {name}": save_share(share) for part, share in zip(_OF_HEAD, head, strict=True)}
    arrays |= _packed(model.encoder)
    arrays |= table_arrays(model.noisy_tables)
    for attribute, network in model.networks.items():
        arrays |= {f"network {attribute} {name}": value for name, value in network.items()}
    facts = {key: getattr(model, name) for key, name in FACTS.items()}
    facts |= {name: getattr(model, name) for name, absent in OPTIONAL.items() if getattr(model, name) != absent}
    facts |= {
        "generator": asdict(model.generator),
        "held_out": asdict(model.held_out),
        "sketches": [
            {
                **{name: getattr(s, name) for name in ("attribute", "deviation", "releases")},
                "tables": list(s.tables),
                **({"structure": s.structure} if s.structure else {}),
            }
            for s in model.noisy_tables
        ],
    }
    if model.networks:
        facts["networks"] = {attribute: list(network) for attribute, network in model.networks.items()}
    if model.aware is not None:
        facts["aware"] = model.aware.as_record()
    if model.module is not None:
        facts["module"] = asdict(model.module)
    facts["digest"] = content_digest(facts, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder / "model.npz"), open(folder / "model.npz", "wb", opener=private) as file:
        np.savez(file, **arrays)
    (folder / "model.json").write_text(json.dumps(facts, indent=1) + "\n")
    return str(facts["digest"])


def model_folder(root: str, rank: int) -> Path:
    """Where a party's part of a model is: the folder itself, the party's own, its host's, or that of a whole run."""
    path = Path(root)
    near = [p for p in (path, path / "model", path / "train" / "model") if (p / "model.json").exists()]
    return near[0] if near else path / f"party-{rank}" / "model"


def load_model(folder: Path, layout: Layout) -> PartyModel:
    """A party's part of a model, for the party with this public layout."""
    facts, arrays = read_model(folder)
    if "held_out" not in facts:
        raise ModelError(
            "the model is of an earlier version, which did not say what records it was made on: train again"
        )

    try:
        generator = GeneratorConfig.of_record(facts["generator"])
    except ValueError as error:
        raise ModelError(f"{error}: train again") from None
    encoder = _unpacked(arrays, layout, Roles(facts["roles"], facts.get("proxies", "guard")).dropped)
    return PartyModel(
        **{name: facts[key] for key, name in FACTS.items() if key in facts},
        **{name: facts[name] for name in OPTIONAL if name in facts},
        generator=generator,
        held_out=HeldOut(**facts["held_out"]),
        encoder=encoder,
        noisy_tables=restored_tables(facts["sketches"], arrays),
        mac_key=saved_mac_key(value for name, value in arrays.items() if name in _OF_HEAD),
        weight=restore_share(arrays["weight"], HEAD_BITS),
        bias=restore_share(arrays["bias"], HEAD_BITS),
        aware=AwareEntry.of(facts["aware"]) if "aware" in facts else None,
        networks={
            attribute: {name: arrays[f"network {attribute} {name}"] for name in names}
            for attribute, names in facts.get("networks", {}).items()
        },
        module=HeadSpec(**facts["module"]) if "module" in facts else None,
        layers=restored_shares(arrays, "head "),
        baselines={
            name: tuple(restore_share(arrays[f"{part} of {name}"], HEAD_BITS) for part in _OF_HEAD)
            for name in BASELINES
            if f"weight of {name}" in arrays
        },
    )


def _packed(encoder: Encoder) -> dict[str, Any]:
    """An encoder as arrays."""
    if isinstance(encoder, Network):
        return {f"mlp {name}": value for name, value in encoder.arrays().items()}
    plain = encoder.plain if isinstance(encoder, FeatureEncoder) else encoder
    if not isinstance(plain, PlainEncoder):
        raise ModelError(f"an encoder of kind {type(encoder).__name__} cannot be saved")
    arrays = {"encoder mean": plain.mean}
    if isinstance(encoder, FeatureEncoder):
        arrays |= {"layer weight": encoder.weight, "layer bias": encoder.bias, "layer mean": encoder.mean}
        arrays["layer radius"] = np.array(encoder.radius)
    return arrays


def _unpacked(arrays: Mapping[str, np.ndarray], layout: Layout, dropped: Iterable[str]) -> Encoder:
    """The encoder of such arrays. A plain one drops what the roles say; an MLP has it among its arrays."""
    if "encoder mean" not in arrays:
        encoder: Encoder = imported(ENCODER).of(below(arrays, "mlp "))
        return encoder
    plain = PlainEncoder(layout, arrays["encoder mean"], frozenset(dropped))
    if "layer weight" not in arrays:
        return plain
    radius = float(arrays.get("layer radius", np.inf))
    return FeatureEncoder(plain, arrays["layer weight"], arrays["layer bias"], arrays["layer mean"], radius)
