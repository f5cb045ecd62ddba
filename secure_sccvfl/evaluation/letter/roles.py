"""Roles as the paper finds them: the clipped sketch, S_j = |Delta_j| + HSIC_j, thresholds per party (Eq. proxy_set).

The sketch is charged as it really is (`GaussianNoise`, mechanism "paper"): every table is scaled to norm 1 first, so
that little is left of it under noise of the same budget. P is a part of the paper's M; here M names what is left.
"""

from __future__ import annotations

from dataclasses import replace

from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.discovery.discovery import weigh
from secure_sccvfl.discovery.plain_statistics import PlainStatistics
from secure_sccvfl.discovery.roles import Role, Roles
from secure_sccvfl.discovery.sketches import release_sketches
from secure_sccvfl.evaluation.letter.settings import PaperSettings
from secure_sccvfl.evaluation.prepared import Prepared
from secure_sccvfl.privacy.noise import GaussianNoise
from secure_sccvfl.privacy.releases import SKETCH


def letter_roles(ready: Prepared, settings: PaperSettings) -> Roles:
    """The roles of the paper's own discovery on the training part, from one release of the whole budget."""
    noise = GaussianNoise(replace(ready.budget, releases=1), ready.seed, mechanism="paper")
    train = ready.split.train
    parties = [party.take(train) for party in ready.parties]
    protected = tuple(replace(a, codes=a.codes[train]) for a in ready.data.protected)
    features = sum(len(party.layout.names) for party in parties)
    sketches = release_sketches(PlainStatistics(noise), parties, protected, SKETCH.charged_as(0), features)
    owners = [party.layout.names for party in parties]
    scores = weigh(sketches, DiscoveryConfig("fractions", "gap"), ready.seed, owners).scores
    found: dict[str, Role] = {}
    for own in owners:
        ranked = sorted(own, key=lambda name: (-scores[name], name))
        descendants = ranked[: round(settings.rho_m * len(ranked))]
        proxies = descendants[: round(settings.rho_p * len(descendants))]
        found |= {k: "P" if k in proxies else "M" if k in descendants else "N" for k in ranked}
    return Roles(found)


def roles_of(ready: Prepared, settings: PaperSettings) -> Roles:
    """The paper's roles, or those of the run that all methods are judged by."""
    return letter_roles(ready, settings) if settings.roles == "letter" else ready.roles


def edited_names(roles: Roles, settings: PaperSettings) -> tuple[str, ...]:
    """What edits may change."""
    if settings.mask == "all":
        return tuple(sorted(roles.of))
    return roles.descendants if settings.proxies == "edit" else roles.named("M")
