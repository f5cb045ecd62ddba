"""A policy card that declares a use of s."""

from __future__ import annotations

from pathlib import Path

from secure_sccvfl.data.catalogue import load

ENTRY = """
[aware]
purpose = "offer both groups the same rate of loans"
legal_basis = "a test"
owner = "policy board"
review_due = "2999-01-31"
"""
HEAD = 'dataset = "german"\nversion = "1"\nowners = ["policy board"]\n[decisions]\n'
ROLES = {"M": ("employment_since", "credit_history", "savings", "job"), "P": ("housing", "num_dependents")}


def write_card(path: Path, entry: str = ENTRY) -> Path:
    """A card for German that decides every column, with mediators at every party, and this entry."""
    decided = {name: role for role in ROLES for name in ROLES[role]}
    roles = {feature.name: decided.get(feature.name, "N") for feature in load("german").features}
    lines = [
        f'{name} = {{ role = "{role}", reason = "fixed for a test", evidence = "a test" }}'
        for name, role in roles.items()
    ]
    path.write_text(HEAD + "\n".join(lines) + entry)
    return path
