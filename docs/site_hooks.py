"""mkdocs hook: lay the site out as the repository is, so that every relative link works in both.

mkdocs expects all pages in one folder. Here README.md and SECURITY.md are at the top, and the measured results are in
results/. `on_files` replaces the pages that mkdocs found by these files, each under its path in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "SECURITY.md", "docs/*.md", "results/**/*.md")
LINKED = ("docs/*.svg", "docs/*.png", "docs/*.toml", "docs/notebooks/*.ipynb", "results/**/*.svg", "results/**/*.png")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The files of the theme, and those of the repository that belong to the site."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    ours = sorted({path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern)})
    paths = [(path.relative_to(ROOT).as_posix(), path) for path in ours if "seeds" not in path.parts]
    return Files([*theme, *(File.generated(config, uri, abs_src_path=str(path)) for uri, path in paths)])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fences without the second word that tests read (`text noisy`), which the site's Markdown does not allow."""
    return re.sub(r"(?m)^(```\w+) \w+$", r"\1", markdown)
