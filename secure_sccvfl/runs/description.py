"""The public words of a data set, for people: what is decided, about whom, and what each column means."""

from __future__ import annotations

from typing import Any

from secure_sccvfl.data.catalogue import loader_of
from secure_sccvfl.data.features import NOTES
from secure_sccvfl.data.party_data import Schema


def describe(dataset: str, schema: Schema) -> dict[str, Any]:
    """Label, protected attributes and columns with their words; nothing here comes from a record."""
    spec = loader_of(dataset).words(dataset)
    label = spec["label"]
    return {
        "about": spec.get("about", ""),
        "task": schema.task,
        "label": {
            "holder": schema.parties[schema.label_holder],
            "meaning": label.get("meaning", ""),
            "classes": list(schema.classes),
            "labels": label.get("labels") or list(schema.classes),
            "low": label.get("low"),
            "high": label.get("high"),
        },
        "protected": [
            {
                "name": attribute.name,
                "holder": attribute.holder,
                "meaning": entry.get("meaning", ""),
                "groups": list(attribute.groups),
                "labels": entry.get("labels") or list(attribute.groups),
            }
            for attribute, entry in zip(schema.protected, spec["protected"], strict=True)
        ],
        "features": {
            f.name: {
                "kind": f.kind,
                "meaning": f.meaning,
                "unit": f.unit,
                "labels": dict(zip(f.categories, f.labels or f.categories, strict=True)),
                **{note: getattr(f, note) for note in NOTES if getattr(f, note)},
            }
            for own in schema.features
            for f in own
        },
    }
