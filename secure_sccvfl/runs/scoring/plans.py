"""What evaluations and predictions open, from public things alone."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.calibration import noise_multiplier
from protocols.config import ConfigError
from protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.metrics.exact import exact_release
from secure_sccvfl.metrics.noisy import Sums, fewest, planned_deviation
from secure_sccvfl.metrics.rates import NULL
from secure_sccvfl.metrics.slices import Crossed
from secure_sccvfl.releases.catalogue import COLUMNS, PREDICTIONS, REFUSED_RECORDS, Facts, plan_of
from secure_sccvfl.releases.mechanisms import NoiseLevel
from secure_sccvfl.training.modes.options import RunOptions

OWN = "own"
"""The run's own generator as a judge: a diagnostic where there is no common judge."""


def facts_of(options: RunOptions, parties: int, **sizes: int) -> Facts:
    """The facts that the plan of a job on a model follows from."""
    return Facts({rank: {} for rank in range(parties)}, sizes=sizes, align=options.data.align)


def common_releases(options: RunOptions, parties: int) -> list[Release]:
    """What every job on a model opens: alignment and the sizes of encodings."""
    facts = facts_of(options, parties)
    return [*plan_of(facts, "alignment"), *COLUMNS.releases(facts)]


def crossed_of(options: RunOptions, schema: Schema) -> Crossed | None:
    """The column that groups are crossed with, where counts of slices may be opened."""
    return Crossed.opened(
        schema, options.evaluation.slices, pooled=options.data.pooled, exact=options.evaluation.kind != "noisy"
    )


def sums_of(options: RunOptions, schema: Schema) -> Sums:
    """What a noisy evaluation opens, from public things alone.

    Flips have a null control where the generator follows from tables alone and the model does not use s.
    """
    config, controls = options.train_config(), options.evaluation.controls
    null = config.generator.kind != "masked" and options.training.mode != "aware"
    judges = (OWN, NULL + OWN) if controls != "none" and null else (OWN,)
    counted = options.data.align == "hidden"
    return Sums(schema.task, schema.group_counts[0], judges, controls != "none", len(schema.classes), counted)


def fewest_records(options: RunOptions, schema: Schema, sums: Sums) -> int:
    """How many test records noisy figures need where their number is secret."""
    multiplier = noise_multiplier(options.evaluation.epsilon, options.evaluation.delta, options.evaluation.planned)
    level = NoiseLevel(multiplier, options.privacy.noise, len(schema.parties))
    holders = {schema.label_holder, schema.group_holders[0]}
    return fewest(planned_deviation(sums, level, len(holders)), options.evaluation.min_group)


def evaluation_plan(options: RunOptions, schema: Schema, judges: Sequence[str], sums: Sums) -> ReleasePlan:
    """What an evaluation opens: noisy sums, or exact figures under these judges."""
    parties, groups, crossed = len(schema.parties), schema.group_counts[0], crossed_of(options, schema)
    if options.evaluation.kind == "noisy":
        opened = sums.release(parties)
    else:
        opened = exact_release(parties, schema.task, judges, groups)
    sliced = [] if crossed is None else [crossed.release(parties, groups)]
    return ReleasePlan([*common_releases(options, parties), opened, *sliced])


def prediction_plan(options: RunOptions, schema: Schema, records: int = ANY) -> ReleasePlan:
    """What a prediction for this many records opens, and to whom."""
    receiver = schema.label_holder if options.session.receiver < 0 else options.session.receiver
    if not 0 <= receiver < len(schema.parties):
        raise ConfigError(f"the receiver of predictions must be a party, not {receiver}")
    detail = "calibrated logits" if options.session.scores else "decisions"
    if options.data.align == "hidden":
        detail += ", where all parties hold the record, and whether they do"
    facts = facts_of(options, len(schema.parties), records=records if options.data.align == "exact" else ANY)
    predictions = PREDICTIONS.releases(facts, receiver=receiver, detail=detail)
    refused = REFUSED_RECORDS.releases(facts, receiver=receiver)
    return ReleasePlan([*common_releases(options, len(schema.parties)), *predictions, *refused])
