"""What follows from the settings that are given, and which settings cannot go together. In flat names throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secure_sccvfl.config.sections import BY_WIRE, CACHED, Config, checked, wire_names
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.data.registry import imported
from secure_sccvfl.protocols.config import ACTIVE, ConfigError
from secure_sccvfl.training import RECIPES, paper_settings

PREDICTIONS = 1000
"""How many people a model may score, unless the session file says otherwise."""
GRID = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
"""The grid of lambda of a model that is not private."""
MODULE = {"consistency_from": "records", "steps": 60, "ridge": 0.02}
"""Defaults of a head that is a module."""
WEIGHTS = ("weight_identity", "weight_support", "weight_leak")
NOT_ADDITIVE = {
    "aware": "a model of mode aware uses s",
    "dp": "encoders of mode dp mix columns",
    "split": "encoders of mode split mix columns",
}
REMOVED: Mapping[str, Any] = {
    **{"source": "tables", "consistency": "squared", "guard_grows": False, "encoder": "plain", "leak": False},
    **{"gap_target": 0.0, "flip_target": 0.0, "slices": ""},
}
"""Options of earlier versions, and the value that is left of each."""
REMOVED_VALUES: Mapping[tuple[str, str], str] = {("controls", "full"): "standard", ("score", "gap"): ""}
"""Values of earlier versions that an option no longer takes, and the one that means the same, if there is one."""


def without_removed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those of earlier versions; ConfigError if one asks for what was removed."""
    for name, remaining in REMOVED.items():
        if options.get(name, remaining) != remaining:
            raise ConfigError(f"{name} = {options[name]!r} was removed; leave {name} out")
    kept = {name: value for name, value in options.items() if name not in REMOVED}
    for (name, value), same in REMOVED_VALUES.items():
        if kept.get(name) == value:
            if not same:
                raise ConfigError(f"{name} = {value!r} was removed; leave {name} out, or choose another")
            kept[name] = same
    return kept


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Checked flat settings with the defaults that follow from data, mode and method. Unknown names raise."""
    given = checked(without_removed(settings))

    def value(name: str) -> Any:
        return given.get(name, BY_WIRE[name].default)

    given.setdefault("pooled", is_benchmark(value("dataset")))
    given.setdefault("evaluation", "exact" if given["pooled"] else "noisy")
    given.setdefault("predictions", 0 if given["pooled"] else PREDICTIONS)
    given.setdefault("private_model", value("mode") != "split" and value("method") == "scc")
    has_certificate = not no_certificate(value("mode"), value("head"))
    given.setdefault("certificate", has_certificate)
    given.setdefault("certified", value("what_if") and has_certificate)
    recipe = recipe_settings(value("method"), value("dataset"))
    if value("sketch") == "clipped" and recipe.get("score", "hsic") == "hsic":  # HSIC is of counts
        recipe |= {"score": "stable"}
    if value("head") != "linear":
        recipe |= MODULE
    grid = recipe.pop("lambdas", GRID)
    if "lambdas" not in given:
        one_head = given["private_model"] or value("head") != "linear"
        given["lambdas"] = _lambdas(given.get("take_lambda"), value("mode"), one_head, grid)
    given["lambdas"] = tuple(float(v) for v in given["lambdas"])
    given = {**recipe, **given}
    if "align" not in given and not given["pooled"] and not hidden_conflict(Config.of_flat(**given)):
        given["align"] = "hidden"
    return given


def _lambdas(named: float | None, mode: str, one_head: bool, grid: tuple[float, ...]) -> tuple[float, ...]:
    """The grid: one lambda where every head is charged or trained separately, else the recipe's."""
    modes = imported(BY_WIRE["mode"].registry)
    of_mode: tuple[float, ...] = modes.get(mode).lambdas
    if one_head:
        return (float(named),) if named is not None else of_mode or (BY_WIRE["take_lambda"].default,)
    return of_mode or grid if named is None else tuple(sorted({*GRID, max(float(named), 0.0)}))


def recipe_settings(method: str, dataset: str) -> dict[str, Any]:
    """The settings of a method, where they are not the defaults, which are those of `scc`."""
    if method == "scc":
        return {}
    recipe = RECIPES.get(method)
    settings: dict[str, Any] = {}
    if method == "paper":
        column = paper_settings(dataset)
        settings = {
            "take_lambda": column.lambda_cons,
            "warmup": column.warmup,
            "steps": column.epochs - column.warmup,
            "weight_identity": column.lambda_gen * column.terms.alpha,
            "weight_support": column.lambda_gen * column.terms.beta,
            "weight_leak": column.lambda_adv,
        }
    of_recipe = ("consistency_from", "lambdas", "refreshes", "late_refreshes", "guard")
    return {
        **settings,
        **{name: getattr(recipe.discovery, name) for name in wire_names("discovery")},
        **{name: getattr(recipe, name) for name in of_recipe},
        "generator": recipe.generator.kind,
    }


def no_certificate(mode: str, head: str) -> str:
    """Why the logit is no sum over the features, or not of the record alone; "" if there is a certificate."""
    if head != "linear":
        return f"head {head} is not additive in the features"
    return NOT_ADDITIVE.get(mode, "")


def hidden_conflict(config: Config) -> str:
    """The setting that needs to know which records all parties have, or their exact number; "" if none does."""
    needs = {
        f"mode {config.training.mode}": config.training.mode not in ("sealed", "aware"),
        "exact evaluation": config.evaluation.kind == "exact",
        "conditional scores": config.discovery.conditional,
        "table_kind clipped": config.discovery.table_kind == "clipped",
        "pooled data": config.data.pooled,
        "security = active": config.session.security == ACTIVE,
    }
    return next((setting for setting, used in needs.items() if used), "")


def active_conflict(config: Config) -> str:
    """The setting whose protocol has no MAC tags, or whose inputs are not proven to be bounded; "" if none."""
    discovery, training = config.discovery, config.training
    lacks = {
        f"mode {training.mode}": training.mode != "sealed",
        f"head {config.model.head}": config.model.head != "linear",
        "private_model = false": not config.privacy.private_model,
        "conditional scores": discovery.conditional,
        "discovery.gain": discovery.gain,
        "table_kind clipped": discovery.table_kind == "clipped",
        "consistency_from = records": training.consistency_from == "records",
        "kappa": training.kappa > 0,
    }
    return next((setting for setting, used in lacks.items() if used), "")


def check(config: Config) -> None:
    """Raise ConfigError for the first combination of settings that cannot work."""
    for wrong, message in _problems(config):
        if wrong:
            raise ConfigError(message)


def _problems(config: Config) -> tuple[tuple[bool, str], ...]:
    data, privacy, training, evaluation = config.data, config.privacy, config.training, config.evaluation
    mode, module, conflict = training.mode, config.model.head != "linear", hidden_conflict(config)
    weights = [getattr(training, name) for name in WEIGHTS]
    own_ledger = data.pooled and not privacy.ledger and bool(privacy.cached_tables)
    return (
        (
            not privacy.private_model and not data.pooled,
            "a model that is not private reveals training records: private_model = false (and mode split) are for "
            "public data",
        ),
        (
            not privacy.private_model and evaluation.kind == "noisy",
            "a model that is not private is for public data, whose evaluation is exact: leave out evaluation = noisy",
        ),
        (
            training.method == "paper" and mode != "split",
            f"method paper trains by split learning: it needs mode split, not {mode}",
        ),
        (
            any(weights) and mode != "split",
            f"{next((n for n, w in zip(WEIGHTS, weights, strict=True) if w), '')} weighs what parties train in mode "
            "split; in sealed and aware no parameter depends on it, and in dp its gradient would carry records into "
            "others' sums",
        ),
        (
            data.align == "hidden" and bool(conflict),
            f"align = hidden does not work with {conflict}: use align = psi or pre-aligned, or change that setting",
        ),
        (
            config.session.security == ACTIVE and bool(active_conflict(config)),
            f"security = active does not cover {active_conflict(config)}: use security = semi-honest, or change that "
            "setting",
        ),
        (
            privacy.private_model and training.consistency_from == "records" and mode != "sealed",
            f"consistency_from = records with a private model is for mode sealed, not {mode}: use tables",
        ),
        (
            training.kappa > 0 and (module or mode != "sealed"),
            "kappa is for the linear head of mode sealed, the only one with a certificate: leave it out",
        ),
        (
            bool(training.net) and (module or mode != "sealed" or training.consistency_from != "tables"),
            "net = zero is for the linear head of mode sealed with consistency_from = tables: leave it out",
        ),
        (
            evaluation.baselines
            and (
                data.pooled or module or mode != "sealed" or evaluation.kind != "noisy" or len(training.lambdas) > 1
            ),
            "evaluation.baselines is for the linear head of mode sealed with one lambda and noisy evaluation, on "
            "data that may not be pooled (others have baselines without it): leave it out",
        ),
        (module and mode != "sealed", f"head {config.model.head} is for mode sealed, not {mode}: use head linear"),
        (
            evaluation.certificate and bool(no_certificate(mode, config.model.head)),
            f"no certificate: {no_certificate(mode, config.model.head)}; leave out evaluation.certificate",
        ),
        (
            not privacy.table_releases + privacy.late_table_releases,
            "table_releases and late_table_releases are both 0: the tables are released again at least once",
        ),
        (
            any(not 0 <= weight < float("inf") for weight in weights),
            f"weights of validity terms must not be negative: {weights}",
        ),
        (
            any(bound < 1 or bound != int(bound) for bound in data.align_bounds),
            f"align_bounds must be whole numbers of records, not {list(data.align_bounds)}",
        ),
        (not 0 <= privacy.reserve < 1, f"reserve is a share of the budget, from 0 to below 1, not {privacy.reserve}"),
        (
            mode == "dp" and bool(privacy.cached_tables),
            "mode dp pays for its gradients and cannot reuse cached releases; remove cached_tables",
        ),
        (
            own_ledger and privacy.cached_tables == CACHED,
            "these data have one ledger per run: name the run folder whose tables are to be used",
        ),
        (
            own_ledger and evaluation.kind == "noisy",
            "cached tables of a run with its own ledger need exact evaluation; give a --ledger",
        ),
        (
            privacy.predictions < (0 if data.pooled else 1),
            f"predictions must be at least 1 (0, no limit, for pooled data): {privacy.predictions}",
        ),
        (training.dp_steps < 1, f"dp_steps must be at least 1, got {training.dp_steps}"),
        (
            min(evaluation.min_group, evaluation.planned) < 1,
            f"evaluation.min_group and evaluation.planned must be at least 1: {evaluation.min_group}, "
            f"{evaluation.planned}",
        ),
    )
