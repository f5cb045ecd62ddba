"""Everything that a sealed run opens, declared before it starts; SECURITY.md has the same list with reasons."""

from __future__ import annotations

from protocols.records.releases import ANY, Release, ReleasePlan
from protocols.steps.alignment import alignment_release
from secure_sccvfl.data.party_data import Scheme
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.run.options import RunOptions
from secure_sccvfl.training.trainer import TEMPERATURES, EvaluationKind


def sealed_plan(scheme: Scheme, options: RunOptions) -> ReleasePlan:
    """Everything that a sealed run opens."""
    parties, lambdas = len(scheme.parties), len(options.lambdas)
    return ReleasePlan(
        [
            *common_releases(scheme, options),
            range_check(parties, lambdas),
            *validation_releases(parties, options.evaluation, lambdas),
        ]
    )


def common_releases(scheme: Scheme, options: RunOptions) -> list[Release]:
    """What a run of any mode opens before it trains with consistency."""
    return [*discovery_releases(scheme, options), *training_releases(len(scheme.parties), len(scheme.protected))]


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


def training_releases(parties: int, attributes: int) -> list[Release]:
    """What the engine may open about inputs and edits, to every party, for the plan.

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
    ]


def range_check(parties: int, times: int) -> Release:
    """The one bit that training looks at."""
    purpose = "one bit: some logit is out of range (it must be 0, or the run stops)"
    return Release("range check", tuple(range(parties)), (1,), purpose, times=times)


def validation_releases(parties: int, evaluation: EvaluationKind, lambdas: int) -> list[Release]:
    """What is opened about validation records, to every party: nothing, unless all agreed to be exact.

    `lambdas`: how many are tried and looked at.
    """
    if evaluation != "exact":
        return []
    everyone = tuple(range(parties))
    bits = "not private: bits that give the temperature that calibrates validation records best"
    opened = [Release("temperature choice", everyone, (len(TEMPERATURES) - 1,), bits)]
    if lambdas:
        means = "not private: mean loss, variance of the logit and mean squared gap of the validation part"
        opened.append(Release("validation summary", everyone, (3,), means + ", for each lambda", times=lambdas))
    return opened
