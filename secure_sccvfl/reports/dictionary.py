"""Columns, groups, classes and values in the words of a run's public dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Dictionary:
    """The `data` part of a report, or `description.describe`."""

    data: Mapping[str, Any]

    @cached_property
    def groups(self) -> dict[str, str]:
        first = self.data["protected"][0]
        return dict(zip(first["groups"], first["labels"], strict=True))

    @cached_property
    def classes(self) -> dict[str, str]:
        label = self.data["label"]
        return dict(zip(label["classes"], label["labels"], strict=True))

    def name(self, feature: str) -> str:
        return str(self.data["features"][feature]["meaning"] or feature.replace("_", " "))

    def value(self, feature: str, text: str) -> str:
        """A cell in words: a label, or a number with its unit."""
        words = self.data["features"][feature]
        if not text:
            return "not known"
        return str(words["labels"].get(text, f"{short(text)} {words['unit']}".strip()))

    def move(self, moved: Mapping[str, Any]) -> dict[str, Any]:
        """A column that an edit moves. One that moves a part of the way only says how far."""
        old, new = (self.value(moved["feature"], moved[end]) for end in ("from", "to"))
        if old == new:
            new = f"{100 * moved['size']:.0f} % of the way to another value"
        return {"name": self.name(moved["feature"]), "role": moved.get("role", "M"), "from": old, "to": new}

    def outcome(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """A decision in words, and the score beside it."""
        if self.data["task"] == "regression":
            label = self.data["label"]
            return {
                "decision": f"{label['low'] + seen['score'] * (label['high'] - label['low']):.4g}",
                "score": seen["score"],
            }
        return {"decision": self.classes[seen["decision"]], "score": seen["score"]}

    @property
    def score(self) -> str:
        """What a score is."""
        label = self.data["label"]
        return {
            "binary": f"probability of “{label['labels'][-1]}”" if label["labels"] else "",
            "multiclass": "probability of the decision",
            "regression": "place in the label's range",
        }[self.data["task"]]


def short(text: str) -> str:
    """A number with as many digits as people read; other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    return text if value.is_integer() else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
