"""The list of attacks: what each takes, and its name in reports. One entry per attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.attacks.view import Rate

Takes = Literal["view", "white box", "gradients", "shares", "columns"]
_TRAINED = "rounds of training the attacker"


@dataclass(frozen=True)
class Attack:
    """An attack is a function of what an adversary holds and a seed. It returns rates, the strongest setting last.

    `takes`: what it needs, as in attacks/view.py; shares are a View too. `title` and `strength`: the attack and
    what makes it stronger, on the page. `guessed`: what it guesses, as a heading. `secret`: the same in a sentence.
    `curve`: its strength on an axis. Tables over seeds name its figures after `stem`: `metric` is one rate of one
    view, `main` the figure of the main table, `columns` those of the table of attacks.
    """

    takes: Takes
    place: str
    title: str
    strength: str
    stem: str
    metric: str
    main: str = ""
    columns: tuple[str, ...] = ()
    guessed: str = ""
    secret: str = ""
    curve: str = ""

    @property
    def run(self) -> Callable[[Any, int], list[Rate]]:
        function: Callable[[Any, int], list[Rate]] = imported(self.place)
        return function


ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "aia": Attack(
            takes="view",
            place="secure_sccvfl.attacks.attributes:attribute_inference",
            title="Guessing the protected attribute",
            strength=_TRAINED,
            stem="aia",
            metric="aia_{view}_{way}",
            main="aia_logits",
            columns=("aia_logits", "aia_z"),
            guessed="s of a record (balanced; attribute inference)",
            secret="protected attribute",
            curve="epochs, s",
        ),
        "label": Attack(
            takes="gradients",
            place="secure_sccvfl.attacks.labels:label_inference",
            title="Guessing the label",
            strength=_TRAINED,
            stem="labels",
            metric="labels_{way}",
            columns=("labels_example", "labels_batch", "labels_batch_noise1", "labels_chance"),
            guessed="y of a record (balanced, but where chance is the majority rate)",
            secret="label",
            curve="epochs, y",
        ),
        "features": Attack(
            takes="columns",
            place="secure_sccvfl.attacks.columns:feature_inference",
            title="Guessing columns of another party",
            strength="what is shown",
            stem="features",
            metric="features_{way}",
            columns=("features_own", "features_logits", "features_z", "features_chance"),
        ),
        "shares": Attack(
            takes="shares",
            place="secure_sccvfl.attacks.attributes:attribute_inference",
            title="Telling two secrets apart by their shares",
            strength=_TRAINED,
            stem="shares",
            metric="shares_{way}",
            guessed="which of two secrets was shared",
        ),
        "pgd": Attack(
            takes="white box",
            place="secure_sccvfl.attacks.perturbation:subspace_pgd_curve",
            title="Flipping decisions by moving mediators",
            strength="how far each may move, as a share of its range",
            stem="pgd",
            metric="pgd_sr_{way}",
            main="pgd_sr",
            columns=("pgd_sr_0.02", "pgd_sr_0.05", "pgd_sr_0.10", "pgd_sr_0.20"),
            curve="PGD radius",
        ),
    },
)


def on_models_first() -> list[tuple[str, Attack]]:
    """The attacks in the order of tables: first those on a whole model, then those on what somebody sees."""
    return sorted(ATTACKS.items(), key=lambda item: item[1].takes != "white box")
