"""Writes docs/reference/configuration.md and docs/reference/commands.md from the code, and the rows of log.md. Prints
nothing when they are up to date.

The rules of a setting are taken from the code that enforces them: a record is made with values that break them, and the
page shows the answers. The meaning of a setting comes from the node.toml that `bsfg init` writes. Commands are
described by the first paragraph of their `--help`. The texts about log lines and incidents are written in log.md
itself; a new one gets an empty row there, which a test refuses. Run it after changing a setting, a command or a log
line.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import click

from agent.cli import bsfg
from agent.cli.prepare.init import node_toml
from agent.health.problems import Problem
from agent.node.reload_plan import Reach, reach_of
from agent.settings.node import NodeSettings
from agent.settings.sources import toml
from tools.log_events import events, incidents
from tools.wrap_prose import wrapped

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
REACHES = {Reach.APPLY: "", Reach.RESTART: "*restart*", Reach.REFUSE: "*refused*", Reach.OTHER: ""}

_TYPES = {str: "text", int: "integer", float: "number", bool: "boolean", Path: "path"}
_WRONG = "Ä !"
_BREAKING: dict[type, tuple[object, ...]] = {
    str: ("", _WRONG),
    int: (-(10**15), -1, 0, 10**15),
    float: (-1.0, 0.0, 1e15),
    bool: (True, False),
    Path: (Path("a"),),
}
_GOOD: dict[str, object] = {  # for settings without a default, and for those that the rules of a section ask for
    "name": "a",
    "zone": "a",
    "host": "a",
    "broker": "a",
    "exports": ("a",),
    "pulls": ("a",),
    "address_base": 0,
    "url": "opc.tcp://a",
    "tags_file": Path("a"),
    "certificate_file": Path("a"),
    "private_key_file": Path("a"),
}
_WIDTH = 120
_EVERYWHERE = frozenset({"--config", "--json"})
_SETTING = re.compile(r"(?:# )?([a-z_0-9]+) = .+")
_SECTION = re.compile(r"(?:# )?\[\[?([a-z]+)\]\]?")

_CONFIGURATION = """# Configuration: node.toml

<!-- from the code: python tools/draw_reference.py -->

Every setting of `node.toml`, its default, and the values that are accepted; `bsfg init` writes the file with all of
them. A path is relative to the folder of the file. A section in double brackets may occur several times. Names contain
their unit.

A running node takes over a change with `bsfg reload` or `systemctl reload`, except: *restart*, the old value stays in
force until the node is restarted; *refused*, the file describes another node; `[page]` and `[[notify]]`, which need a
restart of `bsfg-page@ZONE`. A zone is 1 to 32 of `a-z`, `0-9` and `-`, a stream name 1 to 64 of these, `.` and `_`.

## What a node starts with

A node starts with every section that is right, also if another section is not TOML. A wrong section goes on as it was
last in force; the state folder has a copy (`in_force/`). Without a copy:

| wrong at the start | the node |
| --- | --- |
| `[[opcua]]`, `[[modbus]]`, a device profile | runs without this source |
| `[[broker]]`, `[[peer]]` | runs without this broker and its peers, or without this peer |
| `[page]`, `[[notify]]`, an unknown section | runs without it |
| `[store]`, `[[stream]]`, `[signing]`, `[[origin]]` | does not start: the defaults could lose facts, export them, or accept unsigned ones. With a copy, all sections of this kind are the copied ones |
| a tag file | reads the last map that was in force, with the section of that time; without one, nothing from this source |
| certificates, keys and passwords of a source or broker; a host name that does not resolve | tries again until it can connect |
| the signing key | records without signatures, and its status is *broken*; the next signed facts prove these |

A node never starts if node.toml is missing or cannot be read, if `[node]` is wrong, or if the store belongs to another
zone or cannot be opened. [What to do when a file is wrong](../operate/sources.md#when-a-file-is-wrong).
"""
_COMMANDS = """# Commands

<!-- from the code: python tools/draw_reference.py -->

Every command of `bsfg`, with its arguments and options. `bsfg COMMAND --help` says the rest. The exit status is 0 for a
good result, 1 for a bad one and 2 for wrong usage. Nearly every command also takes `--config` (a node.toml, or a node of
/etc/bsfg) and `--json`. [Benchmarks](../developers/benchmarks.md) has the commands of `bsfg bench`.
"""


@dataclass(slots=True)
class Section:
    """A section of node.toml: its record, and the prose of the sample file about it and about groups of settings."""

    name: str
    record: type
    is_list: bool
    about: list[str]
    notes: list[tuple[list[str], str]] = field(default_factory=list)


def sections() -> list[Section]:
    """The sections, in the order of the sample file."""
    hints = typing.get_type_hints(NodeSettings)
    found: list[Section] = []
    prose: list[str] = []
    for line in node_toml("plant-a").splitlines():
        if line.startswith("## ---"):
            prose = []
        elif line.startswith("##"):
            prose.append(line.removeprefix("##").strip())
        elif named := _SECTION.fullmatch(line):
            is_list = typing.get_origin(hints[named[1]]) is tuple
            record = typing.get_args(hints[named[1]])[0] if is_list else hints[named[1]]
            found.append(Section(named[1], record, is_list, prose if found else []))
            prose = []
        elif named := _SETTING.fullmatch(line):
            if prose:
                found[-1].notes.append(([], " ".join(prose)))
            if found[-1].notes:
                found[-1].notes[-1][0].append(named[1])
            prose = []
    return found


def configuration() -> str:
    """The page of the settings."""
    return wrapped("\n".join([_CONFIGURATION, *(_section(one) for one in sections())]), is_python=False)


def commands() -> str:
    """The page of the commands."""
    drawn, shared = [_COMMANDS], _EVERYWHERE
    for path, command in walk(bsfg, "bsfg"):
        if path.startswith("bsfg bench "):
            continue
        if isinstance(command, click.Group) or path.count(" ") < 2:
            shared = _EVERYWHERE | frozenset(shared_options(command) if isinstance(command, click.Group) else ())
        drawn.append(_command(path, command, shared if _connects(command) else _EVERYWHERE))
    return wrapped("\n".join(drawn), is_python=False)


def log() -> str:
    """The page of the problems, log lines and incidents: problems of the code, rows and levels of events and incidents
    with the texts that the page has. Events of level info are normal, and have no row."""
    text = (REFERENCE / "log.md").read_text("utf-8")
    head = "| problem | level | meaning |\n|---|---|---|\n"
    text = re.sub(rf"{re.escape(head)}(\|.*\n)*", lambda _: head + "".join(map(_problem, Problem)), text)
    tables = (
        ("event", [name for name, level in events().items() if level != "info"]),
        ("kind", sorted(incidents())),
    )
    for head, rows in tables:
        (table,) = re.findall(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
        written = dict(re.findall(r"^\| `(\w+)` \|(.*)$", table, re.MULTILINE))
        drawn = "".join(f"| `{name}` |{written.get(name, ' | |')}\n" for name in rows)
        text = text.replace(table, drawn)
    return text


def _problem(problem: Problem) -> str:
    """The row of a problem. The status itself says what to do."""
    cells = (f"`{problem.name.lower()}`", problem.level.value, problem.value[1])
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command and group below one, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from walk(below, f"{path} {name}")


def accepted(record: type, name: str) -> str:
    """The rules of a setting, as the record states them about values that break them; empty without such rules."""
    given = {one.name: _GOOD[one.name] for one in fields(record) if one.name in _GOOD}
    given |= {one.name: Path("a") for one in fields(record) if one.default is MISSING and one.name not in given}
    before = set(record(**given).problems())
    said: list[str] = []
    for wrong in _breaking(typing.get_type_hints(record)[name]):
        for setting, why in record(**{**given, name: wrong}).problems():
            rule = re.sub(r"^(must be |(?:''|'Ä !') is not |'Ä !' is no number; )", "", why)
            if setting == name and (setting, why) not in before and rule not in said:
                said.append(re.sub(r"^(a zone|a stream name) \(.*\)$", r"\1", rule))
    return "; ".join(said)


def kind_of(hint: Any) -> str:
    """A type in words; the choices of one that has choices."""
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return kind_of(next(one for one in arguments if one is not type(None)))
    if typing.get_origin(hint) is Literal:
        return " or ".join(f'`"{one}"`' for one in arguments)
    if typing.get_origin(hint) is tuple:
        return f"list of {kind_of(arguments[0])}"
    if is_dataclass(hint):
        inner = typing.get_type_hints(hint)
        return "tables: " + ", ".join(f"`{one.name}` ({kind_of(inner[one.name])})" for one in fields(hint))
    return _TYPES[hint]


def _breaking(hint: Any) -> Iterable[object]:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _breaking(next(one for one in arguments if one is not type(None)))
    if typing.get_origin(hint) is Literal:
        return arguments
    if typing.get_origin(hint) is tuple:
        return ((_WRONG,),) if arguments[0] is str else ()
    return _BREAKING[hint]


def _section(section: Section) -> str:
    head = f"[[{section.name}]]" if section.is_list else f"[{section.name}]"
    rows = ["| setting | default | meaning | values |", "|---|---|---|---|"]
    hints = typing.get_type_hints(section.record)
    about, entries = _paragraphs(section.about, set(hints))
    meanings: dict[str, str] = {}
    for (first, *others), text in [*entries, *section.notes]:
        meanings |= {first: _linked(text)} | dict.fromkeys(others, f"see `{first}`")
    for one in fields(section.record):
        rules = accepted(section.record, one.name)
        kind = "" if rules and hints[one.name] is str else _kind(one, hints[one.name])
        change = REACHES[reach_of(section.record, one.name)]
        cells = (_default(one), meanings.get(one.name, ""), "; ".join(filter(None, (kind, rules, change))))
        rows.append(f"| `{one.name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    parts = [f"## {head}", *(_filled(_linked(text)) for text in about), "\n".join(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _kind(one: Field[Any], hint: Any) -> str:
    """The kind of values, if the default does not show it."""
    return "" if hint in _TYPES and one.default not in (MISSING, None) else kind_of(hint)


def _default(one: Field[Any]) -> str:
    if one.default is MISSING:
        return "required"
    if one.default is None:
        return "none"
    return f"`{list(one.default)}`" if isinstance(one.default, tuple) else f"`{toml(one.default)}`"


def _paragraphs(lines: Iterable[str], names: set[str]) -> tuple[list[str], list[tuple[list[str], str]]]:
    """Lines of prose as paragraphs, which an empty line ends, and as what they say of settings: `setting: ...`."""
    found: list[tuple[list[str], str]] = [([], "")]
    for line in lines:
        head, colon, rest = line.partition(": ")
        if colon and set(head.split(", ")) <= names:
            found.append((head.split(", "), rest))
        elif not line:
            found.append(([], ""))
        else:
            named, text = found[-1]
            found[-1] = named, f"{text} {line}".strip()
    return [text for named, text in found if text and not named], [entry for entry in found if entry[0]]


def _linked(text: str) -> str:
    return re.sub(r"docs/operate/([a-z-]+)\.md", r"[\1](../operate/\1.md)", text)


def _filled(text: str, indent: str = "") -> str:
    indent = "  " if text.startswith("- ") else indent
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _command(path: str, command: click.Command, shared: frozenset[str]) -> str:
    """The first part of a command's help, its arguments, and its options without their texts and the shared ones."""
    told = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    context = click.Context(command, info_name=path)
    is_group = isinstance(command, click.Group)
    pieces = [] if is_group else [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    parts = [f"{'##' if path.count(' ') < 2 else '###'} {' '.join([path, *pieces])}", _filled(told)]
    own = ", ".join(f"`{name}`" for name in option_names(command) if name not in shared)
    if is_group and (below := shared_options(command)):
        own = f"Where one connects to a server or device: {', '.join(f'`{name}`' for name in below if name not in _EVERYWHERE)}."
    return "\n\n".join(part for part in (*parts, _filled(own)) if part) + "\n"


def option_names(command: click.Command) -> list[str]:
    """The options of a command as its help names them."""
    context = click.Context(command)
    records = (one.get_help_record(context) for one in command.params if isinstance(one, click.Option))
    return [re.sub(" [A-Z_:]+( RANGE)?$", "", names) for names, _ in filter(None, records)]


def _connects(command: click.Command) -> bool:
    return bool({"url", "device"} & {one.name for one in command.params})


def shared_options(group: click.Group) -> list[str]:
    """The options that every command of a group has with which it connects to a URL or DEVICE."""
    lists = [option_names(command) for path, command in walk(group, "") if path.count(" ") == 1 and _connects(command)]
    return [name for name in lists[0] if all(name in names for names in lists)] if lists else []


PAGES = {"configuration.md": configuration, "commands.md": commands, "log.md": log}

if __name__ == "__main__":
    for name, page in PAGES.items():
        file, text = REFERENCE / name, page()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"updated {file}")
