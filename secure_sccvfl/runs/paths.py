"""Names of files in a party's folder of a run. Importing this module imports nothing."""

CARD, DESCRIPTION = "card.json", "description.toml"
"""Copies of the public files that a run was given, in each party's folder."""
