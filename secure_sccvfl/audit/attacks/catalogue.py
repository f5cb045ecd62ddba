"""The list of attacks: what each takes, and its name in reports. One entry per attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.audit.attacks.view import Rate

Takes = Literal[
    "view",
    "white box",
    "gradients",
    "shares",
    "columns",
    "candidates",
    "retrained heads",
    "part of a model",
    "answers",
    "opened gradients",
    "tables",
]
_TRAINED = "rounds of training the attacker"


@dataclass(frozen=True)
class Attack:
    """An attack is a function of what an adversary holds and a seed. It returns rates, the strongest setting last.

    `takes`: what it needs, as in attacks/view.py; shares are a View too. `title` and `strength`: the attack and
    what makes it stronger, on the page. `guessed`: what it guesses, as a heading. `secret`: the same in a sentence.
    `curve`: its strength on an axis. Tables over seeds name its figures after `stem`: `metric` is one rate of one
    view, `main` the figure of the main table, `columns` those of the table of attacks.

    `positive`: the positive control, a function like the attack that runs it where the secret is there to be found,
    and `found` says where. Its lower bound must reach `least` of the way from chance to certainty; otherwise the
    attacker is broken, and what it does not find means nothing.
    """

    takes: Takes
    place: str
    title: str
    strength: str
    stem: str
    metric: str
    positive: str
    found: str
    least: float
    main: str = ""
    columns: tuple[str, ...] = ()
    guessed: str = ""
    secret: str = ""
    curve: str = ""

    @property
    def run(self) -> Callable[[Any, int], list[Rate]]:
        function: Callable[[Any, int], list[Rate]] = imported(self.place)
        return function

    @property
    def control(self) -> Callable[[Any, int], list[Rate]]:
        function: Callable[[Any, int], list[Rate]] = imported(self.positive)
        return function

    def succeeds(self, rate: Rate) -> bool:
        """Whether a positive control found what is there, up to the lower bound of its rate."""
        return rate.low - rate.chance >= self.least * (1 - rate.chance)


ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "aia": Attack(
            takes="view",
            place="secure_sccvfl.audit.attacks.attributes:attribute_inference",
            title="Guessing the protected attribute",
            strength=_TRAINED,
            stem="aia",
            metric="aia_{view}_{way}",
            positive="secure_sccvfl.audit.attacks.attributes:planted",
            found="a column that follows s is planted",
            least=0.3,
            main="aia_logits",
            columns=("aia_logits", "aia_z"),
            guessed="s of a record (balanced; attribute inference)",
            secret="protected attribute",
            curve="epochs, s",
        ),
        "label": Attack(
            takes="gradients",
            place="secure_sccvfl.audit.attacks.labels:label_inference",
            title="Guessing the label",
            strength=_TRAINED,
            stem="labels",
            metric="labels_{way}",
            positive="secure_sccvfl.audit.attacks.labels:opened_gradients",
            found="gradients of single records are opened",
            least=0.5,
            columns=("labels_example", "labels_batch", "labels_batch_noise1", "labels_chance"),
            guessed="y of a record (balanced, but where chance is the majority rate)",
            secret="label",
            curve="epochs, y",
        ),
        "features": Attack(
            takes="columns",
            place="secure_sccvfl.audit.attacks.columns:feature_inference",
            title="Guessing columns of another party",
            strength="what is shown",
            stem="features",
            metric="features_{way}",
            positive="secure_sccvfl.audit.attacks.columns:shown_columns",
            found="the column itself is shown",
            least=0.5,
            columns=("features_own", "features_logits", "features_z", "features_chance"),
        ),
        "shares": Attack(
            takes="shares",
            place="secure_sccvfl.audit.attacks.attributes:attribute_inference",
            title="Telling two secrets apart by their shares",
            strength=_TRAINED,
            stem="shares",
            metric="shares_{way}",
            positive="secure_sccvfl.audit.attacks.attributes:planted",
            found="a column that follows the secret is planted",
            least=0.3,
            guessed="which of two secrets was shared",
        ),
        "pgd": Attack(
            takes="white box",
            place="secure_sccvfl.audit.attacks.perturbation:feasible_pgd_curve",
            title="Flipping decisions by moving mediators",
            strength="how far each number may move, as a share of its range; one category may change",
            stem="moves",
            metric="moves_sr_{way}",
            positive="secure_sccvfl.audit.attacks.perturbation:linear_in_mediators",
            found="records that can be flipped, of a linear model of the mediators alone",
            least=0.8,
            main="moves_sr",
            columns=("moves_sr_0.02", "moves_sr_0.05", "moves_sr_0.10", "moves_sr_0.20"),
            curve="PGD radius",
        ),
        "pgd_paper": Attack(
            takes="white box",
            place="secure_sccvfl.audit.attacks.perturbation:subspace_pgd_curve",
            title="Flipping decisions by moving mediators, also by fractions of a category (as in the paper)",
            strength="how far each column may move",
            stem="pgd",
            metric="pgd_sr_{way}",
            positive="secure_sccvfl.audit.attacks.perturbation:linear_in_mediators",
            found="records that can be flipped, of a linear model of the mediators alone",
            least=0.8,
            main="pgd_sr",
            columns=("pgd_sr_0.02", "pgd_sr_0.05", "pgd_sr_0.10", "pgd_sr_0.20"),
        ),
        "membership": Attack(
            takes="candidates",
            place="secure_sccvfl.audit.attacks.membership:membership_inference",
            title="Telling training records from others by predictions",
            strength="attacker",
            stem="mia",
            metric="mia_{way}",
            positive="secure_sccvfl.audit.attacks.membership:memorising",
            found="a head that fits every label",
            least=0.2,
            columns=("mia_confidence", "mia_per_class", "mia_lira", "mia_chosen", "mia_chance"),
            guessed="whether a record was trained on (membership inference)",
            secret="membership in the training set",
        ),
        "retraining": Attack(
            takes="retrained heads",
            place="secure_sccvfl.audit.attacks.retraining:retraining_attack",
            title="Guessing the protected attribute from many trainings",
            strength="number of trainings",
            stem="retraining",
            metric="retraining_{way}",
            positive="secure_sccvfl.audit.attacks.retraining:undefended",
            found="a penalty built from records, heads without noise",
            least=0.95,
            columns=("retraining_48_trainings", "retraining_chance"),
            guessed="s of a training record from heads of many trainings (control: from x and released tables)",
            secret="protected attribute, by training again,",
        ),
        "completion": Attack(
            takes="part of a model",
            place="secure_sccvfl.audit.attacks.completion:model_completion",
            title="Guessing the label by completing a party's part of the model",
            strength="attacker",
            stem="completion",
            metric="completion_{view}_{way}",
            positive="secure_sccvfl.audit.attacks.completion:trained_on_labels",
            found="an encoder that learnt from the labels",
            least=0.2,
            guessed="y of a record from a party's encodings and a few labels (control: from its own columns)",
            secret="label, by a party's encodings,",
        ),
        "inversion": Attack(
            takes="answers",
            place="secure_sccvfl.audit.attacks.inversion:feature_inversion",
            title="Guessing columns of another party from one answer per person",
            strength="attacker",
            stem="inversion",
            metric="inversion_{way}",
            positive="secure_sccvfl.audit.attacks.inversion:unmetered",
            found="as many answers per person as unknowns",
            least=0.9,
            columns=("inversion_equations", "inversion_generative", "inversion_chosen", "inversion_chance"),
            guessed="a column of another party from the score of a person (balanced, mean over columns)",
            secret="columns of another party",
        ),
        "reconstruction": Attack(
            takes="opened gradients",
            place="secure_sccvfl.audit.attacks.reconstruction:gradient_reconstruction",
            title="Guessing columns of another party from opened gradients",
            strength="what is shown",
            stem="reconstruction",
            metric="reconstruction_{way}",
            positive="secure_sccvfl.audit.attacks.reconstruction:summed_gradients",
            found="gradients of the others' first layer are opened as sums over batches",
            least=0.5,
            guessed="a column of another party from opened gradients (balanced, mean over columns)",
            secret="columns of another party, by gradients,",
        ),
        "property": Attack(
            takes="tables",
            place="secure_sccvfl.audit.attacks.properties:property_inference",
            title="Telling by released tables how many records are in a group",
            strength="number of records that differ",
            stem="property",
            metric="property_{way}",
            positive="secure_sccvfl.audit.attacks.properties:exact_tables",
            found="tables without noise",
            least=0.95,
            columns=("property_share_of_1", "property_cells_of_1", "property_chance"),
            guessed="which of two training sets, from released tables (control: what accounting allows)",
            secret="number of records in a group",
        ),
    },
)


def on_models_first() -> list[tuple[str, Attack]]:
    """The attacks in the order of tables: first those on a whole model, then those on what somebody sees."""
    return sorted(ATTACKS.items(), key=lambda item: item[1].takes != "white box")
