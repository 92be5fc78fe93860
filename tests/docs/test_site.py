"""`make docs`: a site that opens from a disk, without a network and without a dead link. Links between the pages as
they stand in the repository are checked by tests/test_readme.py."""

import html.parser
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.skipif("SITE" not in os.environ, reason="`make docs` makes the site and runs these")
ROOT = Path(__file__).resolve().parents[2]
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(html.parser.HTMLParser):
    """What a page points at, and the places in it that can be pointed at."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.targets: list[tuple[str, str, str]] = []
        self.ids: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in {"href", "src", "data"} and value:
                self.targets.append((tag, name, value))


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    """The site that `make docs` has just made: by file, its page."""
    pages = {file: Page(file) for file in (ROOT / os.environ["SITE"]).rglob("*.html")}
    assert len(pages) > 100
    return pages


def links(site: dict[Path, Page], file: Path) -> Iterator[tuple[Path, str]]:
    """(file, place in it) of each link of a page that stays inside the site."""
    for _, _, target in site[file].targets:
        parts = urlsplit(target)
        if not parts.scheme and not parts.netloc:
            yield (file.parent / unquote(parts.path)).resolve() if parts.path else file, unquote(parts.fragment)


def test_every_link_leads_somewhere(site: dict[Path, Page]) -> None:
    """Each href and src of each page is a file of the site, and each #place in it is there."""
    dead = []
    for file in site:
        for target, place in links(site, file):
            if not target.is_file() or (place and target in site and place not in site[target].ids):
                dead.append(f"{file.name}: {target}#{place}")
    assert dead == []


def test_nothing_is_loaded_from_a_network(site: dict[Path, Page]) -> None:
    """Scripts, styles, pictures and fonts are files of the site. A link that a reader follows may lead outside."""
    for file, page in site.items():
        for tag, name, target in page.targets:
            assert (tag, name) not in LOADED or not urlsplit(target).netloc, (file.name, target)
    folder = min(site, key=lambda file: len(file.parts)).parent
    for style in folder.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import )\s*['\"]?([^'\")]+)", style.read_text("utf-8"))
        assert [url for url in loaded if urlsplit(url).netloc] == [], style.name


def test_every_page_is_reached_from_the_first(site: dict[Path, Page]) -> None:
    """By following links from index.html, every page of the repository is found, decisions and designs included."""
    start = min((file for file in site if file.name == "index.html"), key=lambda file: len(file.parts))
    found, left = set(), [start]
    while left:
        if (file := left.pop()) in site and file not in found:
            found.add(file)
            left += [target for target, _ in links(site, file)]
    assert {file.name for file in site.keys() - found} <= {"genindex.html"}  # an index without entries
    reached = {str(file.relative_to(start.parent).with_suffix("")) for file in found}
    for page in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("agent/**/DESIGN.md")):
        assert str(page.relative_to(ROOT).with_suffix("")) in reached, page.name


def test_the_search_needs_no_server(site: dict[Path, Page]) -> None:
    """The index is a script, which a browser loads from a disk, too, and finds settings by name."""
    (search,) = (file for file in site if file.name == "search.html")
    assert "searchindex.js" in {Path(target).name for tag, _, target in site[search].targets if tag == "script"}
    index = (search.parent / "searchindex.js").read_text("utf-8")
    assert index.startswith("Search.setIndex(")
    assert "commit_interval_m" in index, "words are stemmed, here and in the search"
