"""Decides, without IO, with which settings a node starts when a part of node.toml is wrong.

What is right runs. What is wrong goes on as it was last in force (`in_force`): a restart changes nothing that a reload
would have refused. What was never in force is left out, and named.

Left out may be what only takes something away: a source, a broker, a peer, [page]. [store], [[stream]], [signing] and
[[origin]] say what is kept for how long, what may leave the node and whose facts are believed. Without them the node
would run with defaults that lose or leak facts, so these are as they were last in force as a whole, or the node does
not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from agent.config.node_file import Section, Sections, SettingProblem, name_of_settings
from agent.settings.node import NodeSettings

_WHOLE = ("store", "stream", "signing", "origin")
_LISTS = frozenset(field.name for field in fields(NodeSettings) if field.default == ())
_WORDS = {"opcua": "source", "modbus": "source"}


@dataclass(frozen=True, slots=True)
class NotInForce:
    """A part of node.toml that is not in force. `is_kept`: it goes on as it was last in force; otherwise it is left
    out."""

    subject: str
    why: str
    is_kept: bool

    def __str__(self) -> str:
        return f"{self.subject}: {'as it was last in force' if self.is_kept else 'left out'}: {self.why}"


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """The settings to start with, and what of the file is not among them. `fatal`: why the node cannot start; then
    there are no settings."""

    settings: NodeSettings | None
    not_in_force: tuple[NotInForce, ...] = ()
    fatal: tuple[SettingProblem, ...] = ()


@dataclass(slots=True)
class _Chosen:
    """A section as it is to run. `is_kept`: from the settings last in force."""

    kind: str
    settings: Any
    is_kept: bool = False


def plan_settings(sections: Sections, before: NodeSettings | None) -> SettingsPlan:
    """Choose for each section: the file's, that of `before` (the settings last in force), or none."""
    if sections.settings is not None:
        return SettingsPlan(sections.settings)
    if sections.node is None:
        return SettingsPlan(None, fatal=sections.problems)
    if before is not None and (before.node.zone, before.node.name) != (sections.node.zone, sections.node.name):
        before = None
    out: list[NotInForce] = []
    chosen: dict[str, list[_Chosen]] = {}
    for kind in (field.name for field in fields(NodeSettings)):
        found = [section for section in sections.all if section.kind == kind]
        wrong = [section for section in found if section.settings is None]
        if wrong and kind in _WHOLE:
            if before is None:
                return SettingsPlan(None, fatal=tuple(problem for section in wrong for problem in section.problems))
            chosen[kind] = _kept(kind, before)
            out.append(NotInForce(_heading(kind), _reason(wrong), is_kept=True))
            continue
        chosen[kind] = [_Chosen(kind, section.settings) for section in found if section.settings is not None]
        names = {name_of_settings(section.settings) for section in chosen[kind]}
        for section in wrong:
            kept = next((last for last in _kept(kind, before) if name_of_settings(last.settings) == section.name), None)
            if kept is not None and section.name not in names:
                names.add(section.name)
                chosen[kind].append(kept)
            out.append(NotInForce(_subject(section), _reason([section]), is_kept=kept is not None))
    out += [
        NotInForce(section.place, _reason([section]), is_kept=False) for section in sections.all if not section.kind
    ]
    return _agreeing(chosen, before, out)


def _agreeing(chosen: dict[str, list[_Chosen]], before: NodeSettings | None, out: list[NotInForce]) -> SettingsPlan:
    """The sections that obey the rules between sections. A section that breaks one is replaced by the one last in
    force, or left out; it ends, because no section is replaced twice."""
    while True:
        settings = _assembled(chosen)
        broken = next(iter(settings.problems()), None)
        if broken is None:
            return SettingsPlan(settings, tuple(out))
        path, why = broken
        kind, _, index = path.partition(".")[0].rstrip("]").partition("[")
        if kind == "node":
            return SettingsPlan(None, fatal=(SettingProblem(path, settings.node, why, kind),))
        if kind in _WHOLE:
            kept = _kept(kind, before)
            if before is None or all(section.is_kept for section in chosen[kind]):
                return SettingsPlan(None, fatal=(SettingProblem(path, getattr(settings, kind), why, kind),))
            chosen[kind] = kept
            out.append(NotInForce(_heading(kind), f"{path}: {why}", is_kept=True))
            continue
        index = index or "0"  # a section that a file has once
        found = chosen[kind].pop(int(index))
        name = name_of_settings(found.settings)
        kept_one = next((last for last in _kept(kind, before) if name_of_settings(last.settings) == name), None)
        is_kept = (
            kept_one is not None
            and not found.is_kept
            and name not in {name_of_settings(o.settings) for o in chosen[kind]}
        )
        if is_kept and kept_one is not None:
            chosen[kind].insert(int(index), kept_one)
        out.append(NotInForce(f"{_WORDS.get(kind, kind)} {name}".rstrip(), f"{path}: {why}", is_kept=is_kept))


def _assembled(chosen: Mapping[str, Sequence[_Chosen]]) -> NodeSettings:
    """The settings of these sections; defaults where there are none."""
    found: dict[str, Any] = {}
    for kind, sections in chosen.items():
        if kind in _LISTS:
            found[kind] = tuple(section.settings for section in sections)
        elif sections:
            found[kind] = sections[0].settings
    return NodeSettings(**found)


def _kept(kind: str, before: NodeSettings | None) -> list[_Chosen]:
    """The sections of a kind that were last in force."""
    if before is None:
        return []
    found = getattr(before, kind)
    return [_Chosen(kind, settings, is_kept=True) for settings in (found if isinstance(found, tuple) else [found])]


def _heading(kind: str) -> str:
    return f"[[{kind}]]" if kind in _LISTS else f"[{kind}]"


def _subject(section: Section) -> str:
    """As the status names it: `source meter`; without a name its place in the file: `modbus[1]`."""
    return f"{_WORDS.get(section.kind, section.kind)} {section.name}" if section.name else section.place


def _reason(wrong: Iterable[Section]) -> str:
    return "; ".join(dict.fromkeys(str(problem) for section in wrong for problem in section.problems))
