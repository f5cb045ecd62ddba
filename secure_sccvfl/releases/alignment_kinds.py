"""What an alignment opens: the first lines of the catalogue of releases."""

from __future__ import annotations

from protocols.alignment.seam import COMMON, EQUAL, SIZES, UNION
from secure_sccvfl.releases.kinds import Kind

ALIGNMENT = Kind(
    EQUAL,
    "all",
    "alignment",
    ("other parties",),
    "uncharged",
    "check: do all hold the same records?",
    "does each other party hold the records of the first, in the same order",
    "with `align = exact`: one bit for each party but the first: does it hold the same records, in the same order, "
    "as the first; a 0 stops the run",
    times=lambda facts: int(facts.align == "exact"),
)
PLACES = Kind(
    UNION,
    "all",
    "alignment",
    ("*",),
    "uncharged",
    "how many different records the parties have",
    "the size of the common table, the same for all",
    "with `align = hidden`: how many different records all parties together hold, in the training part and in the "
    "validation part; from it each knows how many the others hold that it does not; two runs with one record more "
    "tell whether anybody else holds that record (`align_bounds` hides both)",
    times=lambda facts: 2 * int(facts.align == "hidden"),
)
LIST_SIZES = Kind(
    SIZES,
    "all",
    "alignment",
    ("*",),
    "uncharged",
    "how many records each party has",
    "sizes of the lists that are compared",
    "with `align = revealed`: how many records each party has",
    times=lambda facts: int(facts.align == "revealed"),
)
COMMON_RECORDS = Kind(
    COMMON,
    "all",
    "alignment",
    ("*",),
    "uncharged",
    "which records all parties hold",
    "the records that all parties hold, each by its own ids",
    "with `align = revealed`: how many records all parties hold; each party learns which of its own these are",
    times=lambda facts: int(facts.align == "revealed"),
)
