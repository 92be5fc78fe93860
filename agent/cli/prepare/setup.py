"""`bsfg setup`: leads from an installed package to a running node, with the commands that an operator would type.

Each step runs one of those commands or adds lines to node.toml, and prints them. Existing settings are not changed, so
setup can be run again when a certificate has arrived, or for the next source. If an answer differs from an existing
setting, setup names both and fails at its end. The answers come from a file, or from questions; then they are saved
in a file. At its end setup prints the first values and what is left to do.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agent.cli import PATH
from agent.cli.prepare import questions, unit
from agent.cli.prepare.init import write_node_toml
from agent.cli.prepare.setup_files import NodeFile, answers_text, read_answers
from agent.cli.prepare.site import HERE, Site
from agent.cli.prepare.source_steps import SourceSteps
from agent.cli.prepare.steps import SetupFailed, Steps, has_systemd
from agent.client import Client, NodeSilent
from agent.config import ConfigError, load_sections
from agent.ingest import TagMapError
from agent.message import ZONE

VALUES_S = 60.0
SETTLED_S = 3.0  # without a first value of a further tag
DIFFERENCES_SHOWN = 20


@click.command()
@click.option(
    "--config",
    "config_file",
    type=PATH,
    help="The node's configuration, written if it does not exist.  [default: /etc/bsfg/ZONE.toml]",
)
@click.option(
    "--answers",
    type=click.Path(path_type=Path, exists=True),
    help="A TOML file with the answers; only trust and passphrases are asked for.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Leave out variables of new OPC UA sources whose path or tag matches; may be repeated.",
)
def setup(config_file: Path | None, answers: Path | None, exclude: tuple[str, ...]) -> None:
    """Set up a node: settings, key and request, broker and peer, first source, service; then show its first values."""
    given = read_answers(answers) if answers is not None else {"zone": questions.ask_zone(_known_zone(config_file))}
    if not isinstance(zone := given.get("zone"), str) or not ZONE.fullmatch(zone):
        raise click.UsageError(f"zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
    file = (config_file or unit.CONFIG_FOLDER / f"{zone}.toml").absolute()
    if answers is None:
        given = _ask(zone, file)
    Setup(given, file, asks=answers is None or sys.stdin.isatty(), exclude=exclude).run()


def _known_zone(config_file: Path | None) -> str | None:
    """The zone of the settings or answers that are there; None if there are those of several zones."""
    files = [config_file] if config_file is not None else sorted(unit.CONFIG_FOLDER.glob("*.toml"))
    zones = {NodeFile(file).zone() for file in files if file.exists()}
    if not zones:
        kept = [file.with_suffix(".answers") for file in files] or sorted(unit.CONFIG_FOLDER.glob("*.answers"))
        zones = {read_answers(file).get("zone") for file in kept if file.exists()}
    return zones.pop() if len(zones) == 1 else None


def _ask(zone: str, file: Path) -> dict[str, Any]:
    """Ask what is not in the settings, with the answers of an earlier run as defaults, and save all answers. Returns
    those that are to be carried out. Raises SetupFailed."""
    kept = file.with_suffix(".answers")
    before = read_answers(kept) if kept.exists() else {}
    there = NodeFile(file) if file.exists() else None
    sources = {} if there is None else {kind: there.sources(kind) for kind in questions.SOURCES}
    given = questions.ask(zone, before, {} if there is None else there.table(), sources)
    write_node_toml(kept, answers_text(given))
    click.echo(f"# the answers are in {kept}; to run setup with them again: bsfg setup --answers {kept}")
    return given | {
        kind: [source for source in given.get(kind, []) if source["name"] not in names]
        for kind, names in sources.items()
    }


class Setup:
    """The steps, in order. `left`: what an operator still has to do. `differing`: answers that are not in force."""

    def __init__(
        self, given: Mapping[str, Any], config_file: Path, *, asks: bool = False, exclude: Sequence[str] = ()
    ) -> None:
        self.given, self.file = given, config_file
        self.zone: str = given["zone"]
        self.left: list[str] = []
        self.node_file = NodeFile(config_file)
        self.differing = self.node_file.differing
        self._exclude = exclude
        self._steps = Steps(is_unit=self.node_file.is_of_unit, asks=asks)
        self._bsfg = self._steps.bsfg

    def run(self) -> None:
        """All steps. Raises SetupFailed, ConfigError."""
        if not self.file.exists():
            self._bsfg("init", "--zone", self.zone, "--config", str(self.file))
        elif (node := load_sections(self.file).node) is not None and node.zone != self.zone:
            raise SetupFailed(f"{self.file} is for zone {node.zone}, not {self.zone}; name another file with --config")
        if "broker" in self.given:
            self._connect(self.given["broker"], self.given.get("peer"))
        refused = [*self._add_sources()]
        self.node_file.give_to_node()
        self._bsfg("check", "--config", str(self.file))
        is_running = self._start()
        self._show(is_running=is_running)
        if self.differing:
            refused.append(f"{len(self.differing)} answers differ from existing files and are not in force: see above")
        if refused:
            raise SetupFailed("; ".join(refused))

    # ------------------------------------------------------------------------------------------------------------ steps

    def _connect(self, given: Mapping[str, Any], peer: Mapping[str, Any] | None) -> None:
        """Add broker and peer once the certificates exist. If an answer differs from a section, a broker on this
        machine is not changed either, because its node is configured for it."""
        settings = {"name": "broker", **given}
        if settings.pop("here", False):
            settings["host"] = HERE
        is_there = self.node_file.has("broker", "name", "broker")
        if is_there:
            self.node_file.compare("broker", "name", "broker", settings)
        has_peer = peer is not None and self.node_file.has("peer", "zone", peer["zone"])
        if peer is not None and has_peer:
            self.node_file.compare("peer", "zone", peer["zone"], peer)
        if self.differing or not Site(self._steps, self.given, self.file, self.left).prepare():
            return
        settings |= {"ca_file": "pki/ca.pem", "cert_file": f"pki/zones/{self.zone}.pem"}
        settings["key_file"] = f"pki/zones/{self.zone}.key"
        if not is_there:
            self.node_file.add_section("broker", settings)
        if peer is not None:
            if not has_peer:
                self.node_file.add_section("peer", {"broker": settings["name"], **peer})
            self.left.append(f"try the connection: bsfg peer test {peer['zone']} --config {self.file}")

    def _add_sources(self) -> Iterator[str]:
        """Add the sources; why one was not added, while the others are."""
        steps = SourceSteps(self._steps, self.node_file, self.left, self._exclude)
        for kind in questions.SOURCES:
            for source in self.given.get(kind, []):
                try:
                    steps.add_source(kind, source)
                except (SetupFailed, ConfigError, TagMapError) as error:
                    self.left.append(f"add {source.get('name')}, which was not added: {error}")
                    yield str(error)

    def _start(self) -> bool:
        """Enable and start the service, or reload it if it runs. Returns whether the node runs."""
        name = f"bsfg@{self.file.stem}"
        if self.node_file.is_of_unit and has_systemd():
            is_active = subprocess.run(["systemctl", "--quiet", "is-active", name], check=False).returncode == 0
            self._steps.run(["systemctl", "reload", name] if is_active else ["systemctl", "enable", "--now", name])
            return True
        if self._health() is None:
            self.left.append(f"start the node: bsfg run --config {self.file}")
            return False
        self._bsfg("reload", "--config", str(self.file))
        return True

    def _show(self, *, is_running: bool) -> None:
        """Print the tags of a running node, and what is left to do."""
        sections = load_sections(self.file)
        if sections.sources and is_running:
            self._wait_for_values()
            self._bsfg("latest", "--summary", "--config", str(self.file))
        if not sections.sources and not self.given.get("peer", {}).get("pulls"):
            self.left.append("add a source: run setup again with one, or see docs/operate/sources.md")
        if "broker" not in self.given and not sections.broker:
            self.left.append("connect it with another zone: run setup again with broker and peer")
        if self.differing:
            self.left.append("correct these lines or the answers, and run setup again:")
        click.echo("\nleft to do:" if self.left else "\nnothing is left to do")
        for task in self.left:
            click.echo(f"  - {task}")
        for difference in self.differing[:DIFFERENCES_SHOWN]:
            click.echo(f"      {difference}")
        if len(self.differing) > DIFFERENCES_SHOWN:
            click.echo(f"      and {len(self.differing) - DIFFERENCES_SHOWN:,} more")

    def _wait_for_values(self) -> None:
        """Wait until each source has values and the number of tags without a value no longer falls."""
        names = {source.name for source in load_sections(self.file).sources}
        silent_before, deadline = None, time.monotonic() + VALUES_S
        settled = deadline
        while (now := time.monotonic()) < min(settled, deadline):
            found = self._health() or {"sources": []}
            sources = [source for source in found["sources"] if source["name"] in names]
            silent = sum(source["tags_silent"] for source in sources)
            if len(sources) < len(names) or not all(source["values_total"] for source in sources):
                silent_before, settled = None, deadline
            elif silent != silent_before:
                silent_before, settled = silent, now + SETTLED_S
            time.sleep(0.5)

    def _health(self) -> dict[str, Any] | None:
        """The health of the running node; None if no node answers."""
        sections = load_sections(self.file)
        assert sections.node is not None
        try:
            return Client(sections.node.state_dir).status()
        except NodeSilent:
            return None
