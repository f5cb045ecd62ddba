"""Local counterfactual generators: edit M, copy N bit by bit, pass P through (or edit it, if a card says so).

A party never holds s per record. It computes the edit for every hypothesised pair (from, to) from the noisy tables
that were opened to it; the engine selects the one that applies. The table below names the kinds, each in its own
module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from secure_sccvfl.data.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from secure_sccvfl.data.layout import Layout
    from secure_sccvfl.discovery.noisy_tables import Moments
    from secure_sccvfl.policy.roles import Roles

Source = Literal["tables", "moments"]
FITTED = ("cvae", "masked")
"""Kinds that are fitted to training records; the others follow from released tables."""


@dataclass(frozen=True)
class GeneratorConfig:
    """Settings of a generator.

    `thinning` is the share of the table's counts that a redrawn table keeps. Tables are redrawn with the known
    release noise, then with the sampling noise of a sample that much smaller. The wider they are redrawn, the more
    plausible edits the consistency loss covers. 0 uses the tables as released. `source`: where the `moments`
    generator reads numbers from, the tables (free) or a further release of group moments. `latent`: size of the code
    of the `masked` generator.
    """

    kind: str = "minimal"
    draws: int = 4
    thinning: float = 0.5
    scale: float = 1.0
    source: Source = "tables"
    latent: int = 8

    def __post_init__(self) -> None:
        GENERATORS.get(self.kind).check(self)
        if min(self.draws, self.latent) < 1 or not 0 <= self.thinning <= 1 or not 0 < self.scale <= 1:
            raise ValueError(f"bad draws {self.draws}, thinning {self.thinning} or scale {self.scale}")


class Generator(Protocol):
    """Party step, local: what these rows would be if their group were `target` instead of `source`."""

    def __call__(self, inputs: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        """Edited copy in input space. `target` holds one public target group per row."""
        ...


@dataclass(frozen=True)
class Material:
    """What a party makes a generator from: its own training rows, and what was opened to it.

    `deviation`: of the noise in the tables. `edited`: the features that may change. `guarded`: proxies that may not.
    """

    layout: Layout
    tables: Mapping[str, np.ndarray]
    deviation: float
    edited: frozenset[str]
    inputs: np.ndarray
    moments: Moments | None = None
    guarded: frozenset[str] = frozenset()

    @property
    def own_tables(self) -> list[np.ndarray]:
        """Of this party's features, as far as they have one (`TrainConfig.tabled`)."""
        return [self.tables[name] for name in self.layout.names if name in self.tables]


def tables_only(config: GeneratorConfig) -> None:
    """The check of a kind that reads nothing but the tables."""
    if config.source != "tables":
        raise ValueError(f"source {config.source!r} does not fit generator {config.kind!r}; use tables")


@dataclass(frozen=True)
class GeneratorKind:
    """One way to make a generator. `check` raises ValueError for settings that the kind cannot follow."""

    make: Callable[[Material, GeneratorConfig, int], Generator]
    check: Callable[[GeneratorConfig], None] = tables_only


GENERATORS: Registry[GeneratorKind] = Registry(
    "generator",
    {
        "quantile": "secure_sccvfl.models.quantile_generator:KIND",
        "moments": "secure_sccvfl.models.moments_generator:KIND",
        "cvae": "secure_sccvfl.models.cvae_generator:KIND",
        "minimal": "secure_sccvfl.models.minimal_generator:KIND",
        "masked": "secure_sccvfl.models.masked_generator:KIND",
    },
)


def make_generator(
    layout: Layout,
    tables: Mapping[str, np.ndarray],
    deviation: float,
    roles: Roles,
    config: GeneratorConfig,
    seed: int,
    inputs: np.ndarray,
    moments: Moments | None = None,
) -> Generator:
    """Party step, local: a generator over this party's edited features. `inputs` are its own training rows."""
    edited, guarded = (frozenset(layout.names) & frozenset(names) for names in (roles.edited, roles.guarded))
    return GENERATORS.get(config.kind).make(
        Material(layout, tables, deviation, edited, inputs, moments, guarded), config, seed
    )
