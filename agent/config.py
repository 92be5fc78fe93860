"""Reads node.toml into the frozen settings of `agent.settings`, and reports all problems of the file at once.

Each problem names its path in the file, the value found and what to do, so an operator corrects the file in one
attempt. This module opens no socket, store or certificate; `bsfg check` opens them afterwards.

The sections are read by the types of their fields, and each section reports its broken rules.

    ConfigError     node.toml cannot be used; `problems` lists every reason (the operator corrects them; no retry)
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from agent.errors import BsfgError
from agent.settings.node import DEFAULT_STATE_DIR, HealthSettings, IdentitySettings, NodeSettings
from agent.settings.peers import BrokerSettings
from agent.settings.signing import OriginSettings, SigningSettings
from agent.settings.sources import DeviceProfile, ModbusSourceSettings, OpcuaSourceSettings, SourceSettings

DEVICES_FOLDER = "devices.d"  # next to node.toml

SettingsT = TypeVar("SettingsT")
_WRONG: Any = object()  # stands for a value that was reported as a problem
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of node.toml: its path (`broker[0].port`), the value found, and why it cannot be used."""

    path: str
    value: object
    why: str

    def __str__(self) -> str:
        value = str(self.value) if isinstance(self.value, Path) else self.value
        found = "" if value is MISSING else f" = {value!r}"
        return f"{self.path}{found}: {self.why}"


class ConfigError(BsfgError):
    """node.toml cannot be used; the text lists every problem."""

    def __init__(self, file: Path, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{file}: {count} problem{'s' * (count > 1)}{lines}")


@runtime_checkable
class Checked(Protocol):
    """Settings with rules beyond the types of their fields."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """(field, why) for each rule that is broken."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of a node.toml that are valid by themselves, even if others are not. `settings` is None if there is
    any problem."""

    file: Path
    problems: tuple[Problem, ...]
    settings: NodeSettings | None
    node: IdentitySettings | None
    health: HealthSettings | None
    broker: tuple[BrokerSettings, ...]
    signing: SigningSettings | None
    origin: tuple[OriginSettings, ...]
    opcua: tuple[OpcuaSourceSettings, ...]
    modbus: tuple[ModbusSourceSettings, ...]

    @property
    def sources(self) -> tuple[SourceSettings, ...]:
        """The sources of all protocols."""
        return (*self.opcua, *self.modbus)


def load(file: Path) -> NodeSettings:
    """The settings in `file`. Raises ConfigError with every problem found."""
    return read(_parsed(file), file)


class ConfigFile:
    """A node.toml that a process reads repeatedly, and a digest of the content that it last accepted."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._digest = b""

    def load(self) -> NodeSettings:
        """The settings in the file. A file that is refused counts as not read. Raises ConfigError."""
        digest = self._present_digest()  # before the file is read, so that no later change is missed
        settings = load(self.file)
        self._digest = digest
        return settings

    def is_changed(self) -> bool:
        """Whether the content of the file differs from the content that was last accepted."""
        return self._present_digest() != self._digest

    def _present_digest(self) -> bytes:
        try:
            return hashlib.blake2b(self.file.read_bytes()).digest()
        except OSError:
            return b""


def load_sections(file: Path) -> Sections:
    """The valid sections of `file`, and every problem of the others. Raises ConfigError if the file is not TOML."""
    return _sections(_parsed(file), file)


def read(table: Mapping[str, object], file: Path) -> NodeSettings:
    """The settings in a parsed file. Relative paths start at the folder of `file`. Raises ConfigError."""
    sections = _sections(table, file)
    if sections.settings is None:
        raise ConfigError(file, sections.problems)
    return sections.settings


def _sections(table: Mapping[str, object], file: Path) -> Sections:
    reader = _Reader(file.parent.absolute())
    table = _with_own_certificates(_with_profiles(reader, table))
    settings = reader.table(NodeSettings, table, "")
    problems = tuple(Problem(reader.places.get(one.path, one.path), one.value, one.why) for one in reader.problems)

    def good(kind: type[SettingsT], found: object) -> list[SettingsT]:
        alone = _Reader(reader.folder)
        section = alone.table(kind, found, "")
        return [] if alone.problems else [section]

    def each(kind: type[SettingsT], name: str) -> tuple[SettingsT, ...]:
        found = table.get(name, [])
        return tuple(one for each in found for one in good(kind, each)) if isinstance(found, list) else ()

    return Sections(
        file,
        problems,
        None if problems else settings,
        next(iter(good(IdentitySettings, table.get("node"))), None),
        next(iter(good(HealthSettings, table.get("health", {}))), None),
        each(BrokerSettings, "broker"),
        next(iter(good(SigningSettings, table.get("signing", {}))), None),
        each(OriginSettings, "origin"),
        each(OpcuaSourceSettings, "opcua"),
        each(ModbusSourceSettings, "modbus"),
    )


def _parsed(file: Path) -> Mapping[str, object]:
    """The tables of `file`. Raises ConfigError."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(file, [Problem("file", MISSING, "does not exist; `bsfg init` writes one")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(file, [Problem("file", MISSING, f"cannot be read: {error}")]) from error
    except tomllib.TOMLDecodeError as error:
        # Usually, printed lines were pasted at the end although `bsfg init` has already written their section.
        hint = "; move the lines into the section that exists" if "twice" in str(error) else ""
        raise ConfigError(file, [Problem("file", MISSING, f"is not TOML: {error}{hint}")]) from error


def _with_profiles(reader: _Reader, table: Mapping[str, object]) -> Mapping[str, object]:
    """The table with the defaults of the device profiles that its Modbus sources name."""
    sources = table.get("modbus")
    if not isinstance(sources, list):
        return table
    merged: list[object] = []
    for index, source in enumerate(sources):
        device = source.get("device") if isinstance(source, Mapping) else None
        if not isinstance(device, str) or not device:
            merged.append(source)
            continue
        file = profile_file(reader.folder, device)
        profile = _read_profile(reader, file, f"modbus[{index}].device", device)
        defaults = {} if profile is None else profile.defaults()
        merged.append({**defaults, **source})
        for name in defaults.keys() - source.keys():
            reader.places[f"modbus[{index}].{name}"] = f"{file}: {name}"
    return {**table, "modbus": merged}


def profile_file(folder: Path, device: str) -> Path:
    """The file of a device profile, for a node.toml in `folder`."""
    return folder / device if device.endswith(".toml") else folder / DEVICES_FOLDER / f"{device}.toml"


def _with_own_certificates(table: Mapping[str, object]) -> Mapping[str, object]:
    """The table with a certificate of our own for each secured OPC UA source that names none: one for all of them, made
    at the first connection, in the state folder, because that is where a node may write."""
    sources, node = table.get("opcua"), table.get("node")
    if not isinstance(sources, list):
        return table
    state_dir = node.get("state_dir") if isinstance(node, Mapping) else None
    folder = f"{state_dir if isinstance(state_dir, str) and state_dir else DEFAULT_STATE_DIR}/opcua"
    own = {"certificate_file": f"{folder}/own.der", "private_key_file": f"{folder}/own.key"}
    return {**table, "opcua": [{**own, **one} if _needs_certificate(one) else one for one in sources]}


def _needs_certificate(source: object) -> bool:
    """Whether it is secured and names neither certificate nor key; one without the other is a mistake."""
    return (
        isinstance(source, Mapping)
        and source.get("security_policy") != "None"
        and not {"certificate_file", "private_key_file"} & source.keys()
    )


def _read_profile(reader: _Reader, file: Path, path: str, device: str) -> DeviceProfile | None:
    """A device profile; None, and a reported problem, if it cannot be used."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = sorted(one.stem for one in (reader.folder / DEVICES_FOLDER).glob("*.toml"))
        near = difflib.get_close_matches(device, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"profiles there: {', '.join(known) or 'none'}"
        reader.problems.append(Problem(path, device, f"{file} does not exist; {hint}"))
        return None
    except (OSError, UnicodeDecodeError) as error:
        reader.problems.append(Problem(path, device, f"{file} cannot be read: {error}"))
        return None
    except tomllib.TOMLDecodeError as error:
        reader.problems.append(Problem(path, device, f"{file} is not TOML: {error}"))
        return None
    of_profile = _Reader(file.parent)
    profile = of_profile.table(DeviceProfile, found, "")
    reader.problems += [Problem(f"{file}: {one.path}", one.value, one.why) for one in of_profile.problems]
    if profile is _WRONG:  # continue with the valid keys: an invalid one must not make others appear to be missing
        wrong = {one.path for one in of_profile.problems}
        right = {"description": "", **{name: value for name, value in found.items() if name not in wrong}}
        profile = _Reader(file.parent).table(DeviceProfile, right, "")
    return profile


class _Reader:
    """Reads tables by the fields of dataclasses, and collects the problems."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self.places: dict[str, str] = {}  # file and name of a value from a profile, by its path in node.toml

    def table(self, kind: type[SettingsT], found: object, path: str) -> SettingsT:
        """The settings in one table, or `_WRONG`. Rules are checked even if a plain value is wrong, with its default in
        place of it, so that one problem does not hide another."""
        if not isinstance(found, Mapping):
            self._wrong(path, found, "must be a table")
            return typing.cast(SettingsT, _WRONG)
        hints = typing.get_type_hints(kind)
        known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
        for name in found.keys() - known.keys():
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            self.problems.append(Problem(_join(path, name), found[name], f"is not a setting; {hint}"))
        given: dict[str, Any] = {}
        for name, setting in known.items():
            if name in found:
                given[name] = self.value(hints[name], found[name], _join(path, name))
            elif setting.default is MISSING and setting.default_factory is MISSING:
                given[name] = self._wrong(_join(path, name), MISSING, "is required")
            elif isinstance(setting.default, Path):
                given[name] = self.folder / setting.default
            elif is_dataclass(hints[name]):  # an absent section has defaults with paths, too
                given[name] = self.table(typing.cast(type, hints[name]), {}, _join(path, name))
        wrong = {name for name, value in given.items() if value is _WRONG}
        if any(known[name].default is MISSING or isinstance(known[name].default, tuple) for name in wrong):
            return typing.cast(SettingsT, _WRONG)  # these have no default to check the rules with
        settings = kind(**{name: value for name, value in given.items() if name not in wrong})
        if isinstance(settings, Checked):
            for name, why in settings.problems():
                if name not in wrong:
                    self.problems.append(Problem(_join(path, name), given.get(name, MISSING), why))
        return typing.cast(SettingsT, _WRONG) if wrong else settings

    def value(self, kind: Any, found: object, path: str) -> Any:
        """One value of the type a field declares, or `_WRONG`."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):  # `X | None`: TOML has no null, so it can only be X
            (kind,) = (argument for argument in arguments if argument is not type(None))
            return self.value(kind, found, path)
        if origin is tuple:
            if not isinstance(found, list):
                return self._wrong(path, found, "must be a list")
            values = [self.value(arguments[0], one, f"{path}[{index}]") for index, one in enumerate(found)]
            return _WRONG if any(value is _WRONG for value in values) else tuple(values)
        if origin is Literal:
            return found if found in arguments else self._wrong(path, found, f"must be one of {', '.join(arguments)}")
        if is_dataclass(kind):
            return self.table(typing.cast(type, kind), found, path)
        if kind is Path and isinstance(found, str) and found:
            return self.folder / found
        if kind is float and type(found) is int:
            return float(found)
        return found if type(found) is kind else self._wrong(path, found, f"must be {_TYPE_NAMES.get(kind, kind)}")

    def _wrong(self, path: str, found: object, why: str) -> Any:
        self.problems.append(Problem(path, found, why))
        return _WRONG


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
