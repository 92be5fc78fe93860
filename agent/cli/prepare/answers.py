"""Reads the answers of `bsfg setup` from a TOML file, checks their form, and writes answers as such a file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.cli.prepare.questions import OPC_TCP, SOURCES
from agent.cli.prepare.steps import SetupFailed

KNOWN = ("zone", "broker", "peer", "stick", "authority", "opcua", "modbus")


def read(file: Path) -> dict[str, Any]:
    """The answers in a file. Raises SetupFailed."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
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


def text_of(given: Mapping[str, Any]) -> str:
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
