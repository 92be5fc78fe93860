"""The static site of these pages, made by `make docs` with Sphinx: it opens from a disk, search included.

The pages stay as they are for code hosts; links between Markdown files become links of the site. The navigation is made
from the pages themselves: the map of README.md, and the list of decisions. Links that lead nowhere fail the build.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

project = "bsfg"
author = "The bsfg authors"
copyright = author  # noqa: A001 Sphinx's name for it
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/**/*.md",
    "agent/**/*.md",
    "bench/*.md",
    "hardware/*.md",
    "spark/*.md",
]
include_patterns += ["tests/*/README.md"]
exclude_patterns = ["build", "dist", ".venv"]
myst_heading_anchors = 4  # as code hosts have them
suppress_warnings = ["misc.highlighting_failure"]  # of CSV and diagrams, which are shown as text
html_theme = "alabaster"
html_theme_options: dict[str, object] = {
    "fixed_sidebar": True,
    "page_width": "84rem",
    "body_max_width": "none",
    "sidebar_width": "18rem",
    "show_powered_by": False,
}
html_theme_options |= {"description": "Store-and-forward agent for the IT/OT boundary", "font_family": "sans-serif"}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_copy_source = False

_ROOT = Path(__file__).resolve().parents[1]
_MAP_PART = re.compile(r"^### (.+)\n\n((?:\|.*\n)+)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)\.md")
_BELOW = {  # pages that no map names, by the page at whose side they stand
    "docs/decisions/README": "docs/decisions/[0-9]*.md",
    "docs/developers/tests": "tests/*/README.md",
    "ARCHITECTURE": "*/**/DESIGN.md",
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)


def add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    """Name the pages that a page leads to; the reader sees them at the side."""
    if name == root_doc:
        parts = _MAP_PART.findall(source[0].partition("\n## Map\n")[2])
        mapped = [(caption, _LINK.findall(table)) for caption, table in parts]
        source[0] += "".join(_tree(pages, caption) for caption, pages in mapped)
    elif name in _BELOW:
        found = (one.relative_to(_ROOT) for one in sorted(_ROOT.glob(_BELOW[name])))
        pages = [f"/{one.with_suffix('')}" for one in found if one.parts[0] not in {"build", ".venv"}]
        source[0] += _tree(pages)


def add_index(app: Sphinx, error: Exception | None) -> None:
    """The first page under the name that a browser looks for."""
    if error is None:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def _tree(pages: list[str], caption: str = "") -> str:
    lines = ["", "", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), *pages, "```", ""]
    return "\n".join(lines)
