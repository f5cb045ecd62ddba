"""The paper-faithful method and its baselines on one trainer (Table hparams-method), and repaired baselines.

A baseline is the paper's settings with components switched off. The text and the tables add three things that the
table of components does not show: baselines have deterministic generators, their logits are not calibrated, and the
adversary of Adv-NoMask reads the fused activations. Repaired rows have the run's roles, counterfactuals from its
noisy tables, calibrated logits, and patience that counts after the warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.evaluation.methods import Fitted, Prepared, edited_rows
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.research.paper.generators import GeneratorTerms
from secure_sccvfl.research.paper.networks import Adversary, SplitNetwork, TrainedNetwork, units_of
from secure_sccvfl.research.paper.roles import Masks, edited_names
from secure_sccvfl.research.paper.settings import SETTING_NAMES, Edits, PaperSettings, settings_of
from secure_sccvfl.research.paper.trainer import (
    TARGET_DRAWS,
    Editors,
    EditRows,
    Generators,
    JointTraining,
    read_columns,
    records_of,
)

Changes = Mapping[str, Any]
NO_LEAK = GeneratorTerms(eta=0.0)
BASELINE: Changes = {"temperature": False, "draw_code": False}
"""Changes of all baselines, besides their number of epochs."""
COMPONENTS: Mapping[str, Changes] = {
    "erm_network": {"edits": "none", "lambda_cons": 0.0, "lambda_gen": 0.0, "lambda_adv": 0.0},
    "adv_nomask": {"edits": "none", "lambda_cons": 0.0, "lambda_gen": 0.0, "adversary": "fused"},
    "uniform_cf": {"mask": "all", "lambda_adv": 0.0, "terms": NO_LEAK},
    "policy_blind": {"proxies": "edit", "lambda_adv": 0.0, "terms": NO_LEAK},
    "server_consistency": {"edits": "shuffle", "proxies": "edit", "lambda_gen": 0.0, "lambda_adv": 0.0},
    "server_consistency_flipped": {"edits": "flip", "proxies": "edit", "lambda_gen": 0.0, "lambda_adv": 0.0},
}
"""Table hparams-method: what each baseline changes in the paper's settings.

Server-Consistency is described twice: it shuffles mediators (the table, appendix C.5), or it compares predictions for
the original and for "flipped-s" DP-sketch embeddings (section 4.3). Both are here.
"""
PAPER_ABLATIONS: Mapping[str, Changes] = {
    "paper_no_masks": {"mask": "all"},
    "paper_no_generator": {"edits": "shuffle", "lambda_gen": 0.0},
    "paper_no_consistency": {"lambda_cons": 0.0},
}
"""Table scc_vfl_ablation_german."""
SWITCHES: Mapping[str, Changes] = {
    "patience_after_warmup": {"patience_from": "warmup"},
    "whole_edits": {"edit_scale": 1.0},
    "no_mmd": {"terms": GeneratorTerms(gamma=0.0)},
    "no_likelihood": {"terms": GeneratorTerms(beta=0.0)},
    "no_leak": {"terms": NO_LEAK},
    "cycle": {"terms": GeneratorTerms(cycle=1.0)},
    "no_adversary": {"lambda_adv": 0.0},
    "fused_adversary": {"adversary": "fused"},
    "no_generator_loss": {"lambda_gen": 0.0},
    "deterministic_generator": {"draw_code": False},
    "contrast_edits": {"reading": "contrast"},
    "posterior_groups": {"embedding": "posterior"},
    "no_context": {"context": 0},
    "proxies_edited": {"proxies": "edit"},
    "score_partition": {"partition": "score"},
    "validation_fractions": {"rho_m": 0.25, "rho_p": 0.25},  # the choice on German: results/paper/letter-roles.md
    "no_refresh": {"refreshes": 0},
    "repaired_roles": {"roles": "repaired"},
    "one_hot_columns": {"columns": "one_hot"},
    "best_epoch": {"kept": "best"},
    "adam": {"optimiser": "adam"},
    "adamw": {"optimiser": "adamw"},
    "no_temperature": {"temperature": False},
    "squared_consistency": {"norm": "squared"},
}
"""One element of the paper-faithful method changed at a time."""
SWEEPS: Mapping[str, tuple[float, ...]] = {
    "rho_m": (0.15, 0.25, 0.33, 0.45, 0.60),
    "edit_scale": (0.05, 0.10, 0.20, 0.35, 0.50),
    "lambda_cons": (0.0, 0.4, 0.8, 1.2, 1.6),
    "lambda_adv": (0.0, 0.01, 0.03, 0.06, 0.10),
    "lambda_gen": (0.0, 0.005, 0.01, 0.02, 0.05),
}
"""The grids of the sensitivity appendix; rho_m is its tau_M, edit_scale its gamma_cf."""


def _network(ready: Prepared, settings: PaperSettings, made: EditRows | None, masks: Masks | None = None) -> Fitted:
    """Train with these settings. made: counterfactuals that follow no masks. masks: None if nothing follows them."""
    data, split = ready.data, ready.split
    train, check = (records_of(ready, rows, settings) for rows in (split.train, split.validation))
    seed = torch_seed(ready.seed, "network")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for the first weights
        widths, read = read_columns(ready, settings)
        net = SplitNetwork(widths, units_of(data.task, data.outputs), settings.hidden, settings.dropout)
        adversaries = _adversaries(ready, settings)
        editors = (None, made) if masks is None else _editors(masks)
        refresh = (lambda: None) if masks is None else (lambda: _editors(masks) if masks.refresh() else None)
        training = JointTraining(net, data.task, settings, editors, adversaries, read, seed, refresh)
        torch.manual_seed(seed)  # for dropout, whichever parts there are
        fitted = training.fit(train, check)
    notes = {
        "epochs_run": fitted.epochs_run,
        "best_epoch": fitted.kept_epoch,
        "warmup": settings.warmup,
        "optimisation_steps": fitted.epochs_run,
        "temperature": fitted.temperature,
        "masks_refreshed": training.refreshed,
        **training.traffic.notes(),
    }
    own: Callable[[np.ndarray], np.ndarray] | None = None
    if training.generators is not None:
        names = edited_names(training.generators.roles, settings)
        own = _own_edits(ready, settings, fitted, training.generators, ready.columns(names))
    elif training.made is not None:
        last = training.made
        own = lambda picked: last(picked, 0)  # noqa: E731
    return Fitted(fitted, fitted.logits, fitted.fused, notes, own, network=fitted)


def _adversaries(ready: Prepared, settings: PaperSettings) -> list[Adversary]:
    if settings.lambda_adv == 0:
        return []
    groups, parties = len(ready.data.protected[0].groups), len(ready.parties)
    width, count = (settings.hidden, parties) if settings.adversary == "parties" else (settings.hidden * parties, 1)
    return [Adversary(width, groups, torch_seed(ready.seed, "letter", "adversary", k)) for k in range(count)]


def _own_edits(
    ready: Prepared, settings: PaperSettings, fitted: TrainedNetwork, generators: Generators, columns: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Counterfactuals of the kept epoch by the true s, whatever the parties knew; other columns stay as they are."""

    @torch.no_grad()
    def edits(picked: np.ndarray) -> np.ndarray:
        records = records_of(ready, picked, replace(settings, embedding="true"))
        edited = generators.edit(records, fitted.net.parts(fitted.scaled(records.x)), 0)
        out = ready.inputs[picked]
        out[:, columns] = edited[:, torch.as_tensor(columns)].numpy()
        return out

    return edits


def _run(ready: Prepared, settings: PaperSettings) -> Fitted:
    return _network(ready, settings, None, None if settings.edits == "none" else Masks(ready, settings))


def _editors(masks: Masks) -> Editors:
    """What makes counterfactuals under the current masks."""
    ready, settings = masks.ready, masks.settings
    if settings.edits == "generator":
        return Generators(ready, masks.roles, settings), None
    if settings.edits == "flip":
        return None, flip_edits(masks)
    return None, shuffle_edits(ready, edited_names(masks.roles, settings))


def paper_with(**changes: Any) -> Callable[[Prepared], Fitted]:
    """The paper's method with some settings changed (`PaperSettings`): for sweeps and switches."""
    unknown = sorted(set(changes) - SETTING_NAMES)
    if unknown:
        raise ValueError(
            f"the paper has no settings {', '.join(unknown)}; available: {', '.join(sorted(SETTING_NAMES))}"
        )

    def fit(ready: Prepared) -> Fitted:
        return _run(ready, replace(settings_of(ready.data.name), **changes))

    return fit


def baseline(name: str) -> Callable[[Prepared], Fitted]:
    """A baseline of Table hparams-method."""

    def fit(ready: Prepared) -> Fitted:
        return _run(ready, baseline_settings(ready.data.name, name))

    return fit


erm_network, adv_nomask, uniform_cf, policy_blind, server_consistency, server_consistency_flipped = (
    baseline(name) for name in COMPONENTS
)
paper = paper_with()


def baseline_settings(dataset: str, name: str) -> PaperSettings:
    """The paper's settings with the components of a baseline, and the baselines' number of epochs."""
    shared = settings_of(dataset)
    return replace(shared, epochs=shared.baseline_epochs, **{**BASELINE, **COMPONENTS[name]})


REPAIRED: Changes = {
    **{"patience_from": "warmup", "kept": "best", "roles": "repaired", "columns": "one_hot"},
    **{"lambda_gen": 0.0, "lambda_adv": 0.0},
}


def _repaired(ready: Prepared, made: EditRows, edits: Edits = "tables") -> Fitted:
    return _network(ready, replace(settings_of(ready.data.name), **REPAIRED, edits=edits), made)


def _cached(make: EditRows, draws: int) -> EditRows:
    """The same counterfactuals for each part and draw; full-batch epochs ask for them again."""
    kept: dict[tuple[int, int, int], np.ndarray] = {}

    def edits(rows: np.ndarray, epoch: int) -> np.ndarray:
        key = (len(rows), int(rows[0]), epoch % draws)
        if key not in kept:
            kept[key] = make(rows, epoch % draws)
        return kept[key]

    return edits


def table_edits(ready: Prepared, roles: Roles, config: GeneratorConfig) -> EditRows:
    """Counterfactuals by the true s, from the default run's noisy tables."""
    return _cached(lambda rows, draw: edited_rows(ready, roles, config, rows, draw)[0], config.draws)


def shuffle_edits(ready: Prepared, names: tuple[str, ...]) -> EditRows:
    """Server-Consistency: mediators of another record, drawn at random; no generator."""
    columns = ready.columns(names)

    def edits(rows: np.ndarray, epoch: int) -> np.ndarray:
        order = stream(ready.seed, "shuffle", len(rows), epoch).permutation(len(rows))
        out = ready.inputs[rows]
        out[:, columns] = out[order][:, columns]
        return out

    return edits


def flip_edits(masks: Masks) -> EditRows:
    """Server-Consistency: mediators moved from where the noisy sketch puts the record's group to the other group.

    The direction is that of the true s, as for trained generators. They are the same in every epoch except for
    targets, which are drawn where there are more than two groups.
    """
    ready, embeddings = masks.ready, masks.embeddings()
    attribute = ready.data.protected[0]

    def edits(rows: np.ndarray, draw: int) -> np.ndarray:
        codes = attribute.codes[rows]
        targets = public_targets(len(rows), len(attribute.groups), ready.seed, draw)[np.arange(len(rows)), codes]
        out = ready.inputs[rows]
        for columns, group in embeddings:
            out[:, columns] = np.clip(out[:, columns] + group[targets] - group[codes], 0.0, 1.0)
        return out

    return _cached(edits, TARGET_DRAWS if len(attribute.groups) > 2 else 1)


def uniform_cf_repaired(ready: Prepared) -> Fitted:
    roles = Roles(dict.fromkeys(ready.roles.of, "M"))
    return _repaired(ready, table_edits(ready, roles, GeneratorConfig(kind="moments")))


def policy_blind_repaired(ready: Prepared) -> Fitted:
    roles = ready.roles.with_role("M", ready.roles.named("P"))
    return _repaired(ready, table_edits(ready, roles, GeneratorConfig(kind="moments")))


def server_consistency_repaired(ready: Prepared) -> Fitted:
    return _repaired(ready, shuffle_edits(ready, ready.roles.named("M")), "shuffle")


def scc_split(ready: Prepared) -> Fitted:
    """Counterfactuals and loss of the default on the paper's network: what gradients to the parties would gain."""
    return _repaired(ready, table_edits(ready, ready.roles, ready.config.generator))
