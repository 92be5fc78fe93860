"""`bsfg setup`: leads from an installed package to a running node, with the commands that an operator would type.

Each step runs one of those commands or adds lines to node.toml, and prints them. Existing settings are not changed, so
setup can be run again when a certificate has arrived, or for the next source. If an answer differs from an existing
setting, setup names the line and fails at its end. The answers come from a file, or from questions; then they are saved
in a file. At its end setup prints the first values and what is left to do.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agent.cli.opcua import PINNED, SECTION_BEGINS, SECTION_ENDS
from agent.cli.prepare import answers as answers_module
from agent.cli.prepare import differences, questions, unit
from agent.cli.prepare.init import write_node_toml
from agent.cli.prepare.site import HERE, Site
from agent.cli.prepare.steps import SetupFailed, Steps, has_systemd
from agent.config import ConfigError, load_sections
from agent.health.client import NodeSilent, ask_health_of
from agent.message import ZONE

VALUES_S = 60.0
SETTLED_S = 3.0  # without a first value of a further tag
DIFFERENCES_SHOWN = 20
_PIN = "server_certificate_sha256"
_OWN = ("tags", "glob", "trust")  # answers about a source that are not settings


@click.command()
@click.option(
    *("--config", "config_file"),
    type=click.Path(path_type=Path),
    help="The node's configuration, written if it does not exist.  [default: /etc/bsfg/ZONE.toml]",
)
@click.option(
    "--answers", type=click.Path(path_type=Path, exists=True), help="A TOML file with the answers: nothing is asked."
)
def setup(config_file: Path | None, answers: Path | None) -> None:
    """Set up a node: settings, key and request, broker and peer, first source, service; then show its first values."""
    given = answers_module.read(answers) if answers is not None else {"zone": questions.ask_zone()}
    if not isinstance(zone := given.get("zone"), str) or not ZONE.fullmatch(zone):
        raise click.UsageError(f"zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
    file = (config_file or unit.CONFIG_FOLDER / f"{zone}.toml").absolute()
    if answers is None:
        given = _ask(zone, file.with_suffix(".answers"))
    Setup(given, file, asks=answers is None or sys.stdin.isatty()).run()


def _ask(zone: str, kept: Path) -> dict[str, Any]:
    """Ask the questions, with the answers of an earlier run as defaults, and save the answers. Raises SetupFailed."""
    before = answers_module.read(kept) if kept.exists() else {}
    if before:
        click.echo(f"# the answers in {kept} are the defaults: the Enter key accepts one")
    given = questions.ask(zone, before)
    write_node_toml(kept, answers_module.text_of(given))
    click.echo(f"# the answers are in {kept}; to run setup with them again: bsfg setup --answers {kept}")
    return given


class Setup:
    """The steps, in order. `left`: what an operator still has to do. `differing`: answers that are not in force."""

    def __init__(self, given: Mapping[str, Any], config_file: Path, *, asks: bool = False) -> None:
        self.given, self.file = given, config_file
        self.zone: str = given["zone"]
        self.left: list[str] = []
        self.differing: list[differences.Difference] = []
        self._is_unit = unit.is_of_unit(config_file)
        self._steps = Steps(is_unit=self._is_unit, asks=asks)
        self._bsfg = self._steps.bsfg

    def run(self) -> None:
        """All steps. Raises SetupFailed, ConfigError."""
        if not self.file.exists():
            self._bsfg("init", "--zone", self.zone, "--config", str(self.file))
        elif (node := load_sections(self.file).node) is not None and node.zone != self.zone:
            raise SetupFailed(f"{self.file} is for zone {node.zone}, not {self.zone}; name another file with --config")
        if "broker" in self.given:
            self._connect(self.given["broker"], self.given.get("peer"))
        for kind in questions.SOURCES:
            for source in self.given.get(kind, []):
                self._source(kind, source)
        self._give_to_node()
        self._bsfg("check", "--config", str(self.file))
        is_running = self._start()
        self._show(is_running=is_running)
        if self.differing:
            raise SetupFailed(
                f"{len(self.differing)} answers differ from existing files and are not in force: see above"
            )

    # ------------------------------------------------------------------------------------------------------------ steps

    def _connect(self, given: Mapping[str, Any], peer: Mapping[str, Any] | None) -> None:
        """Add broker and peer once the certificates exist. If an answer differs from a section, a broker on this
        machine is not changed either, because its node is configured for it."""
        settings = {"name": "broker", **given}
        if settings.pop("here", False):
            settings["host"] = HERE
        is_there = self._has("broker", "name", "broker")
        if is_there:
            self._compare("broker", "name", "broker", settings)
        has_peer = peer is not None and self._has("peer", "zone", peer["zone"])
        if peer is not None and has_peer:
            self._compare("peer", "zone", peer["zone"], peer)
        if self.differing or not Site(self._steps, self.given, self.file, self.left).prepare():
            return
        settings |= {"ca_file": "pki/ca.pem", "cert_file": f"pki/zones/{self.zone}.pem"}
        settings["key_file"] = f"pki/zones/{self.zone}.key"
        if not is_there:
            self._add("broker", settings)
        if peer is not None:
            if not has_peer:
                self._add("peer", {"broker": settings["name"], **peer})
            self.left.append(f"try the connection: bsfg peer test {peer['zone']} --config {self.file}")

    def _source(self, kind: str, source: Mapping[str, Any]) -> None:
        """Add a new source and test it. A source that cannot be read is removed again."""
        name = str(source.get("name", ""))
        if self._has(kind, "name", name):
            self._keep_source(kind, name, source)
            return
        source = dict(source)
        while True:
            try:
                self._add_and_test(kind, name, source)
            except SetupFailed:
                # Most servers refuse a client until an operator has accepted its certificate there.
                if not self._steps.asks or not click.confirm(
                    "Try again, once you have done what the step asks for?", default=True
                ):
                    raise
            else:
                return

    def _keep_source(self, kind: str, name: str, source: Mapping[str, Any]) -> None:
        """Report where the answers differ from an existing source, which is not changed."""
        click.echo(f"# [[{kind}]] {name} is in {self.file} already, and is not changed")
        self._compare(kind, "name", name, {key: value for key, value in source.items() if key not in _OWN})
        files = [one.tags_file for one in load_sections(self.file).sources if one.name == name]
        for tags_file in filter(Path.exists, files):
            if "tags" in source:
                there = tags_file.read_text("utf-8")
                self.differing += differences.of_rows(tags_file, there, str(source["tags"]))
            elif "glob" in source:
                words = ["bsfg", "opcua", "browse", name, "--glob", source["glob"], "--config", str(self.file)]
                click.echo(f"# its tags are those of {tags_file}; to see what the server has: {shlex.join(words)}")

    def _compare(self, section: str, key: str, name: str, answers: Mapping[str, Any]) -> None:
        """Note where a section of node.toml differs from the answers."""
        text = self.file.read_text("utf-8")
        self.differing += differences.of_section(self.file, text, section, key, name, answers)

    def _add_and_test(self, kind: str, name: str, source: dict[str, Any]) -> None:
        """One attempt. A certificate that was confirmed is pinned in `source`. Raises SetupFailed."""
        tags_file = self.file.parent / "tags.d" / f"{name}.csv"
        tags_file.parent.mkdir(exist_ok=True)
        with self._undone_if_failed(tags_file):
            if "tags" in source:
                tags_file.write_text(str(source["tags"]), encoding="utf-8")
            found = self._found_by_test(source) if kind == "opcua" else {}
            settings = {key: value for key, value in source.items() if key not in _OWN}
            self._add(kind, {**found, "tags_file": f"tags.d/{name}.csv", **settings})
            if not tags_file.exists():
                glob = ("--glob", source["glob"]) if source.get("glob", "*") != "*" else ()
                words = ("opcua", "browse", name, "--config", str(self.file), *glob, "--csv", str(tags_file))
                self._bsfg(*words)
            self._give_to_node()
            self._bsfg("source", "test", name, "--config", str(self.file), as_node=True)

    @contextmanager
    def _undone_if_failed(self, tags_file: Path) -> Iterator[None]:
        """If the block fails or is interrupted, restore node.toml and remove a tag file that the block made."""
        before, was_there, is_done = self.file.read_text("utf-8"), tags_file.exists(), False
        try:
            yield
            is_done = True
        finally:
            if not is_done:
                self._replace(before)
                if not was_there:
                    tags_file.unlink(missing_ok=True)

    def _found_by_test(self, source: dict[str, Any]) -> dict[str, Any]:
        """The settings with which `opcua test` connected to a server. A certificate that it pinned is added to `source`
        for the next attempt."""
        words = ["opcua", "test", str(source.get("url", "")), "--pki", str(self._state_dir() / "opcua")]
        words += [f"--{flag}" for flag in ("insecure", "trust") if source.get(flag)]
        if _PIN in source:
            words += ["--server-sha256", str(source[_PIN])]
        self._give_to_node()
        try:
            _, _, printed = self._bsfg(*words, as_node=True).partition(SECTION_BEGINS)
        except SetupFailed as error:
            if PINNED in error.printed:
                source[_PIN] = error.printed.partition(PINNED)[2].split()[0]
            raise
        (section,) = tomllib.loads(printed.partition(SECTION_ENDS)[0])["opcua"]
        assert isinstance(section, dict), "a section is a table"
        if _PIN in section:
            source[_PIN] = section[_PIN]
        return section

    def _start(self) -> bool:
        """Enable and start the service, or reload it if it runs. Returns whether the node runs."""
        name = f"bsfg@{self.file.stem}"
        if self._is_unit and has_systemd():
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
        if "broker" not in self.given:
            self.left.append("connect it with another zone: run setup again with broker and peer")
        if self.differing:
            self.left.append("correct these lines or the answers, and run setup again:")
        click.echo("\nleft to do:" if self.left else "\nnothing is left to do")
        for one in self.left:
            click.echo(f"  - {one}")
        for difference in self.differing[:DIFFERENCES_SHOWN]:
            click.echo(f"      {difference}")
        if len(self.differing) > DIFFERENCES_SHOWN:
            click.echo(f"      and {len(self.differing) - DIFFERENCES_SHOWN:,} more")

    def _wait_for_values(self) -> None:
        """Wait until each source has values and the number of tags without a value no longer falls."""
        names = {one.name for one in load_sections(self.file).sources}
        silent_before, deadline = None, time.monotonic() + VALUES_S
        settled = deadline
        while (now := time.monotonic()) < min(settled, deadline):
            found = self._health() or {"sources": []}
            sources = [one for one in found["sources"] if one["name"] in names]
            silent = sum(one["tags_silent"] for one in sources)
            if len(sources) < len(names) or not all(one["values_total"] for one in sources):
                silent_before, settled = None, deadline
            elif silent != silent_before:
                silent_before, settled = silent, now + SETTLED_S
            time.sleep(0.5)

    def _health(self) -> dict[str, Any] | None:
        """The health of the running node; None if no node answers."""
        sections = load_sections(self.file)
        assert sections.node is not None
        assert sections.health is not None
        try:
            return ask_health_of(sections.node, sections.health)
        except NodeSilent:
            return None

    # ------------------------------------------------------------------------------------------------------------ tools

    def _state_dir(self) -> Path:
        node = load_sections(self.file).node
        if node is None:
            raise ConfigError(self.file, load_sections(self.file).problems)
        return node.state_dir

    def _has(self, section: str, key: str, name: str) -> bool:
        found = tomllib.loads(self.file.read_text("utf-8")).get(section, [])
        return name in {one.get(key) for one in found}

    def _add(self, section: str, settings: Mapping[str, Any]) -> None:
        """Add a section to node.toml. Raises ConfigError, and adds nothing, if the file would have a problem."""
        lines = f"[[{section}]]\n{answers_module.section_text(settings)}"
        self._replace(f"{self.file.read_text('utf-8')}\n{lines}")
        click.echo(f"# added to {self.file}\n{lines}", nl=False)

    def _replace(self, text: str) -> None:
        """Replace the text of node.toml: after a power cut the file has the old text or the new one. Mode and owner
        stay. Raises ConfigError, and changes nothing, if the text has a problem."""
        before = self.file.stat()
        part = self.file.with_name(f".{self.file.name}.part")
        part.unlink(missing_ok=True)  # what an interrupted attempt left
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                if problems := load_sections(part).problems:
                    raise ConfigError(self.file, problems)
                # Owner before mode: in the other order the old group could read the file for a moment.
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                os.fsync(file.fileno())
            part.replace(self.file)
        finally:
            part.unlink(missing_ok=True)

    def _give_to_node(self) -> None:
        """Let only the node's group read the files that this process made. Give the state folder to the node's user."""
        if not self._is_unit or os.geteuid() != 0:
            return
        group = self.file.parent.stat().st_gid
        for path in [
            *(self.file.parent / "pki").rglob("*"),
            *(self.file.parent / "tags.d").rglob("*"),
            self.file.parent / "tags.d",
        ]:
            if path.exists():
                os.chown(path, -1, group)
                path.chmod(0o750 if path.is_dir() else 0o640)
        state_dir = self._state_dir()
        if not state_dir.exists():
            state_dir.mkdir(mode=0o700)
            shutil.chown(state_dir, unit.USER, unit.USER)
