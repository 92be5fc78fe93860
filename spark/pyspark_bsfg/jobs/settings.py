"""Settings of the jobs, from one TOML into frozen records. Core: no IO.

All problems are reported at once, each with the path of the key, its value and the reason; an unknown key with the
nearest known one. `[source]` has the options of `readStream`, which `streaming/options.py` checks. A job without a
section does not run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from agent.message import CONSUMER
from pyspark_bsfg.errors import OptionError, SettingsError
from pyspark_bsfg.landing.manifest import Format
from pyspark_bsfg.options import local_path
from pyspark_bsfg.streaming.options import StreamOptions

DAY_S = 86_400
MODULUS_MAX = 2**53  # a double counts exactly up to here
DECLARED = ".declared"
"""End of the name of the consumer of declarations; the job gaps adds it to that of `[source]`."""


def _within(least: float, most: float, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, slots=True)
class Land:
    """`[land]`: the table of facts; `<table>_incidents` is next to it. Small files are merged when a date and zone, or
    with Parquet the table, has `compact_files` of them; 0: never."""

    table: Path
    checkpoint: Path
    format: Format = "delta"
    every_s: float = _within(0, DAY_S, 10.0)
    compact_files: int = _within(0, 100_000, 100)


@dataclass(frozen=True, slots=True)
class Rule:
    """`[[clean.rule]]`: the range of the numbers of some tags; `*` in `tag` stands for any text."""

    tag: str
    name: str
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Clean:
    """`[clean]`: which facts have a usable number."""

    table: Path
    accept_uncertain: bool = False
    rule: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter:
    """`[[rollup.counter]]`: tags that count up. After modulus - 1 comes 0; without a modulus, a decrease is a reset."""

    tag: str
    modulus: int | None = _within(2, MODULUS_MAX, None)


@dataclass(frozen=True, slots=True)
class Rollup:
    """`[rollup]`: how long a value holds if no other follows, and which tags are counters."""

    table: Path
    hold_s: int = _within(1, DAY_S, 300)
    counter: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """`[[gaps.tag]]`: how far apart the facts of some tags may be. A tag without `*` is expected to have facts."""

    tag: str
    expected_s: float = _within(0.001, 366 * DAY_S)


@dataclass(frozen=True, slots=True)
class Gaps:
    """`[gaps]`: the expected interval of the tags that no `tag` matches; the first match decides. `declarations` is the
    stream in which nodes declare the losses of their sources; if empty, none is read."""

    table: Path
    declarations: str = field(default="facts.operational", metadata={"may_be_empty": True})
    expected_s: float = _within(0.001, 366 * DAY_S, 60.0)
    tag: tuple[Expected, ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """`[export]`: an Iceberg table, `namespace.name`, and the catalog by its properties as pyiceberg names them.
    Secrets belong in pyiceberg's own configuration."""

    table: str
    catalog: str = "bsfg"
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole file. `source` are options of readStream, as texts."""

    source: Mapping[str, str]
    land: Land
    clean: Clean | None = None
    rollup: Rollup | None = None
    gaps: Gaps | None = None
    export: Export | None = None

    @classmethod
    def of(cls, text: str) -> Settings:
        """From TOML. Raises SettingsError with every problem."""
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError([f"not TOML: {error}"]) from error
        problems: list[str] = []
        made = _record(cls, given, "", problems)
        if not problems:
            problems += _contradictions(made)
        if problems:
            raise SettingsError(problems)
        found: Settings = made
        return found


def stream_options(source: Mapping[str, str], checkpoint: Path) -> dict[str, str]:
    """Options of readStream for the land job. A loss does not end it, because it becomes an incident; nor does a
    restored store, because facts that come again are recognised."""
    return {"onRestored": "reread", "failOnDataLoss": "false", **source, "checkpointLocation": str(checkpoint)}


def _contradictions(made: Settings) -> list[str]:
    found = []
    try:
        StreamOptions.of(stream_options(made.source, made.land.checkpoint))
    except OptionError as error:
        found.append(f"source: {error}")
    consumer = {name.lower(): text for name, text in made.source.items()}.get("consumer", "")
    is_declared = CONSUMER.fullmatch(consumer) and made.gaps is not None and made.gaps.declarations
    if is_declared and not CONSUMER.fullmatch(consumer + DECLARED):
        found.append(f"source.consumer = {consumer!r}: [gaps] adds {DECLARED} to it, which is too long; shorten it")
    found += [
        f"{name}: it reads the table of [clean]; add that section"
        for name in ("rollup", "gaps", "export")
        if getattr(made, name) and made.clean is None
    ]
    if made.export and not all(made.export.table.partition(".")):
        found.append(f"export.table = {made.export.table!r}: it is namespace.name")
    rules = made.clean.rule if made.clean else ()
    found += [
        f"clean.rule {rule.name!r}: neither min nor max; name one"
        for rule in rules
        if rule.min is None and rule.max is None
    ]
    tables = {"land.table": made.land.table, "land.checkpoint": made.land.checkpoint}
    tables |= {f"{name}.table": part.table for name in ("clean", "rollup", "gaps") if (part := getattr(made, name))}
    taken: dict[Path, str] = {}
    for name, folder in tables.items():
        for near in (folder, *folder.parents, *(known for known in taken if folder in known.parents)):
            if near in taken:
                found.append(
                    f"{name} = {str(folder)!r}: it is inside {taken[near]} or contains it; name another folder"
                )
                break
        taken[folder] = name
    return found


def _record(kind: Any, given: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    """A record from a table of TOML; None if something was wrong."""
    known, hints, before = {member.name: member for member in fields(kind)}, get_type_hints(kind), len(problems)
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in known:
            values[key] = _value(hints[key], value, f"{path}{key}", problems, known[key].metadata)
            continue
        near = get_close_matches(key, known, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        problems.append(f"{path}{key}: unknown key; {hint}")
    for name, member in known.items():
        if name not in given and member.default is MISSING and member.default_factory is MISSING:
            problems.append(f"{path}{name}: missing")
    return kind(**values) if len(problems) == before else None


def _value(kind: Any, value: Any, path: str, problems: list[str], limits: Mapping[str, Any]) -> Any:
    if get_origin(kind) in {Union, UnionType}:
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    if get_origin(kind) is tuple:
        if isinstance(value, list):
            inner = get_args(kind)[0]
            return tuple(_value(inner, entry, f"{path}[{n}]", problems, {}) for n, entry in enumerate(value, 1))
        problems.append(f"{path} = {value!r}: write [[{path}]]")
    elif hasattr(kind, "__dataclass_fields__"):
        if isinstance(value, dict):
            return _record(kind, value, f"{path}.", problems)
        problems.append(f"{path} = {value!r}: write [{path}]")
    elif get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        problems.append(f"{path} = {value!r}: it is {' or '.join(get_args(kind))}")
    elif kind == Mapping[str, str]:
        if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
            return {name: str(part).lower() if isinstance(part, bool) else str(part) for name, part in value.items()}
        problems.append(f"{path}: a table of texts, numbers and booleans")
    else:
        return _plain(kind, value, path, problems, limits)
    return None


def _plain(kind: type, value: Any, path: str, problems: list[str], limits: Mapping[str, Any]) -> Any:
    """A text, a number, a boolean or a path."""
    takes = {float: (int, float), Path: (str,)}.get(kind, (kind,))
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", Path: "a path"}
    if type(value) not in takes or (value == "" and "may_be_empty" not in limits):
        problems.append(f"{path} = {value!r}: it is {names[kind]}")
    elif "least" in limits and not limits["least"] <= value <= limits["most"]:
        problems.append(f"{path} = {value!r}: from {limits['least']} to {limits['most']}")
    elif kind is Path:
        if (folder := local_path(value)) is not None:
            return Path(folder).absolute()
        # Taken as a path, an address would be a folder below the current one.
        problems.append(f"{path} = {value!r}: it is a folder on storage that all hosts mount; [export] writes to s3://")
    elif kind is float and value != value:  # noqa: PLR0124  TOML has nan
        problems.append(f"{path} = nan: it is a number")
    else:
        return kind(value)
    return None
