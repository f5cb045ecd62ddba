"""What the generator of one party changes, by group: read off the noisy tables that were opened to that party.

This follows from released values alone, so it costs no privacy. The tables were released to their owner only, so
the page of a whole run leaves them out. A party makes a page with its own tables (`report.py RUN --party K`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocols.config import ConfigError
from secure_sccvfl.data.features import Feature
from secure_sccvfl.discovery.scores import probabilities
from secure_sccvfl.models.table_generator import FLOOR
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.results import read
from secure_sccvfl.runs.paths import model_digest


def group_edits(
    model: Path, features: tuple[Feature, ...], groups: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """For each edited feature and attribute: mean of a number, or share of each category, in the farthest groups."""
    model_digest(model)
    facts = json.loads((model / "model.json").read_text())
    edited = Roles(facts["roles"], facts.get("proxies", "guard")).edited
    found = []
    with np.load(model / "model.npz") as arrays:
        for sketch in facts["sketches"]:
            for feature in (f for f in features if f.name in edited):
                table = probabilities(arrays[f"table {sketch['attribute']} {feature.name}"], FLOOR)
                far = np.abs(table[:, :, None] - table[:, None, :]).sum(axis=0)
                a, b = sorted(int(g) for g in np.unravel_index(far.argmax(), far.shape))
                names = groups[sketch["attribute"]]
                found.append(
                    {
                        "name": feature.meaning or feature.name,
                        "groups": [names[a], names[b]],
                        "moves": _moves(feature, table[:, a], table[:, b]),
                    }
                )
    return found


def own_edits(run: Path, party: int) -> list[dict[str, Any]]:
    """What the generator of a party of this run does, from the party's folder and the public description."""
    folder = RunFolder.of(run)
    parties = len(folder.session().parties)
    if party not in folder.ranks(parties):
        known = f"parties 0 to {parties - 1}" if folder.host is None else f"party {folder.host} alone"
        raise ConfigError(f"the run has {known}, not {party}")
    groups = {attribute.name: attribute.labels for attribute in read(run).data.protected}
    return group_edits(folder.part(party) / "model", folder.options().schema(parties).features[party], groups)


def _moves(feature: Feature, p: np.ndarray, q: np.ndarray) -> list[dict[str, str]]:
    """The difference: the mean, or the two categories whose shares differ most."""
    if feature.kind == "number":
        middle = (feature.cuts[:-1] + feature.cuts[1:]) / 2
        means = [float(v[: len(middle)] @ middle / v[: len(middle)].sum()) for v in (p, q)]
        return [{"what": "mean", "from": f"{means[0]:.4g} {feature.unit}", "to": f"{means[1]:.4g} {feature.unit}"}]
    if feature.kind == "category":
        names = list(feature.labels or feature.categories)
    else:
        names = [f"{low:g} to {high:g}" for low, high in zip(feature.cuts, feature.cuts[1:], strict=False)]
    names += ["not known"] * feature.missing
    most = np.argsort(-np.abs(q - p))[:2]
    return [{"what": names[k], "from": f"{100 * p[k]:.0f} %", "to": f"{100 * q[k]:.0f} %"} for k in most]
