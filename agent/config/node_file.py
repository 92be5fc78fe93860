"""Reads node.toml into the frozen settings of `agent.settings`, and reports all problems of the file at once.

Each problem names its path in the file, the value found and what to do, so an operator corrects the file in one
attempt. This module opens no socket, store or certificate; `bsfg check` opens them afterwards.

The sections are read by the types of their fields, and each section reports its broken rules. A problem belongs to one
section, so that the others can be used (`Sections`); `load` wants them all to be right.

    ConfigError     node.toml cannot be used; `problems` lists every reason (the operator corrects them; no retry)
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from agent.config.sections_text import NAMED_BY, BrokenTable, name_of, read_tables
from agent.errors import BsfgError
from agent.settings.node import DEFAULT_STATE_DIR, IdentitySettings, NodeSettings, PageSettings
from agent.settings.peers import BrokerSettings
from agent.settings.signing import OriginSettings, SigningSettings
from agent.settings.sources import (
    PROFILE_SETTINGS,
    PROFILE_TEXTS,
    ModbusSourceSettings,
    OpcuaSourceSettings,
    SourceSettings,
)

SECRET_NAME = re.compile(r"password|secret|token|passphrase|webhook", re.IGNORECASE)
"""In the name of a setting whose value is not shown, unless it is that of a file."""
USER_OF_URL = re.compile(r"(?<=//)[^/@\s\"']*(?=@)")
"""The user and the password in a URL, which a node refuses."""
DEVICES_FOLDER = "devices.d"  # next to node.toml
FILE_BYTES_MAX = 16 * 1024 * 1024  # read of a file, as of a tag file; a node.toml of a thousand sources has one

SettingsT = TypeVar("SettingsT")
_WRONG: Any = object()  # stands for a value that was reported as a problem
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One problem of node.toml: its path (`broker[0].port`), the value found, and why it cannot be used. `section` is
    the section that cannot be used (`broker[0]`)."""

    path: str
    value: object
    why: str
    section: str = ""

    def __str__(self) -> str:
        name = re.split(r"[.: ]", self.path)[-1]
        found = "" if self.value is MISSING else f" = {_shown(name, self.value)!r}"
        return f"{self.path}{found}: {self.why}"


class _Hidden:
    """Stands for a value that is not shown."""

    def __repr__(self) -> str:
        return "(hidden)"


def _shown(name: str, value: object) -> object:
    """The value of a setting as a problem shows it, without what may be secret: problems go to the log, and with the
    health of the node to other zones."""
    if SECRET_NAME.search(name) and not name.endswith("_file"):
        return _Hidden()
    if isinstance(value, Mapping):
        return {key: _shown(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_shown(name, item) for item in value)
    return USER_OF_URL.sub("(hidden)", str(value)) if isinstance(value, str | Path) else value


class ConfigError(BsfgError):
    """node.toml cannot be used; the text lists every problem."""

    def __init__(self, file: Path, problems: Iterable[SettingProblem]) -> None:
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
class Section:
    """One section of a node.toml: its place in the file (`store`, `modbus[1]`), its name or zone ("" if it has none),
    and its settings; None if it has problems."""

    kind: str
    place: str
    name: str
    settings: Any
    problems: tuple[SettingProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of a node.toml, each by itself. `settings` is None if there is any problem. `profiles` are the files
    of the device profiles that it names."""

    file: Path
    problems: tuple[SettingProblem, ...]
    settings: NodeSettings | None
    all: tuple[Section, ...]
    profiles: tuple[Path, ...] = ()

    def named(self, kind: str) -> list[Any]:
        """The valid sections of a kind."""
        return [section.settings for section in self.all if section.kind == kind and section.settings is not None]

    @property
    def node(self) -> IdentitySettings | None:
        """[node], if it is valid."""
        return next(iter(self.named("node")), None)

    @property
    def page(self) -> PageSettings | None:
        """[page], if it is valid."""
        return next(iter(self.named("page")), None)

    @property
    def signing(self) -> SigningSettings | None:
        """[signing], if it is valid."""
        return next(iter(self.named("signing")), None)

    @property
    def broker(self) -> tuple[BrokerSettings, ...]:
        """The valid brokers."""
        return tuple(self.named("broker"))

    @property
    def origin(self) -> tuple[OriginSettings, ...]:
        """The valid origins."""
        return tuple(self.named("origin"))

    @property
    def opcua(self) -> tuple[OpcuaSourceSettings, ...]:
        """The valid OPC UA sources."""
        return tuple(self.named("opcua"))

    @property
    def modbus(self) -> tuple[ModbusSourceSettings, ...]:
        """The valid Modbus sources."""
        return tuple(self.named("modbus"))

    @property
    def sources(self) -> tuple[SourceSettings, ...]:
        """The valid sources of all protocols."""
        return (*self.opcua, *self.modbus)

    @property
    def named_files(self) -> tuple[Path, ...]:
        """The tag files and device profiles of all sources."""
        return (*self.profiles, *(source.tags_file for source in self.sources))


def load(file: Path) -> NodeSettings:
    """The settings in `file`. Raises ConfigError with every problem found."""
    return read(_parsed(file), file)


class ConfigFile:
    """A node.toml that a process reads repeatedly, and a digest of the content that it last used."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._named: tuple[Path, ...] = ()
        self._digest = self._digest_read = b""

    def load(self) -> NodeSettings:
        """The settings in the file. A file that is refused counts as not used. Raises ConfigError."""
        digest = _digest_of(self.file)  # before it is read, so that no later change is missed
        sections = self._read(digest)
        if sections.settings is None:
            raise ConfigError(self.file, sections.problems)
        self._digest = digest
        return sections.settings

    def load_sections(self) -> Sections:
        """The sections of the file, for a start. It counts as used, whatever its problems. Raises ConfigError."""
        digest = _digest_of(self.file)
        sections = self._read(digest)
        self._digest = digest
        return sections

    def is_changed(self) -> bool:
        """Whether the content of the file differs from the content that was last used."""
        return _digest_of(self.file) != self._digest

    def is_unread(self) -> bool:
        """Whether the content of the file, or of a tag file or device profile that it names, differs from what was
        last read, used or refused."""
        return _digest_of(self.file, *self._named) != self._digest_read

    def _read(self, digest: bytes) -> Sections:
        self._digest_read = digest + _digest_of(*self._named)
        sections = load_sections(self.file)
        self._named = sections.named_files
        self._digest_read = digest + _digest_of(*self._named)
        return sections


def _digest_of(*files: Path) -> bytes:
    found = b""
    for file in files:
        with contextlib.suppress(OSError, ValueError):  # ValueError: a name that no file can have
            if file.is_file():  # a pipe would be empty afterwards, or block
                found += hashlib.blake2b(_beginning(file)).digest()
    return found


def _beginning(file: Path) -> bytes:
    """The content, cut one byte beyond the limit: what was copied there by mistake may have gigabytes."""
    with file.open("rb") as opened:
        return opened.read(FILE_BYTES_MAX + 1)


def load_sections(file: Path) -> Sections:
    """The sections of `file`, and every problem. Raises ConfigError if the file cannot be read."""
    return _sections(_parsed(file), file)


def read(table: Mapping[str, object], file: Path) -> NodeSettings:
    """The settings in a parsed file. Relative paths start at the folder of `file`. Raises ConfigError."""
    sections = _sections(table, file)
    if sections.settings is None:
        raise ConfigError(file, sections.problems)
    return sections.settings


def plain(settings: NodeSettings) -> dict[str, Any]:
    """The settings as plain values, for a file of the program's own."""

    def of(value: object) -> Any:
        if is_dataclass(value):
            found = {field.name: of(getattr(value, field.name)) for field in fields(value)}
            return {name: item for name, item in found.items() if item is not None}
        if isinstance(value, tuple):
            return [of(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    found: dict[str, Any] = of(settings)
    return found


def from_plain(table: object, file: Path) -> NodeSettings:
    """The settings that `plain` gave. Device profiles are not read again. Raises ConfigError."""
    reader = _Reader(file.parent.absolute())
    settings = reader.table(NodeSettings, table, "")
    if reader.problems:
        raise ConfigError(file, reader.problems)
    return settings


def _sections(table: Mapping[str, object], file: Path) -> Sections:
    reader = _Reader(file.parent.absolute())
    table = _with_own_certificates(_with_profiles(reader, table))
    settings = reader.table(NodeSettings, table, "")
    problems = tuple(
        SettingProblem(
            reader.places.get(problem.path, problem.path),
            problem.value,
            problem.why,
            problem.section or problem.path.partition(".")[0],
        )
        for problem in reader.problems
    )
    if not problems:
        return Sections(file, (), settings, tuple(_valid_sections(settings)), tuple(reader.profiles))
    of_section: dict[str, list[SettingProblem]] = {}
    for problem in problems:
        of_section.setdefault(problem.section, []).append(problem)

    def section(kind: str, place: str, made_as: Any, found: object) -> Section:
        alone = _Reader(reader.folder)
        made = alone.table(made_as, found, "")
        name = "" if place == kind else name_of(found)  # a `name` in [page] is a mistake, and names nothing
        if not alone.problems and place not in reader.without_profile:  # rules between sections are not its own
            return Section(kind, place, name, made)
        return Section(kind, place, name, None, tuple(of_section[place]))

    hints, sections = typing.get_type_hints(NodeSettings), list[Section]()
    for kind, made_as in hints.items():
        if typing.get_origin(made_as) is not tuple:
            sections.append(section(kind, kind, made_as, table.get(kind, {})))
            continue
        entries, item = table.get(kind, []), typing.get_args(made_as)[0]
        if isinstance(entries, list):
            sections += [section(kind, f"{kind}[{at}]", item, entry) for at, entry in enumerate(entries)]
        else:  # [modbus] in the place of [[modbus]]
            sections.append(Section(kind, kind, name_of(entries), None, tuple(of_section[kind])))
    for word in table.keys() - hints.keys():  # the sections of [[modbuss]] are known by their names
        kind = next(iter(difflib.get_close_matches(word, hints, 1)), "")
        entries = table[word]
        unknown = entries if isinstance(entries, list) else [entries]
        sections += [Section(kind, word, name_of(entry), None, tuple(of_section[word])) for entry in unknown]
    return Sections(file, problems, None, tuple(sections), tuple(reader.profiles))


def _valid_sections(settings: NodeSettings) -> Iterator[Section]:
    for kind in (field.name for field in fields(settings)):
        made = getattr(settings, kind)
        entries = (
            [(f"{kind}[{at}]", entry) for at, entry in enumerate(made)] if isinstance(made, tuple) else [(kind, made)]
        )
        for place, entry in entries:
            yield Section(kind, place, name_of_settings(entry), entry)


def name_of_settings(section: Any) -> str:
    """The name of a section among those of its kind, "" if it has none."""
    name = next((getattr(section, setting) for setting in NAMED_BY if hasattr(section, setting)), "")
    assert isinstance(name, str)
    return name


def _parsed(file: Path) -> Mapping[str, object]:
    """The tables of `file`. Raises ConfigError."""
    try:
        data = _beginning(file)
    except FileNotFoundError:
        raise ConfigError(file, [SettingProblem("file", MISSING, "does not exist; `bsfg init` writes one")]) from None
    except PermissionError as error:
        why = f"cannot be read: {error.strerror}; run as root or as a member of its group (bsfg in /etc/bsfg)"
        raise ConfigError(file, [SettingProblem("file", MISSING, why)]) from error
    except OSError as error:
        raise ConfigError(file, [SettingProblem("file", MISSING, f"cannot be read: {error.strerror}")]) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(file, [SettingProblem("file", MISSING, f"is larger than {FILE_BYTES_MAX} bytes")])
    return read_tables(data)


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
        reader.profiles.append(file)
        problems_before = len(reader.problems)
        defaults = _read_profile(reader, file, f"modbus[{index}].device", device)
        if len(reader.problems) > problems_before:
            reader.without_profile.add(f"modbus[{index}]")
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
    return {**table, "opcua": [{**own, **source} if _needs_certificate(source) else source for source in sources]}


def _needs_certificate(source: object) -> bool:
    """Whether it is secured and names neither certificate nor key; one without the other is a mistake."""
    return (
        isinstance(source, Mapping)
        and source.get("security_policy") != "None"
        and not {"certificate_file", "private_key_file"} & source.keys()
    )


def _read_profile(reader: _Reader, file: Path, path: str, device: str) -> dict[str, object]:
    """The settings of a device profile, whose values are checked with those of the source; none, and a reported
    problem, if the file cannot be used."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = sorted(profile.stem for profile in (reader.folder / DEVICES_FOLDER).glob("*.toml"))
        near = difflib.get_close_matches(device, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"profiles there: {', '.join(known) or 'none'}"
        reader.problems.append(SettingProblem(path, device, f"{file} does not exist; {hint}"))
        return {}
    except tomllib.TOMLDecodeError as error:
        reader.problems.append(SettingProblem(path, device, f"{file} is not TOML: {error}"))
        return {}
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name that no file can have
        reader.problems.append(SettingProblem(path, device, f"{file} cannot be read: {error}"))
        return {}
    section = path.partition(".")[0]
    if "description" not in found:
        reader.problems.append(SettingProblem(f"{file}: description", MISSING, "is required", section))
    for name in found.keys() - PROFILE_SETTINGS - PROFILE_TEXTS:
        why = f"is not a setting of a profile; {_known(name, sorted(PROFILE_SETTINGS))}"
        reader.problems.append(SettingProblem(f"{file}: {name}", found[name], why, section))
    return {name: value for name, value in found.items() if name in PROFILE_SETTINGS}


def _known(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, or all that there are."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


class _Reader:
    """Reads tables by the fields of dataclasses, and collects the problems."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[SettingProblem] = []
        self.places: dict[str, str] = {}  # file and name of a value from a profile, by its path in node.toml
        self.profiles: list[Path] = []
        self.without_profile = set[str]()  # sections whose profile cannot be used

    def table(self, kind: type[SettingsT], found: object, path: str) -> SettingsT:
        """The settings in one table, or `_WRONG`. Rules are checked even if a plain value is wrong, with its default in
        place of it, so that one problem does not hide another."""
        if isinstance(found, BrokenTable):
            return typing.cast(SettingsT, self._wrong(path, MISSING, found.why))
        if not isinstance(found, Mapping):
            self._wrong(path, found, "must be a table")
            return typing.cast(SettingsT, _WRONG)
        hints, known = _fields_of(kind)  # type: ignore[arg-type]
        for name in found.keys() - known.keys():
            value, why = found[name], f"is not a setting; {_known(name, known)}"
            if isinstance(value, BrokenTable):
                why, value = value.why, MISSING
            self.problems.append(SettingProblem(_join(path, name), value, why, "" if path else name))
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
                    self.problems.append(SettingProblem(_join(path, name), given.get(name, MISSING), why))
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
            values = [self.value(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(found)]
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
        self.problems.append(SettingProblem(path, found, why))
        return _WRONG


@cache
def _fields_of(kind: type) -> tuple[dict[str, Any], dict[str, Field[Any]]]:
    """The types and the fields of a settings class, by name. Found once: a node may have a thousand peers."""
    return typing.get_type_hints(kind), {field.name: field for field in fields(kind)}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
