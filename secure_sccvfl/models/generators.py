"""Local counterfactual generators: change M, copy N bit by bit, pass P through (or change it, if a card says so).

A party never holds s per record. It computes the counterfactual for every hypothesised pair (from, to) from the noisy
tables that were opened to it; the engine selects the one that applies. The table below names the kinds, each in its
own module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from secure_sccvfl.data.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from secure_sccvfl.data.groups import Structure
    from secure_sccvfl.data.layout import Layout
    from secure_sccvfl.policy.roles import Roles

FITTED = ("masked",)
"""Kinds that are fitted to training records; the others follow from released tables."""


@dataclass(frozen=True)
class GeneratorConfig:
    """Settings of a generator.

    `draws`: counterfactuals per record. `scale`: how far a record moves towards its counterfactual, in (0, 1].
    `latent`: size of the latent code of the `masked` generator.
    """

    kind: str = "minimal"
    draws: int = 4
    scale: float = 1.0
    latent: int = 8

    def __post_init__(self) -> None:
        if self.kind not in GENERATORS:
            raise ValueError(f"no generator {self.kind!r}; available: {', '.join(GENERATORS)}")
        if min(self.draws, self.latent) < 1 or not 0 < self.scale <= 1:
            raise ValueError(f"bad draws {self.draws}, latent {self.latent} or scale {self.scale}")

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> GeneratorConfig:
        """The settings that a saved model names; ValueError for a choice that was removed."""
        settings = dict(record)
        source, thinning = settings.pop("source", "tables"), settings.pop("thinning", 0.0)
        if source != "tables" or (thinning and settings["kind"] not in ("minimal", "masked")):
            raise ValueError("this model's generator used released moments or redrawn tables, which were removed")
        return cls(**settings)


class Generator(Protocol):
    """Party step, local: what these rows would be if their group were `target` instead of `source`."""

    def __call__(self, inputs: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        """The counterfactual in input space. `target` holds one public target group per row."""
        ...


@dataclass(frozen=True)
class Material:
    """The inputs of a generator: the party's own training rows, and what was opened to it.

    `deviation`: of the noise in the tables. `edited`: the features that may change. `penalized`: proxies.
    `structure`: of the groups (`data.groups`).
    """

    layout: Layout
    tables: Mapping[str, np.ndarray]
    deviation: float
    edited: frozenset[str]
    inputs: np.ndarray
    penalized: frozenset[str] = frozenset()
    structure: Structure = ()

    @property
    def own_tables(self) -> list[np.ndarray]:
        """Tables of this party's features that have one (`TrainConfig.tabled`)."""
        return [self.tables[name] for name in self.layout.names if name in self.tables]


GENERATORS: Registry[Callable[[Material, GeneratorConfig, int], Generator]] = Registry(
    "generator",
    {
        "minimal": "secure_sccvfl.models.table_generator:MinimalGenerator",
        "moments": "secure_sccvfl.research.paper.generators:MomentsGenerator",
        "masked": "secure_sccvfl.research.paper.generators:fit_masked_generator",
    },
)
"""By name: from a party's material, the settings and a seed to its generator."""


def make_generator(
    layout: Layout,
    tables: Mapping[str, np.ndarray],
    deviation: float,
    roles: Roles,
    config: GeneratorConfig,
    seed: int,
    inputs: np.ndarray,
    structure: Structure = (),
) -> Generator:
    """Party step, local: a generator over this party's edited features. `inputs` are its own training rows."""
    edited, penalized = (frozenset(layout.names) & frozenset(names) for names in (roles.edited, roles.penalized))
    material = Material(layout, tables, deviation, edited, inputs, penalized, structure)
    return GENERATORS.get(config.kind)(material, config, seed)
