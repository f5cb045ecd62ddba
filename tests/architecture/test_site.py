"""The documentation site has every page, and its pages load nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md", "SECURITY.md", "results/README.md", *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))}
REMOTE = r"""["']?(?:https?:)?//"""
LOADED = re.compile(rf"<(?:script|img|iframe|source)\b[^>]*\bsrc={REMOTE}|@import|url\({REMOTE}")
LINKED = re.compile(rf"""<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon)\b[^>]*\bhref={REMOTE}""")


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without constructing the Python objects that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
SETTINGS: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # a SafeLoader


def listed(entry: Any) -> Iterator[str]:
    """The pages of a part of the nav, in order."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from listed(part)


def is_remote(html: str) -> bool:
    """Does a browser load something from another host to show this page?"""
    return bool(LOADED.search(html) or LINKED.search(html))


def test_the_nav_lists_every_page_once() -> None:
    nav = [*listed(SETTINGS["nav"])]
    assert len(nav) == len(set(nav)), "a page is listed twice"
    assert set(nav) == PAGES


def test_no_web_fonts_and_no_repository_figures_are_asked_for() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert "repo_url" not in SETTINGS, "the theme would ask GitHub for figures when a page is opened"
    assert "extra_javascript" not in SETTINGS and "extra_css" not in SETTINGS


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script async src=//cdn.example/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link rel="preconnect" href="https://fonts.example" crossorigin>',
        "<style>a { background: url(https://cdn.example/x.png) }</style>",
    ],
)
def test_a_remote_file_is_noticed(html: str) -> None:
    assert is_remote(html)
    assert not is_remote('<script src="assets/x.js"></script><a href="https://example.org">elsewhere</a>')


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed here: `make docs` builds the site")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    pages = {page.relative_to(tmp_path / "site").as_posix(): page for page in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "SECURITY.html", "docs/operating.html", "results/index.html"} <= pages.keys()
    assert [name for name, page in pages.items() if is_remote(page.read_text(encoding="utf-8"))] == []
