"""One way to every data set: who reads a name, what may be pooled, and a file that is read once."""

import os

import numpy as np
import pytest

from secure_sccvfl.data import catalogue
from secure_sccvfl.data.catalogue import LOADERS, dataset_help, forget, is_benchmark, load, loader_of
from secure_sccvfl.data.features import DataError
from tests.unit.data.test_dataset import write


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_takes_its_example_and_no_other_does(name: str) -> None:
    loader = LOADERS.get(name)
    assert [other for other, each in LOADERS.items() if each.takes(loader.example)] == [name]
    assert loader_of(loader.example) is loader and loader.example in dataset_help() and loader.help in dataset_help()


def test_only_a_description_of_ones_own_may_not_be_pooled() -> None:
    assert [name for name, loader in LOADERS.items() if not is_benchmark(loader.example)] == ["own"]


def test_a_name_that_nobody_takes_is_told_with_what_there_is() -> None:
    for use in (load, is_benchmark):
        with pytest.raises(DataError, match="no data set 'moon': use one of german, heart"):
            use("moon")


def test_a_data_set_is_read_once_and_again_when_its_files_change(tmp_path, monkeypatch) -> None:
    path = write(tmp_path)
    forget()
    first = load(str(path))
    assert load(str(path)) is first
    table = next(path.parent.glob("*.csv"))
    os.utime(table, ns=(1, 1))
    second = load(str(path))
    assert second is not first and np.array_equal(second.values, first.values, equal_nan=True)
    forget()
    assert load(str(path)) is not second
    monkeypatch.setattr(catalogue.Loader, "read", lambda loader, name: pytest.fail("read again"))
    load(str(path))
    with pytest.raises(pytest.fail.Exception, match="read again"):
        load("german")


@pytest.mark.parametrize("name", ["german", "synthetic:100"])
def test_every_loader_has_words_for_the_label_and_the_protected_attributes(name: str) -> None:
    words = loader_of(name).words(name)
    assert "meaning" in words["label"] and len(words["protected"]) == len(load(name).protected)
