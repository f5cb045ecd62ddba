"""Roles as the paper finds them: the clipped sketch, S_j = |Delta_j| + HSIC_j, thresholds per party (Eq. proxy_set).

It is the discovery of a run with the settings of the recipe `paper`, before any refresh. Its three releases are
charged as they really are: tables scaled to norm 1, residual HSIC, and sums of residuals by group. The budget is
planned for one more, the late refresh that a run makes. P is a part of the paper's M; here M names what is left.
"""

from __future__ import annotations

from dataclasses import replace

from secure_sccvfl.data.party import part_of
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.plain_statistics import PlainStatistics
from secure_sccvfl.evaluation.prepared import Prepared
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.privacy.noise import GaussianNoise
from secure_sccvfl.training import RECIPES
from secure_sccvfl.training.paper_settings import PaperSettings


def letter_roles(ready: Prepared, settings: PaperSettings) -> Roles:
    """The roles of the paper's own discovery on the training part."""
    recipe = replace(RECIPES.get("paper"), refreshes=0)
    config = replace(recipe.discovery, rho_m=settings.rho_m, rho_p=settings.rho_p)
    noise = GaussianNoise(replace(ready.budget, releases=recipe.charged), ready.seed)
    train, held_out = (
        part_of(ready.data, rows, ready.parties) for rows in (ready.split.train, ready.split.validation)
    )
    owners = ready.data.owners
    discovery = Discovery(
        PlainStatistics(noise), train.parties, train.protected, len(owners), config, ready.seed, owners=owners
    )
    _, finding = discovery.refresh(0, conditional=discovery.conditional(held_out.parties))
    return finding.roles


def roles_of(ready: Prepared, settings: PaperSettings) -> Roles:
    """The paper's roles, or those of the run that all methods are judged by."""
    return letter_roles(ready, settings) if settings.roles == "letter" else ready.roles


def edited_names(roles: Roles, settings: PaperSettings) -> tuple[str, ...]:
    """What edits may change."""
    if settings.mask == "all":
        return tuple(sorted(roles.of))
    return roles.descendants if settings.proxies == "edit" else roles.named("M")
