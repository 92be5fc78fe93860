"""The steps of `bsfg setup` for a source: add it to node.toml with a tag file, and read every tag once.

A source is kept if at least one of its tags has a value: a broken sensor must not keep the others out. A source that
would keep the node from starting is never left in node.toml.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agent.cli import writing
from agent.cli.opcua import PINNED, SECTION_BEGINS, SECTION_ENDS
from agent.cli.prepare.setup_files import NodeFile
from agent.cli.prepare.steps import SetupFailed, Steps
from agent.config import load_sections
from agent.ingest import WITHOUT_VALUE, TagMap, TagMapError, load_tag_map
from agent.ingest.tags.change import clashes

PIN = "server_certificate_sha256"
OWN = ("tags", "glob", "exclude", "prefix", "trust")  # answers about a source that are not settings


def with_prefix(tags: str, prefix: str) -> str:
    """The rows of a tag file with a prefix before each name. Raises SetupFailed for a file of another form than that of
    the questions."""
    header, *rows = tags.splitlines()
    columns = header.split(",")
    if columns[0] != "tag" or {"template", "use"} & set(columns) or '"' in tags:
        raise SetupFailed(f"put {prefix} before the names in the answer `tags`, and run setup again")
    return "".join(f"{row}\n" for row in (header, *(f"{prefix}{row}" for row in rows if row.strip())))


class SourceSteps:
    """Adds sources. `left`: what an operator still has to do. `exclude`: globs of variables to leave out."""

    def __init__(self, steps: Steps, file: NodeFile, left: list[str], exclude: Sequence[str] = ()) -> None:
        self._steps, self._bsfg = steps, steps.bsfg
        self._file, self._left, self._exclude = file, left, exclude

    def add_source(self, kind: str, given: Mapping[str, Any]) -> None:
        """Add a new source and test it, again after a failure if an operator is there. Raises SetupFailed."""
        name = str(given.get("name", ""))
        if name in self._file.sources(kind):
            self._keep(kind, name, given)
            return
        source = dict(given)
        while True:
            try:
                self._add_and_test(kind, name, source)
            except (SetupFailed, TagMapError) as error:
                # Most servers refuse a client until an operator has accepted its certificate there.
                if not self._steps.asks:
                    raise
                if isinstance(error, TagMapError):
                    click.echo(str(error))
                if not click.confirm("Try again, once you have done what the step asks for?", default=True):
                    raise
            else:
                return

    def _keep(self, kind: str, name: str, source: Mapping[str, Any]) -> None:
        """Report where the answers differ from an existing source, which is not changed."""
        file = self._file.path
        click.echo(f"# [[{kind}]] {name} is in {file} already, and is not changed")
        self._file.compare(kind, "name", name, {key: value for key, value in source.items() if key not in OWN})
        for tags_file in [known.tags_file for known in load_sections(file).sources if known.name == name]:
            if "tags" in source:
                self._file.compare_rows(tags_file, str(source["tags"]))
            elif "glob" in source:
                words = ["bsfg", "opcua", "browse", name, "--glob", source["glob"], "--config", str(file)]
                click.echo(f"# its tags are those of {tags_file}; to see what the server has: {shlex.join(words)}")

    def _add_and_test(self, kind: str, name: str, source: dict[str, Any]) -> None:
        """One attempt. A certificate that was confirmed is pinned in `source`. Raises SetupFailed and TagMapError."""
        config = self._file.path
        tags_file = config.parent / "tags.d" / f"{name}.csv"
        with writing(tags_file):
            tags_file.parent.mkdir(exist_ok=True)
        with self._undone_if_failed(kind, name, tags_file):
            if "tags" in source:
                with writing(tags_file):
                    tags_file.write_text(str(source["tags"]), encoding="utf-8")
            if not self._file.has(kind, "name", name):  # it has been added if an earlier run was killed
                found = self._found_by_test(source) if kind == "opcua" else {}
                settings = {key: value for key, value in source.items() if key not in OWN}
                self._file.add_section(kind, {**found, "tags_file": f"tags.d/{name}.csv", **settings})
            if not tags_file.exists():
                self._browse(name, source, tags_file)
            self._name_apart(name, source, tags_file)
            self._file.give_to_node()
            words = ("source", "test", name, "--all", "--partial", "--config", str(config))
            if WITHOUT_VALUE in self._bsfg(*words, as_node=True):
                self._left.append(
                    f"some tags of {name} have no value, and their facts say so: repair them, or delete their rows in "
                    f"{tags_file}; to list them: bsfg source test {name} --all --config {config}"
                )

    def _browse(self, name: str, source: Mapping[str, Any], tags_file: Path) -> None:
        words = ["opcua", "browse", name, "--config", str(self._file.path)]
        if source.get("glob", "*") != "*":
            words += ["--glob", source["glob"]]
        for glob in (*source.get("exclude", ()), *self._exclude):
            words += ["--exclude", glob]
        if source.get("prefix"):
            words += ["--prefix", source["prefix"]]
        self._bsfg(*words, "--csv", str(tags_file))

    def _name_apart(self, name: str, source: dict[str, Any], tags_file: Path) -> None:
        """If another source has tags of the same names, as an equal machine has, put a prefix before the new names.
        Raises TagMapError if the names with the prefix are those of others, too."""
        if (clash := self._clash(name)) is None:
            return
        click.echo("".join(f"# {problem}\n" for problem in clash.problems), nl=False)
        prefix = f"{name}/"
        if self._steps.asks:
            prefix = click.prompt(f"Prefix for the names of {name}", default=prefix)
        if "tags" in source:
            tags_file.write_text(with_prefix(str(source["tags"]), prefix), encoding="utf-8")
            click.echo(f"# the names in {tags_file} begin with {prefix}")
        else:
            tags_file.unlink()
            self._browse(name, source | {"prefix": prefix}, tags_file)
        if (clash := self._clash(name)) is not None:
            raise clash

    def _clash(self, name: str) -> TagMapError | None:
        """Which tags of a source are also those of others. Raises TagMapError for a file that cannot be read."""
        maps: dict[str, TagMap] = {}
        for source in sorted(load_sections(self._file.path).sources, key=lambda source: source.name == name):
            try:
                maps[source.name] = load_tag_map(source)
            except TagMapError:
                if source.name == name:
                    raise
        problems = [problem for _, second, problem in clashes(maps) if second == name]
        return TagMapError(problems) if problems else None

    @contextmanager
    def _undone_if_failed(self, kind: str, name: str, tags_file: Path) -> Iterator[None]:
        """If the block fails or is interrupted, restore node.toml and remove a tag file that the block made."""
        before, was_there, is_done = self._file.path.read_text("utf-8"), tags_file.exists(), False
        try:
            yield
            is_done = True
        finally:
            if not is_done and self._file.path.read_text("utf-8") != before:
                self._file.replace(before)
                click.echo(f"# removed again from {self._file.path}: [[{kind}]] {name}")
            if not is_done and not was_there and tags_file.exists():
                tags_file.unlink()
                click.echo(f"# removed again: {tags_file}; correct the answer from which it was made")

    def _found_by_test(self, source: dict[str, Any]) -> dict[str, Any]:
        """The settings with which `opcua test` connected to a server. A certificate that it pinned is added to `source`
        for the next attempt."""
        words = ["opcua", "test", str(source.get("url", "")), "--pki", str(self._file.state_dir() / "opcua")]
        words += [f"--{flag}" for flag in ("insecure", "trust") if source.get(flag)]
        if PIN in source:
            words += ["--server-sha256", str(source[PIN])]
        self._file.give_to_node()
        try:
            _, _, printed = self._bsfg(*words, as_node=True).partition(SECTION_BEGINS)
        except SetupFailed as error:
            if PINNED in error.printed:
                source[PIN] = error.printed.partition(PINNED)[2].split()[0]
            raise
        (section,) = tomllib.loads(printed.partition(SECTION_ENDS)[0])["opcua"]
        assert isinstance(section, dict), "a section is a table"
        if PIN in section:
            source[PIN] = section[PIN]
        return section
