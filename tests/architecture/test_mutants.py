"""The list of `make mutants` fits the code, so that it cannot rot between two runs of it."""

import ast
from dataclasses import replace
from functools import cache

import pytest

from tests.mutants.mutation import ROOT, Mutation, MutationError, Selection, read_list
from tests.mutants.run import Workshop, usual_times

MUTATIONS = read_list()
TESTS = Selection(("tests/architecture/test_mutants.py",))


def test_there_are_enough_of_them():
    assert len(MUTATIONS) >= 40


@cache
def functions(file):
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def misfit(mutation):
    """Why a mutation does not fit the code or names tests that do not exist; "" if it fits."""
    try:
        if mutation.applied(ROOT) == (ROOT / mutation.file).read_text():
            return "changes nothing"
        names = [wanted.partition("::")[::2] for wanted in mutation.tests.files]
        return ", ".join(f"no test {name} in {file}" for file, name in names if {name} - functions(file) - {""})
    except (MutationError, OSError) as error:
        return str(error)


def test_every_mutation_fits_the_code_and_its_tests_exist():
    assert {mutation.name: reason for mutation in MUTATIONS if (reason := misfit(mutation))} == {}


def test_a_misfit_is_noticed():
    gone, here = Selection(("tests/architecture/test_mutants.py::test_of_nothing",)), "protocols/records/chain.py"
    fits = Mutation("test", here, "def unused_name(", "def unused_name2(", TESTS, "test")
    assert misfit(fits) == ""
    assert "test_of_nothing" in misfit(replace(fits, tests=gone))
    assert "0 times" in misfit(replace(fits, old="nowhere to be found"))
    assert "gone.py" in misfit(replace(fits, file="protocols/gone.py"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nowhere to be found", "x", "0 times"),
        ("def ", "x", "times in"),
        ("def unused_name(", "def (", "does not compile"),
        ("", "x", "lacks a field"),
        ("def unused_name(", "def unused_name(", "changes nothing"),
    ],
)
def test_a_change_that_cannot_be_made_is_an_error(old, new, message):
    with pytest.raises(MutationError, match=message):
        Mutation("test", "protocols/records/chain.py", old, new, TESTS, "test").applied(ROOT)


@pytest.mark.parametrize(
    "text",
    [
        '[[mutation]]\nname = "a"\n',
        '[[mutation]]\nname = "a"\nfile = "f"\nold = "o"\nnew = "n"\ntests = ["t"]\nwhy = "w"\nmore = 1\n',
        2 * '[[mutation]]\nname = "a"\nfile = "f"\nold = "o"\nnew = "n"\ntests = ["t"]\nwhy = "w"\n',
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(tmp_path, text):
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(MutationError, match=r"other fields|named twice"):
        read_list(tmp_path / "list.toml")


CHAIN = Selection(("tests/unit/protocols/test_releases.py::test_a_head_stands_for_every_line_before_it",))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('if key != "hash"}', 'if key not in ("hash", "previous")}', "killed"),
        ("START = ", "START: str = ", "SURVIVED"),
        ("START = ", "raise ImportError\nSTART = ", "ERROR"),
    ],
)
def test_a_verdict_says_what_happened_and_the_copy_is_as_it_was(workshop, old, new, word):
    mutation = Mutation("test", "protocols/records/chain.py", old, new, CHAIN, "test")
    verdict = workshop.evaluate(mutation, usual=1.0)
    assert verdict.word == word
    assert (workshop.root / mutation.file).read_text() == (ROOT / mutation.file).read_text()


def test_tests_that_hang_are_ended(workshop):
    assert workshop.run(CHAIN, limit=0.01).code is None


def test_tests_that_are_not_there_are_no_measure(workshop):
    with pytest.raises(MutationError, match="without any mutation"):
        usual_times(workshop, [Selection(("tests/unit/protocols/test_releases.py::test_of_nothing",))])
