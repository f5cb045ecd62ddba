"""The registry of attacks: one entry per attack serves `launch/reproduce.py` and `launch/security_eval.py`.

To add an attack: write its module in this package and add its entry here. Both programs then run it, with its
positive control, on every view of the kind that it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.audit.attacks.view import Rate

SHOWN, NO_GAIN, BOUND, TARGET = "shown", "no gain", "within its bound", "target"
_TRAINED = "rounds of training the attacker"


def _function(name: str) -> Callable[..., Any]:
    """A function "module:name" of this package; imported at first use, since attacks import torch."""
    function: Callable[..., Any] = imported(f"secure_sccvfl.audit.attacks.{name}")
    return function


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack is a function of what an adversary holds and a seed. It returns rates, the strongest setting last.

    takes: the kind of view that it needs (`evaluation/views.py` and `audit/evaluation.py` build them). function,
    positive: "module:name" of the attack and of its positive control, which runs the attack where the secret is there
    to be found (`found` says where). The control's lower bound must reach `least` of the way from chance to
    certainty; otherwise the attacker is broken.

    title, strength: the attack and what makes it stronger, in charts. guessed: what it guesses, as a heading; secret:
    the same in a sentence. Tables over seeds name its figures after `stem`: `metric` is one rate of one view, `main`
    the figure of the main table, `columns` those of the table of attacks.

    The rest is for `security_eval`. on_transcripts: it runs on everything that each party saw. promise: what must
    hold for its rate: "no gain" over the guesses of the same adversary without the view, which `paired` returns with
    its own; "target", at most `limit`; "within its bound", at most what `bound` says of the view and the rate;
    "shown", nothing. hidden: property of the mode that must be "hidden" for the promise. own_first: its first rate is
    the control, of own columns. needs: what a run needs for it. paper_only: for comparison with the paper's tables.
    """

    takes: str
    function: str
    positive: str
    found: str
    least: float
    title: str
    stem: str
    strength: str = ""
    metric: str = ""
    main: str = ""
    columns: tuple[str, ...] = ()
    guessed: str = ""
    secret: str = ""
    on_transcripts: bool = False
    promise: str = SHOWN
    limit: float | None = None
    paired: str = ""
    bound: str = ""
    hidden: str = ""
    own_first: bool = False
    needs: str = "a label with classes"
    paper_only: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric or f"{self.stem}_{{way}}")

    def run(self, view: Any, seed: int) -> list[Rate]:
        rates: list[Rate] = _function(self.function)(view, seed)
        return rates

    def control(self, view: Any, seed: int) -> list[Rate]:
        """Run the positive control."""
        return replace(self, function=self.positive).run(view, seed)

    def guesses(self, view: Any, seed: int) -> tuple[Any, Any, Any]:
        """Of a paired attack: guesses, those of the same adversary without the view, and the truth."""
        guess, control, truth = _function(self.paired)(view, seed)
        return guess, control, truth

    def bound_of(self, view: Any, rate: Rate) -> float:
        return float(_function(self.bound)(view, rate))

    def succeeds(self, rate: Rate) -> bool:
        """Whether a positive control found what is there, up to the lower bound of its rate."""
        return rate.low - rate.chance >= self.least * (1 - rate.chance)


ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "aia": Attack(
            takes="view",
            function="attributes:attribute_inference",
            title="Guessing the protected attribute",
            strength=_TRAINED,
            stem="aia",
            metric="aia_{view}_{way}",
            positive="attributes:planted",
            found="a column that follows s is planted",
            least=0.3,
            main="aia_logits",
            columns=("aia_logits", "aia_z"),
            guessed="s of a record (balanced; attribute inference)",
            secret="protected attribute",
            on_transcripts=True,
        ),
        "label": Attack(
            takes="gradients",
            function="labels:label_inference",
            title="Guessing the label",
            strength=_TRAINED,
            stem="labels",
            positive="labels:opened_gradients",
            found="gradients of single records are opened",
            least=0.5,
            columns=("labels_example", "labels_batch", "labels_batch_noise1", "labels_chance"),
            guessed="y of a record (balanced, but where chance is the majority rate)",
            secret="label",
            on_transcripts=True,
        ),
        "features": Attack(
            takes="columns",
            function="columns:feature_inference",
            title="Guessing columns of another party",
            stem="features",
            positive="columns:shown_columns",
            found="the column itself is shown",
            least=0.5,
            columns=("features_own", "features_logits", "features_z", "features_chance"),
            guessed="a column of another party from the scores of people (control: from own columns)",
            secret="columns of another party, by scores,",
            own_first=True,
            needs="a column of another party that varies",
        ),
        "shares": Attack(
            takes="shares",
            function="attributes:attribute_inference",
            title="Telling two secrets apart by their shares",
            strength=_TRAINED,
            stem="shares",
            positive="attributes:planted",
            found="a column that follows the secret is planted",
            least=0.3,
            guessed="which of two secrets was shared",
            on_transcripts=True,
        ),
        "pgd": Attack(
            takes="white box",
            function="perturbation:feasible_pgd_curve",
            title="Flipping decisions by moving mediators",
            strength="how far each number may move, as a share of its range; one category may change",
            stem="moves",
            metric="moves_sr_{way}",
            positive="perturbation:linear_in_mediators",
            found="records that can be flipped, of a linear model of the mediators alone",
            least=0.8,
            main="moves_sr",
            columns=("moves_sr_0.02", "moves_sr_0.05", "moves_sr_0.10", "moves_sr_0.20"),
            needs="a label with classes, and a mediator",
        ),
        "pgd_paper": Attack(
            takes="white box",
            function="perturbation:subspace_pgd_curve",
            title="Flipping decisions by moving mediators, also by fractions of a category (as in the paper)",
            strength="how far each column may move",
            stem="pgd",
            metric="pgd_sr_{way}",
            positive="perturbation:linear_in_mediators",
            found="records that can be flipped, of a linear model of the mediators alone",
            least=0.8,
            main="pgd_sr",
            columns=("pgd_sr_0.02", "pgd_sr_0.05", "pgd_sr_0.10", "pgd_sr_0.20"),
            paper_only=True,
        ),
        "membership": Attack(
            takes="candidates",
            function="training_data:membership_inference",
            title="Telling training records from others by predictions",
            stem="mia",
            positive="training_data:memorising",
            found="a head that fits every label",
            least=0.2,
            columns=("mia_confidence", "mia_per_class", "mia_lira", "mia_chosen", "mia_chance"),
            guessed="whether a record was trained on (membership inference)",
            secret="membership in the training set",
            promise=TARGET,
            limit=0.6,  # an aim: e^eps / (1 + e^eps) of a private head says little at the epsilon of a small data set
        ),
        "retraining": Attack(
            takes="retrained heads",
            function="training_data:retraining_attack",
            title="Guessing the protected attribute from many trainings",
            stem="retraining",
            positive="training_data:undefended",
            found="a penalty built from records, heads without noise",
            least=0.95,
            columns=("retraining_48_trainings", "retraining_chance"),
            guessed="s of a training record from heads of many trainings (control: from x and released tables)",
            secret="protected attribute, by training again,",
            promise=NO_GAIN,
            paired="training_data:recovered",
            needs="mode sealed, a label with two classes, and a mediator that is edited",
        ),
        "completion": Attack(
            takes="part of a model",
            function="labels:model_completion",
            title="Guessing the label by completing a party's part of the model",
            stem="completion",
            metric="completion_{view}_{way}",
            positive="labels:trained_on_labels",
            found="an encoder that learnt from the labels",
            least=0.2,
            guessed="y of a record from a party's encodings and a few labels (control: from its own columns)",
            secret="label, by a party's encodings,",
            promise=NO_GAIN,
            paired="labels:completed",
            hidden="labels",
        ),
        "inversion": Attack(
            takes="answers",
            function="columns:feature_inversion",
            title="Guessing columns of another party from one answer per person",
            stem="inversion",
            positive="columns:unmetered",
            found="as many answers per person as unknowns",
            least=0.9,
            columns=("inversion_equations", "inversion_generative", "inversion_chosen", "inversion_chance"),
            guessed="a column of another party from the score of a person (balanced, mean over columns)",
            secret="columns of another party",
            needs="scores that are linear in the columns; encoders of this run are networks",
        ),
        "reconstruction": Attack(
            takes="opened gradients",
            function="columns:gradient_reconstruction",
            title="Guessing columns of another party from opened gradients",
            stem="reconstruction",
            positive="columns:summed_gradients",
            found="gradients of the others' first layer are opened as sums over batches",
            least=0.5,
            guessed="a column of another party from opened gradients (balanced, mean over columns)",
            secret="columns of another party, by gradients,",
            own_first=True,
            needs="a mode that opens gradients of records",
        ),
        "property": Attack(
            takes="tables",
            function="training_data:property_inference",
            title="Telling by released tables how many records are in a group",
            stem="property",
            positive="training_data:exact_tables",
            found="tables without noise",
            least=0.95,
            columns=("property_share_of_1", "property_cells_of_1", "property_chance"),
            guessed="which of two training sets, from released tables (control: what accounting allows)",
            secret="number of records in a group",
            promise=BOUND,
            bound="training_data:allowed_rate",
            needs="released tables of counts of known records",
        ),
    },
)


def on_models_first() -> list[tuple[str, Attack]]:
    """The attacks in the order of tables: first those on a whole model, then those on what somebody sees."""
    return sorted(ATTACKS.items(), key=lambda item: item[1].takes != "white box")
