"""The files of `bsfg setup`: the answers, read from a TOML file and written as one, and the node.toml that it extends.
Sections are added, existing lines are not changed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agent.cli.prepare import unit
from agent.cli.prepare.questions import OPC_TCP, SOURCES
from agent.cli.prepare.steps import SetupFailed
from agent.config import ConfigError, load_sections, read
from agent.file_replace import write_file

KNOWN = ("zone", "broker", "peer", "stick", "authority", "opcua", "modbus")


def read_answers(file: Path) -> dict[str, Any]:
    """The answers in a file. Raises SetupFailed."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SetupFailed(f"{file}: {error}") from error
    if unknown := sorted(found.keys() - set(KNOWN)):
        raise SetupFailed(f"{file}: {unknown[0]} is not an answer; known are {', '.join(KNOWN)}")
    for name, needed in (("broker", "host"), ("peer", "zone")):
        if name in found and not (isinstance(found[name], dict) and isinstance(found[name].get(needed), str)):
            raise SetupFailed(f"{file}: [{name}] needs {needed}, a text")
    for kind in SOURCES:
        if not all(isinstance(section, dict) for section in found.get(kind, [])):
            raise SetupFailed(f"{file}: a source is a section in double brackets: [[{kind}]]")
    for source in found.get("opcua", []):
        if not str(source.get("url", "")).startswith(OPC_TCP):
            raise SetupFailed(f"{file}: url = {source.get('url', '')!r}: an address begins with {OPC_TCP}")
    if "peer" in found and found["peer"]["zone"] == found.get("zone"):
        raise SetupFailed(f"{file}: the zone of the peer is that of this node; correct one of them")
    return found


def answers_text(given: Mapping[str, Any]) -> str:
    """The file with these answers. Raises SetupFailed."""
    plain = {name: value for name, value in given.items() if not isinstance(value, dict | list)}
    text = "".join(f"{name} = {toml(name, value)}\n" for name, value in plain.items())
    for name in ("broker", "peer"):
        if name in given:
            text += f"\n[{name}]\n{section_text(given[name])}"
    for kind in SOURCES:
        text += "".join(f"\n[[{kind}]]\n{section_text(section)}" for section in given.get(kind, []))
    return text


def section_text(settings: Mapping[str, Any]) -> str:
    """The lines of a section. Raises SetupFailed."""
    return "".join(f"{name} = {toml(name, value)}\n" for name, value in settings.items())


def toml(name: str, value: object) -> str:
    """A text, number, truth value or list as TOML, which has them as JSON does. Raises SetupFailed."""
    if isinstance(value, str | bool | int | float) or (
        isinstance(value, list) and all(isinstance(item, str | bool | int | float) for item in value)
    ):
        return json.dumps(value, ensure_ascii=False)
    raise SetupFailed(f"{name} = {value!r}: an answer is a text, a number, true, false, or a list of these")


class NodeFile:
    """node.toml and the files beside it. `differing`: answers that are not in force."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_of_unit = path, unit.is_of_unit(path)
        self.differing: list[str] = []

    def table(self) -> dict[str, Any]:
        """The settings as they are written. Raises ConfigError if a part is not TOML."""
        try:
            return tomllib.loads(self.path.read_text("utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(self.path, load_sections(self.path).problems) from error

    def zone(self) -> str | None:
        """The zone of the node; None if the file has none."""
        found = self.table().get("node", {}).get("zone")
        return found if isinstance(found, str) else None

    def has(self, section: str, key: str, name: str) -> bool:
        """Whether there is a section whose `key` is `name`."""
        return name in {table.get(key) for table in self.table().get(section, [])}

    def sources(self, kind: str) -> list[str]:
        """The sources of a protocol that have a section and a tag file."""
        found = load_sections(self.path)
        return [
            source.name for source in (found.opcua if kind == "opcua" else found.modbus) if source.tags_file.exists()
        ]

    def state_dir(self) -> Path:
        """The node's state folder. Raises ConfigError."""
        sections = load_sections(self.path)
        if sections.node is None:
            raise ConfigError(self.path, sections.problems)
        return sections.node.state_dir

    def compare(self, section: str, key: str, name: str, given: Mapping[str, Any]) -> None:
        """Note the answers that a section does not have: it is edited by hand, too, so it is not changed."""
        found = next(table for table in self.table()[section] if table.get(key) == name)
        for setting, value in given.items():
            if found.get(setting) != value:
                there = toml(setting, found[setting]) if setting in found else "nothing"
                answer = toml(setting, value)
                self.differing.append(
                    f"{self.path}: [[{section}]] {name}: {setting} is {there}; the answer is {answer}"
                )

    def compare_rows(self, file: Path, answer: str) -> None:
        """Note the rows that are in a tag file or in the answer, not in both."""
        there, wanted = file.read_text("utf-8-sig").splitlines(), answer.splitlines()
        self.differing += [f"{file}: {row} is not in the answer" for row in there if row not in wanted]
        self.differing += [f"{file}: the answer has {row}" for row in wanted if row not in there]

    def add_section(self, section: str, settings: Mapping[str, Any]) -> None:
        """Add a section. Raises ConfigError, and adds nothing, if the file would have a problem."""
        lines = f"[[{section}]]\n{section_text(settings)}"
        self.replace(f"{self.path.read_text('utf-8-sig')}\n{lines}")
        click.echo(f"# added to {self.path}\n{lines}", nl=False)

    def replace(self, text: str) -> None:
        """Replace the text: after a power cut the file has the old text or the new one. Mode and owner stay. Raises
        ConfigError, and changes nothing, if the text has a problem."""
        read(tomllib.loads(text), self.path)
        before = self.path.stat()
        write_file(self.path, text.encode(), stat.S_IMODE(before.st_mode), before.st_gid, before.st_uid)

    def give_to_node(self) -> None:
        """Let only the node's group read the files that this process made. Give the state folder to the node's user."""
        if not self.is_of_unit or os.geteuid() != 0:
            return
        folder = self.path.parent
        group = folder.stat().st_gid
        for path in [*(folder / "pki").rglob("*"), *(folder / "tags.d").rglob("*"), folder / "tags.d"]:
            if path.exists():
                os.chown(path, -1, group)
                path.chmod(0o750 if path.is_dir() else 0o640)
        if not (state_dir := self.state_dir()).exists():
            state_dir.mkdir(mode=0o750)
            shutil.chown(state_dir, unit.USER, unit.USER)
