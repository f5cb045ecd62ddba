"""ACS person records (PUMS): ACSIncome and ACSMobility, from the folktables package or a csv by path.

Name a data set as `acs-income:PATH` or `acs-mobility:PATH` (a PUMS person file, or a table that already
holds the task's columns with `s` and `y`), or `acs-income@CA-2018` to let folktables fetch it. The protected
attribute is the race group. `acs-income-sex` has sex instead, and leaves the race group out.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected
from secure_sccvfl.data.features import DataError, Feature

_OCCUPATION = (0, 440, 960, 1560, 2060, 2970, 3550, 4160, 4700, 5000, 6005, 7000, 7705, 9005, 9999)
_BIRTHPLACE = (0, 60, 100, 200, 300, 400, 500, 600)
# fmt: off
_FREQUENT_OCCUPATIONS = (
    10, 20, 51, 52, 110, 120, 136, 140, 160, 205, 220, 230, 310, 350, 410, 420, 440, 530, 540, 630, 705, 710, 735,
    750, 800, 845, 850, 910, 1006, 1010, 1021, 1050, 1105, 1108, 1360, 1410, 1460, 1530, 1555, 2014, 2040, 2100,
    2145, 2205, 2300, 2310, 2320, 2330, 2350, 2360, 2545, 2634, 2850, 3050, 3090, 3160, 3255, 3500, 3545, 3601,
    3602, 3603, 3645, 3802, 3870, 3930, 4000, 4010, 4020, 4030, 4040, 4055, 4110, 4220, 4230, 4251, 4510, 4600,
    4621, 4700, 4710, 4720, 4760, 4810, 4840, 4850, 4920, 5000, 5110, 5120, 5160, 5240, 5400, 5522, 5550, 5610,
    5740, 5810, 5860, 5940, 6050, 6200, 6230, 6260, 6305, 6355, 6410, 6442, 7200, 7210, 7315, 7330, 7340, 7700,
    7750, 8030, 8140, 8740, 8990, 9130, 9600, 9610, 9620, 9640, 9645,
)
# fmt: on
"""Occupations of about .2 % or more of all employed people in the United States, as codes of the Census list of 2018.

Written from general knowledge of published national employment statistics (Current Population Survey, 2018), never
from counts of a file: columns of a model must not follow from records."""
_FREQUENT_BIRTHPLACES = (6, 12, 13, 17, 26, 36, 37, 39, 42, 48, 303)
"""The ten most populous states in the census of 2010, and Mexico, from the same knowledge."""


def _number(name: str, low: float, high: float, meaning: str, *edges: float) -> Feature:
    return Feature(name, "number", low, high, tuple(edges), missing=True, meaning=meaning)


def _code(name: str, edges: tuple[float, ...], frequent: tuple[float, ...], meaning: str) -> Feature:
    return Feature(name, "code", edges[0], edges[-1], edges, missing=True, frequent=frequent, meaning=meaning)


def _category(name: str, last: int, meaning: str, first: int = 1) -> Feature:
    values = tuple(str(v) for v in range(first, last + 1))
    return Feature(name, "category", categories=values, missing=True, meaning=meaning)


_COW = _category("COW", 9, "class of worker")
_SCHL = _category("SCHL", 24, "education")
_AGE = _number("AGEP", 0, 100, "age", 0, 25, 35, 45, 60, 100)
_SEX = _category("SEX", 2, "sex")
_MAR = _category("MAR", 5, "marital status")
_RELP = _category("RELP", 17, "relationship", 0)
INCOME = {
    "employer": (
        _COW,
        _code("OCCP", _OCCUPATION, _FREQUENT_OCCUPATIONS, "occupation"),
        _number("WKHP", 0, 99, "hours per week", 0, 20, 35, 41, 50, 99),
    ),
    "education_origin": (_SCHL, _code("POBP", _BIRTHPLACE, _FREQUENT_BIRTHPLACES, "place of birth")),
    "household": (_AGE, _SEX, _MAR, _RELP),
}
MOBILITY = {
    "employer": (
        _COW,
        _category("ESR", 6, "employment status"),
        _category("ESP", 8, "employment of parents"),
        _number("WKHP", 0, 99, "hours per week", 0, 20, 35, 41, 50, 99),
        _number("JWMNP", 0, 200, "minutes to work", 0, 10, 20, 30, 60, 200),
        _number("PINCP", -20000, 2000000, "income", -20000, 10000, 25000, 50000, 100000, 2000000),
    ),
    "education_origin": (
        _SCHL,
        _category("CIT", 5, "citizenship"),
        _category("NATIVITY", 2, "nativity"),
        _category("ANC", 8, "ancestry recode"),
    ),
    "household": (
        _AGE,
        _SEX,
        _MAR,
        _RELP,
        _category("DIS", 2, "disability"),
        _category("MIL", 4, "military service"),
        _category("DREM", 2, "cognitive difficulty"),
        _category("DEAR", 2, "hearing difficulty"),
        _category("DEYE", 2, "vision difficulty"),
        _category("GCL", 2, "grandparents with grandchildren"),
    ),
}
INCOME_SEX = {owner: tuple(f for f in features if f is not _SEX) for owner, features in INCOME.items()}
TASKS = {"acs-income": INCOME, "acs-income-sex": INCOME_SEX, "acs-mobility": MOBILITY}
SEX_TASKS = ("acs-income-sex",)


def _income(frame: pd.DataFrame) -> pd.DataFrame:
    """The published filter of ACSIncome, and income above 50,000 as label."""
    keep = (frame.AGEP > 16) & (frame.PINCP > 100) & (frame.WKHP > 0) & (frame.PWGTP >= 1)
    out = frame[keep].copy()
    out["y"] = (out.PINCP > 50000).astype(int)
    return out


def _mobility(frame: pd.DataFrame) -> pd.DataFrame:
    """The published filter of ACSMobility (ages 19-34), and same address a year ago as label."""
    out = frame[(frame.AGEP > 18) & (frame.AGEP < 35)].copy()
    out["y"] = (out.MIG == 1).astype(int)
    return out


def from_pums(task: str, frame: pd.DataFrame) -> Dataset:
    """A data set from PUMS person rows (or rows already filtered, with s and y)."""
    if task not in TASKS:
        raise DataError(f"unknown ACS task {task!r}; use one of {sorted(TASKS)}")
    columns = {f.name for fs in TASKS[task].values() for f in fs} | ({"SEX"} if task in SEX_TASKS else set())
    if not {"s", "y"} <= set(frame):
        mobility = task == "acs-mobility"
        _check_columns(task, columns | {"RAC1P"} | ({"MIG"} if mobility else {"PINCP", "PWGTP"}), frame)
        frame = _mobility(frame) if mobility else _income(frame)
        frame = frame.assign(s=frame.RAC1P.astype(int))
    _check_columns(task, columns, frame)
    if task in SEX_TASKS:
        frame = frame[frame.SEX.isin([1, 2])].assign(s=lambda persons: persons.SEX.astype(int))
    if "id" not in frame:
        frame = frame.assign(id=[f"r{i:07d}" for i in range(len(frame))])
    frame = frame.sort_values("id").reset_index(drop=True)
    groups, codes = np.unique(frame.s.to_numpy(), return_inverse=True)
    labels = frame.y.astype(int).to_numpy()
    if len(np.unique(labels)) < 2:
        raise DataError(f"{task}: only one class occurs")
    parties = tuple(
        PartyTable(name, features, np.column_stack([f.read(frame[f.name]) for f in features]))
        for name, features in TASKS[task].items()
    )
    name, meaning = ("SEX", "sex: 1 male, 2 female") if task in SEX_TASKS else ("RAC1P", "race group")
    protected = Protected(name, "household", tuple(str(g) for g in groups), codes.reshape(-1), meaning)
    label = Label("employer", labels, ("0", "1"), "1: the task's positive outcome")
    return Dataset(task, "binary", frame.id.to_numpy(str), parties, label, (protected,))


def _check_columns(task: str, needed: set[str], frame: pd.DataFrame) -> None:
    if lost := sorted(needed - set(frame)):
        raise DataError(f"{task}: the file has no column {lost}")


def read(name: str) -> Dataset:
    """`acs-task:csv path`, or `acs-task@STATE-YEAR`."""
    task, mark, origin = _parts(name)
    if mark == "@":
        state, _, year = origin.partition("-")
        return from_pums(task, _fetch(state, year or "2018"))
    if not Path(origin).exists():
        raise DataError(f"no file {origin}")
    return from_pums(task, pd.read_csv(origin))


def files(name: str) -> list[Path]:
    """The local file that a name refers to, if any."""
    _, mark, origin = _parts(name)
    return [Path(origin)] if mark == ":" else []


def _parts(name: str) -> tuple[str, str, str]:
    task, mark, origin = re.split("([:@])", name, maxsplit=1)
    return task, mark, origin


def _fetch(state: str, year: str) -> pd.DataFrame:
    try:
        from folktables import ACSDataSource
    except ImportError as error:
        raise DataError("install the extra `folktables`, or give a PUMS csv by path") from error
    source = ACSDataSource(survey_year=year, horizon="1-Year", survey="person")
    return source.get_data(states=[state], download=True)
