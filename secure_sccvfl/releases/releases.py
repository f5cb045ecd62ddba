"""Everything that may leave a run, in one table.

A `Kind` says what is opened, to whom, in what shape and how often, why it may leave, and what people are told. The
plan of a run, the openings of the engines, the page of a run and the table in SECURITY.md come from `CATALOGUE`. A
value whose kind is not in it cannot be opened. A charged kind also needs the receipt of its charge (`charging.py`).
"""

from __future__ import annotations

from protocols.records.releases import Release
from secure_sccvfl.releases import alignment_kinds
from secure_sccvfl.releases.kinds import Facts, Kind, Stage

_FOLLOWS = "follows from noisy releases that were paid for"


def _sketches(facts: Facts) -> int:
    return facts.refreshes + facts.late_refreshes + 1


def _rounds(facts: Facts) -> int:
    """How often edits are made: before joint training, and after each late refresh."""
    return 1 + facts.late_refreshes


def _paid(facts: Facts) -> bool:
    """Whether statistics of s are opened, or those that an earlier run paid for are used."""
    return not facts.tables


def _scored(facts: Facts) -> bool:
    """Whether tables are scored by their owners, not under MPC, and not by conditional evidence alone."""
    return facts.score not in ("hsic", "conditional")


def _announced(facts: Facts) -> int:
    """Numbers of each feature that its owner announces: with the rule "tri-partition" HSIC and probability gap."""
    return (2 if facts.rule == "tri-partition" else 1) if _scored(facts) else 0


def _projected(facts: Facts) -> int:
    """How often scores are computed under MPC."""
    return _sketches(facts) if facts.score == "hsic" else 0


def _compared(facts: Facts) -> bool:
    """Whether a head without mediators and proxies is trained for comparison."""
    return facts.evaluation == "noisy" and facts.controls != "none" and not facts.private_model


FIRST_COUNT = Kind(
    "first count",
    "all",
    "discovery",
    ("1",),
    "charged",
    "about how many records all parties hold, with much noise",
    "noisy number of common records, before anything else is computed on them",
    "with `align = hidden`: how many records all parties hold, with five times the noise of a table relative to what "
    "one record moves; charged, a twenty-fifth of a table; too few stop the run before anything else is charged",
    charge="first count",
    times=lambda facts: int(facts.align == "hidden" and _paid(facts)),
)
SKETCH = Kind(
    "sketch-K for party P",
    "owner",
    "discovery",
    ("own bins", "groups"),
    "charged",
    "noisy tables of its own columns by group",
    "noisy tables of its features with s, to their owner alone",
    "counts of each of P's features by group of s with discrete Gaussian noise; charged",
    charge="sketch-K",
    numbers=_sketches,
    times=lambda facts: int(_paid(facts)),
)
PRESENT = Kind(
    "records",
    "all",
    "discovery",
    ("1",),
    "follows",
    "how many records all parties hold, with noise",
    "follows from noisy tables that were paid for",
    "with `align = hidden`: the sum of all noisy tables, which tells about how many records all parties hold; too "
    "few stop the run",
    follows=("sketch",),
    times=lambda facts: int(facts.align == "hidden" and _paid(facts)),
)
RESIDUALS = Kind(
    "residuals for party P",
    "owner",
    "discovery",
    ("own features", "attributes"),
    "charged",
    "how much each of its columns follows the group beyond the others, with noise",
    "noisy dependence of its residuals with s, to their owner alone",
    "one noisy number per feature (conditional scores, off by default); charged",
    charge="residuals",
    times=lambda facts: int(facts.conditional and _paid(facts)),
)
RISK_GAINS = Kind(
    "risk gains for party P",
    "owner",
    "discovery",
    ("own halves", "groups"),
    "charged",
    "noisy sums of what its other columns do not predict of each column, by group",
    "noisy sums of its residuals by group, to their owner alone",
    "with `gain` (off by default): sums by group of (1 + r) / 2 and (1 - r) / 2 of each feature's residual r, with "
    "discrete Gaussian noise; charged",
    charge="risk gains",
    times=lambda facts: int(facts.gain and _paid(facts)),
)
GROUP_SIZES = Kind(
    "group sizes",
    "all",
    "discovery",
    ("groups",),
    "follows",
    "about how many records each group has",
    "sums of all noisy tables by group; follow from noisy tables that were paid for",
    "the sum of all noisy tables by group of s, which tells about how many records each group has; again after each "
    "refresh",
    follows=("sketch",),
    times=_projected,
)
HSIC = Kind(
    "hsic",
    "all",
    "discovery",
    ("features", "squares"),
    "follows",
    "how much each column follows the group",
    "computed under MPC from noisy tables that were paid for, and from nothing else",
    "the discovery score of each feature, computed under MPC: the sum of squares of its noisy table with the group "
    "shares projected out, and that of its sums by bin; p-values, confidence and roles follow from them at every "
    "party; again after each refresh. With another `score` owners announce scores, p-values and redraws instead",
    follows=("sketch",),
    times=_projected,
)
SCORES = Kind(
    "scores",
    "all",
    "discovery",
    ("features",),
    "follows",
    "how much each column follows the group",
    _FOLLOWS,
    "with `score = stable`, `gap` or `paper`: discovery scores of each feature, as their owner says; they follow "
    "from the noisy counts. With `rule = tri-partition` HSIC and probability gap of its table, one after the other",
    follows=("sketch",),
    times=lambda facts: _sketches(facts) * _announced(facts),
)
P_VALUES = Kind(
    "p-values",
    "all",
    "discovery",
    ("features",),
    "follows",
    "how sure it is that each column follows the group",
    _FOLLOWS,
    "with the rule `fdr`: the same",
    follows=("sketch",),
    times=lambda facts: _sketches(facts) if facts.rule == "fdr" and _scored(facts) else 0,
)
RESIDUAL_SCORES = Kind(
    "residual-scores",
    "all",
    "discovery",
    ("features",),
    "follows",
    "how much each column follows the group beyond the others",
    _FOLLOWS,
    "with conditional scores: they follow from the noisy residuals",
    follows=("residuals",),
    times=lambda facts: int(facts.conditional),
)
GAINS = Kind(
    "gains",
    "all",
    "discovery",
    ("features",),
    "follows",
    "how much better the group predicts each column beyond the others",
    _FOLLOWS,
    "with `gain`: how much s adds to the prediction of each feature; it follows from the noisy sums of residuals",
    follows=("risk gains",),
    times=lambda facts: int(facts.gain),
)
REDRAWN_CONDITIONAL = Kind(
    "redrawn-conditional",
    "all",
    "discovery",
    ("redraws",),
    "follows",
    "how much each column might follow the group beyond the others in another run",
    _FOLLOWS,
    "with conditional scores, and with `gain`: 32 redraws of each feature's number within the known noise",
    follows=("residuals", "risk gains"),
    times=lambda facts: int(facts.conditional) + int(facts.gain),
)
REDRAWN_SCORES = Kind(
    "redrawn-scores",
    "all",
    "discovery",
    ("redraws",),
    "follows",
    "how much each column might follow the group in another run",
    _FOLLOWS,
    "32 redraws of each feature's score within the known noise, after the last release: they follow from the noisy "
    "counts, and give each proposed role its confidence. They tell so much of these counts that everybody may be "
    "taken to know them; the charge covers that",
    follows=("sketch",),
    times=_announced,
)
REDRAWN_P_VALUES = Kind(
    "redrawn-p-values",
    "all",
    "discovery",
    ("redraws",),
    "follows",
    "how sure another run might be that each column follows the group",
    _FOLLOWS,
    "with the rule `fdr`: the same",
    follows=("sketch",),
    times=lambda facts: int(facts.rule == "fdr" and _scored(facts)),
)
COLUMNS = Kind(
    "columns",
    "all",
    "inputs",
    ("parties",),
    "public",
    "how many encoded columns each party has",
    "announced: encoded columns of each party, by the public dictionary",
    "encoded columns of each party: by the public dictionary, in mode `aware` by the card's roles too",
)
FEATURES = Kind(
    "features",
    "all",
    "inputs",
    ("parties",),
    "public",
    "how many columns each party has",
    "announced: features of each party, by the public dictionary",
    "number of features of each party: the same",
)
LEFT_OUT = Kind(
    "left out",
    "all",
    "edits",
    ("*",),
    "follows",
    "which encoded columns are of mediators and proxies",
    "announced: 1 for each encoded column that the comparison without mediators leaves out; follows from the roles",
    "with noisy evaluation and a model that is not private: which encoded columns the comparison without mediators "
    "and proxies leaves out; it follows from the roles and the public dictionary",
    follows=("hsic", "scores"),
    times=lambda facts: int(_compared(facts)),
)
MOVED_FIXED = Kind(
    "moved-fixed",
    "all",
    "edits",
    ("*",),
    "follows",
    "check: did an edit touch a fixed column?",
    "announced: 1 if an edit moved a fixed feature; follows from noisy tables that were charged",
    "1 if a trial edit moved a feature that must stay fixed; the run stops then; again after each late refresh",
    follows=("sketch",),
    times=_rounds,
)
MOVED_EDITED = Kind(
    "moved-edited",
    "all",
    "edits",
    ("*",),
    "follows",
    "check: did an edit touch each mediator?",
    "announced: 1 if an edit moves a mediator; follows from noisy tables that were charged",
    "1 if edits by the noisy tables move a mediator; 0 turns it into N; again after each late refresh. With "
    "`consistency_from = records` and no private model: in some training record; not charged",
    follows=("sketch",),
    times=_rounds,
)
VALIDITY = Kind(
    "validity",
    "all",
    "edits",
    ("4",),
    "follows",
    "how far edits move columns, on average",
    "sums over the parties that edit: how far edits move fixed features, leave the public range, move mediators; and "
    "how many parties these are",
    "three sums over the parties that edit, and how many these are: how far edits move fixed features (0), leave the "
    "public range, and move mediators, on average under the noisy tables; with two of them each can subtract its own "
    "part; with one nothing is opened. With `consistency_from = records` and no private model: over the training "
    "records; not charged",
    follows=("sketch",),
    times=lambda facts: len(facts.groups),
)
GUARD_LENGTH = Kind(
    "guard-length",
    "all",
    "head",
    ("2",),
    "follows",
    "strength of the guard on proxies",
    "sum over parties of the sizes of their guard directions; follows from noisy tables that were charged",
    "where there are proxies: sum over parties of the sizes of their guard directions, and how many parties these "
    "are: it follows from the noisy counts; again after each late refresh",
    follows=("sketch",),
    times=lambda facts: len(facts.groups) * _rounds(facts),
)
GRAM = Kind(
    "gram",
    "all",
    "head",
    ("*", "*"),
    "charged",
    "how edits move columns together, summed over training records, with noise",
    "noisy Gram matrix of the training records' edits, from which the consistency penalty follows",
    "with `consistency_from = records` and `private_model`: the sum over training records of the products of their "
    "edits, in the columns of mediators, with discrete Gaussian noise; charged",
    charge="gram",
    times=lambda facts: int(facts.private_model and facts.consistency_from == "records"),
)
HEAD = Kind(
    "head",
    "all",
    "head",
    ("*",),
    "charged",
    "the model, as far as decisions and figures follow from it",
    "the weights of the model, with noise in the training objective; never opened themselves",
    "with `private_model` (the default): the model itself. Its weights are never opened: decisions, scores and "
    "figures follow from them. It is charged when it is trained, as if the weights were opened, so that all that "
    "follows is post-processing with respect to training records (objective perturbation, "
    "docs/privacy-accounting.md)",
    charge="head",
    times=lambda facts: int(facts.private_model),
)
HEAD_OUTPUT = Kind(
    "head output",
    "all",
    "head",
    ("*",),
    "charged",
    "the finite precision of the model",
    "noise on the finished weights, which covers their distance from the exact minimum",
    "with `private_model`: the same weights. Noise on the finished weights covers their distance from the exact "
    "minimum of the training objective, which fixed-point arithmetic leaves",
    charge="head output",
    times=lambda facts: int(facts.private_model),
)
RANGE_CHECK = Kind(
    "range check",
    "all",
    "head",
    ("1",),
    "uncharged",
    "check: did a score leave the range that the arithmetic can hold, or has training not settled?",
    "one bit: some logit is out of range, or some head not at its optimum (it must be 0, or the run stops)",
    "one number for all lambdas, of finished heads alone. With `private_model`: how many heads have weights "
    "that are too long, or have not settled; the first follows from the private weights, the second is 0 unless "
    'training fails to converge. Without, one bit: "some logit of a training record is out of range" (if evaluation '
    'is exact: of a validation record too) "or training has not settled", in `split` after the warm-up, every ten '
    "steps from then on and before each late refresh, of logits alone. 0, or the run stops; not charged",
)
VALIDATION_SUMMARY = Kind(
    "validation summary",
    "all",
    "validation",
    ("lambdas", "4"),
    "exact",
    "loss, gap and spread for each weight",
    "not private: mean loss, variance of the logit, mean squared gap and, with a flip target, share of flips under "
    "own edits of the validation part, for each lambda",
    "only with `evaluation = exact` (not private): mean loss, variance of the logit, mean squared gap of the "
    "validation part, for each lambda; with a `flip_target` also its share of flips under the run's own edits "
    "(else 0)",
    times=lambda facts: int(facts.evaluation == "exact" and len(facts.lambdas) > facts.private_model),
)
TEMPERATURE_CHOICE = Kind(
    "temperature choice",
    "all",
    "validation",
    ("temperatures",),
    "exact",
    "which calibration fits best",
    "not private: bits that give the temperature that calibrates validation records best",
    "only with `evaluation = exact` (not private): which of 25 temperatures calibrates best, as 24 bits: does the "
    "validation loss rise from each to the next; none with `private_model`",
    times=lambda facts: int(facts.evaluation == "exact" and not facts.private_model),
)
LEAK = Kind(
    "leak",
    "all",
    "validation",
    ("4",),
    "exact",
    "how well the group can be guessed from what is shared",
    "not private: share of validation records whose group a linear adversary recovers from the representations, as a "
    "mean over groups and over records; share of the largest group; how many groups were counted",
    "only with `evaluation = exact` (not private, and about s of training records too), once for each protected "
    "attribute: how often an adversary that was fitted in secret recovers s of validation records from the encodings "
    "of all parties, as a mean over groups and over records; the share of the largest group; all over the groups "
    "with `min_group` records, and how many these are. By default on data that may be pooled alone (`leak = true` "
    "asks for it on others)",
    times=lambda facts: len(facts.groups) if facts.leak and facts.evaluation == "exact" else 0,
)
EVALUATION = Kind(
    "evaluation",
    "all",
    "evaluation",
    ("sums",),
    "charged",
    "test results, this page's figures",
    "noisy sums over the test records: ",
    "noisy sums over the test records: decisions that are right; records by group, label and decision; flips under "
    "each judge and under its null control (of regressions: squared errors and shifts). Charged to the evaluation "
    "ledger of these records: epsilon 4 at delta 1e-5 for four evaluations of the same records "
    "(`evaluation_epsilon`, `evaluation_delta`, `evaluations`). Once for a model. With `align = hidden` also how "
    "many records these are",
    charge="evaluation",
)
EXACT_EVALUATION = Kind(
    "evaluation",
    "all",
    "exact evaluation",
    ("figures",),
    "exact",
    "test results, this page's figures",
    "exact figures of the test part, not private: ",
    "with `evaluation = exact` instead (not private): exact rates, means and gaps of the test records; flips and net "
    "flips under each judge, flips under its null control; which of these rest on too few records; not charged",
)
SLICES = Kind(
    "slices",
    "all",
    "exact evaluation",
    ("slice counts",),
    "exact",
    "test results of intersections of groups",
    "exact counts of the test part by group and another column, not private: ",
    "with `evaluation = exact` and data that may be pooled, if `slices` names a column: for each group crossed with "
    "each value of it, how many test records each rate rests on and how many count; 0 below `min_group`; not charged",
)
PREDICTIONS = Kind(
    "predictions",
    "receiver",
    "prediction",
    ("records", "*"),
    "asked",
    "scores of the example records",
    "of new records, as asked for: ",
    "decision of each new record (its logit if asked for with `--scores`), once for each person and model, for at "
    "most as many people as all approved (`predictions`); on public benchmark data a run uses it "
    "once, for the logits of 24 test records before and after an edit, to show in its page. In mode "
    "`aware` it follows from s of the record too. With `align = hidden`: a bit for each, and the decision where it "
    "is 1: do all parties hold this record",
)
REFUSED_RECORDS = Kind(
    "refused records",
    "receiver",
    "prediction",
    ("records",),
    "asked",
    "which new records a party could not read, or has answered for before",
    "for each new record: 1 if some party cannot read a cell of it, or gave other values when it was decided before; "
    "2 if some party has it on record as decided",
    "which new records have a cell that some party, it is not said which, cannot read by the public description, or "
    "gave another value for when the person was decided before; and which people some party has on record as decided "
    "by this model; their decision is 0 and tells nothing",
)
GRADIENT = Kind(
    "gradient P",
    "owner",
    "split",
    ("*",),
    "uncharged",
    "gradients of its own part, which tell the labels and s",
    "split learning: the loss gradient in the party's own activations; it reveals the labels, and s with consistency",
    "`split`, every step: the loss gradient in P's own activations; it reveals the label of nearly every training "
    "record; the report says how many (`attacks/gradients.py`). Steps with consistency also tell s of training "
    "records; nothing is charged",
)
EDITING_PARTIES = Kind(
    "editing parties",
    "all",
    "split",
    ("*",),
    "follows",
    "who has mediators",
    "who has mediators, which follows from the public roles",
    "`split`: who has mediators, which the roles tell anyway; again after each late refresh",
    follows=("hsic", "scores"),
    times=_rounds,
)
EARLY_STOPPING = Kind(
    "early stopping",
    "all",
    "split",
    ("1",),
    "exact",
    "after each step: does training go on?",
    "not private: one bit: the validation objective got better in one of the last steps",
    "`split` with method `paper`, only with `evaluation = exact` (not private): after each step one bit, whether log "
    "loss, gap and flips of the validation part, added up, got better in one of the last steps (as many as the "
    "paper's patience); it is 1 until training stops",
)
NOISY_GRADIENT = Kind(
    "noisy gradient P",
    "owner",
    "dp",
    ("parameters",),
    "charged",
    "noisy gradients of its own encoder",
    "dp encoders: sum over records of clipped gradients times residuals, noised in secret",
    "`dp`, ten steps (`--dp-steps`): the sum over records (with `--dp-sampling` over a secret sample of them) of P's "
    "clipped gradients times the residuals, with discrete Gaussian noise; charged with the sketches to the same cap",
    charge="dp gradient-K",
    pays="dp gradient",
)
CATALOGUE = tuple(k for k in (*vars(alignment_kinds).values(), *tuple(vars().values())) if isinstance(k, Kind))
"""Every kind of an alignment and of this module, in their order."""


def plan_of(facts: Facts, *stages: Stage) -> list[Release]:
    """Every release of these stages."""
    return [release for kind in CATALOGUE if kind.stage in stages for release in kind.releases(facts)]


def charged_statistics(*settings: object) -> int:
    """How many charges a run with these settings makes for statistics of s: its budget is planned for them."""
    facts = Facts({0: {"some feature": 1}}, (2,)).with_settings(*settings)
    return len({release.event for release in plan_of(facts, "discovery") if release.event is not None})


def kind_of(name: str, *, charged: bool) -> Kind | None:
    """The kind of a release in a log, or None if an older version made it."""
    found = [kind for kind in CATALOGUE if kind.is_name(name)]
    alike = [kind for kind in found if (kind.charge is not None) == charged]
    return next(iter([*alike, *found]), None)


def owner_title(charge: str, rank: int) -> str:
    """The name of the part of a statistic that goes to one owner of columns."""
    return f"{charge} for party {rank}"
