"""Wraps prose that is wider than 120 columns: paragraphs of Markdown, docstrings and blocks of comments. `make format`
runs it, and `tests/test_tidy.py` fails on what it would change.

A paragraph is wrapped as a whole, and only if a line of it is too wide. Tables (also those of a docstring, which have
two spaces between their columns), headings, code, and lines that end in two spaces stay as they are; a link or a span
of code is not broken.

    python tools/wrap_prose.py FILE...
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COLUMNS = 120
ITEM = re.compile(r"(?:[-*+]|\d+[.)]) +|> +")
WHOLE = re.compile(r"\[[^\]]*\]\([^)]*\)|`[^`]+`")  # a link, a span of code
COLUMN_GAP = re.compile(r"\S {2,}\S| {2}$")
NO_PARAGRAPH = ("```", "|", "#", "<", '"""')


class Paragraph(NamedTuple):
    """Lines from `first` up to `end`, each with what stands before its text, and that of all others."""

    first: int
    end: int
    head: str
    indent: str


def wrapped(text: str, *, is_python: bool) -> str:
    """The text of a file with no paragraph that is wider than it need be."""
    lines = text.split("\n")
    if max(map(len, lines)) <= COLUMNS:
        return text
    found = python_paragraphs(text, lines) if is_python else markdown_paragraphs(lines)
    for paragraph in sorted(found, reverse=True):
        old = lines[paragraph.first : paragraph.end]
        if max(map(len, old)) > COLUMNS and not any(map(COLUMN_GAP.search, old)):
            words = [old[0][len(paragraph.head) :], *(line[len(paragraph.indent) :] for line in old[1:])]
            lines[paragraph.first : paragraph.end] = filled(" ".join(words), paragraph.head, paragraph.indent)
    return "\n".join(lines)


def filled(text: str, head: str, indent: str) -> list[str]:
    """The lines of a paragraph."""
    kept = WHOLE.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        kept, COLUMNS, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def markdown_paragraphs(lines: list[str]) -> Iterator[Paragraph]:
    """Paragraphs and list items outside of code and tables."""
    is_code, at, item_indent = False, 0, 0
    while at < len(lines):
        line = lines[at]
        text = line.lstrip()
        is_code ^= text.startswith("```")
        space = line[: len(line) - len(text)]
        if is_code or not text or text.startswith(NO_PARAGRAPH) or len(space) >= item_indent + 4:
            at += 1
            if not text and lines[at : at + 1] and lines[at][:1].strip():
                item_indent = 0  # the list is over
            continue
        mark = found[0] if (found := ITEM.match(text)) else ""
        indent = space + (mark if mark.startswith(">") else " " * len(mark))
        item_indent = len(indent)
        end = at + 1
        while end < len(lines) and goes_on(lines[end], indent):
            end += 1
        yield Paragraph(at, end, space + mark, indent)
        at = end


def goes_on(line: str, indent: str) -> bool:
    """Whether a line belongs to the paragraph before it, whose lines begin so."""
    text = line.removeprefix(indent)
    is_other = text[:1] in ("", " ") or text.startswith(NO_PARAGRAPH) or ITEM.match(text)
    return line.startswith(indent) and not is_other


def python_paragraphs(text: str, lines: list[str]) -> Iterator[Paragraph]:
    """Paragraphs of docstrings, and blocks of comments."""
    spoken = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            spoken.update(range(node.lineno - 1, node.end_lineno or 0))
    at = 0
    while at < len(lines):
        space = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        is_comment = lines[at].startswith("# ", len(space)) and not lines[at].startswith("# --", len(space))
        if not is_comment and (at not in spoken or not lines[at].strip()):
            at += 1
            continue
        head = indent = space + "# " * (at not in spoken)
        if mark := ITEM.match(lines[at].removeprefix(head)):
            head, indent = head + mark[0], indent + " " * len(mark[0])
        end = at + 1
        while end < len(lines) and (end in spoken) == (at in spoken) and goes_on(lines[end], indent):
            end += 1
        yield Paragraph(at, end, head, indent)
        at = end


def main() -> None:
    """Wrap the files named, in place."""
    for path in map(Path, sys.argv[1:]):
        text = path.read_text("utf-8")
        if (better := wrapped(text, is_python=path.suffix == ".py")) != text:
            path.write_text(better, "utf-8")


if __name__ == "__main__":
    main()
