"""Everything that a sealed run opens, declared before it starts; SECURITY.md has the same list with reasons."""

from __future__ import annotations

from protocols.alignment import alignment_release
from protocols.releases import ANY, Release, ReleasePlan
from secure_sccvfl.party_data import Scheme
from secure_sccvfl.run_options import RunOptions
from secure_sccvfl.secure_statistics import SecureStatistics
from secure_sccvfl.training import TEMPERATURES


def sealed_plan(scheme: Scheme, options: RunOptions) -> ReleasePlan:
    """Everything that a sealed run opens."""
    config, parties = options.train_config(), len(scheme.parties)
    checks = len(config.lambdas) * -(-config.steps // config.check_every)
    return ReleasePlan(
        [
            *discovery_releases(scheme, options),
            *training_releases(parties, len(scheme.protected), checks, len(config.lambdas), len(TEMPERATURES)),
        ]
    )


def discovery_releases(scheme: Scheme, options: RunOptions) -> list[Release]:
    """What comes first: alignment to all; of discovery and its refreshes statistics to their owner, scores to all."""
    rounds = options.refreshes + 1
    told = ["scores"] + ["p-values"] * (options.rule == "fdr") + ["residual-scores"] * options.conditional
    moments = options.source == "moments"
    return [
        alignment_release(len(scheme.parties)),
        *SecureStatistics.releases(
            scheme.bins,
            scheme.group_counts,
            tables=[f"sketch-{number}" for number in range(rounds)],
            moments=["moments"] * moments,
            dependence=["residuals"] * options.conditional,
        ),
        *SecureStatistics.announcements(scheme.bins, told, rounds, moments),
    ]


def training_releases(parties: int, attributes: int, checks: int, lambdas: int, temperatures: int) -> list[Release]:
    """What the engine may open while it trains, to every party, for the plan.

    Announcements are no openings: a party says them of itself, and all of them are public or follow
    from noisy tables that were paid for.
    """
    everyone = tuple(range(parties))
    follows = "follows from noisy tables that were charged"
    return [
        Release(
            "columns", everyone, (parties,), "announced: encoded columns of each party, by the public dictionary"
        ),
        Release("features", everyone, (parties,), "announced: features of each party, by the public dictionary"),
        Release("moved-fixed", everyone, (ANY,), f"announced: 1 if an edit moved a fixed feature; {follows}"),
        Release("moved-edited", everyone, (ANY,), f"announced: 1 if an edit moved a mediator; {follows}"),
        Release(
            "validity",
            everyone,
            (3,),
            "sums over parties: how far edits move fixed features, leave the public range, move mediators",
            times=attributes,
        ),
        Release(
            "guard-length",
            everyone,
            (parties,),
            f"announced: sizes of the guard directions; {follows}",
            times=attributes,
        ),
        Release(
            "validation check",
            everyone,
            (2,),
            "one bit to stop early by, and the number of logits out of range (which must be 0)",
            times=checks,
        ),
        Release(
            "validation summary",
            everyone,
            (3,),
            "mean loss, variance of the logit and mean squared gap of the validation part, once for each lambda",
            times=lambdas,
        ),
        Release("temperature choice", everyone, (temperatures - 1,), "bits that give the calibration temperature"),
    ]
