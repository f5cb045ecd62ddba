"""Tables of what there is to choose from: whole when imported, slow parts imported when asked for."""

import pytest

from secure_sccvfl.data.registry import Registry, imported


class Wrong(Exception):
    pass


SMALL: Registry[object] = Registry("shape", {"ring": 1, "path": "pathlib:Path"}, Wrong)


def test_names_keep_their_order_and_stand_for_objects_or_for_places() -> None:
    assert SMALL.names == tuple(SMALL) == ("ring", "path")
    assert SMALL.get("ring") == 1 and SMALL.get("path") is imported("pathlib:Path")
    assert dict(SMALL.items())["ring"] == 1 and len(SMALL) == 2 and "ring" in SMALL and "cube" not in SMALL


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(Wrong, match=r"^no shape 'cube'; there is ring, path$"):
        SMALL.get("cube")
