"""Reads node.toml into frozen, typed settings, and reports all problems of the file at once.

Each problem names its path in the file, the value found and what to do, so an operator corrects the file in one
attempt. Nothing here opens a socket, a store or a certificate; `bsfg check` does that afterwards with what the settings
name.

Each part of the product declares its own settings beside its code, with the default beside the field. This module reads
them all by their types, and holds the rules that concern several parts.

    ConfigError     node.toml cannot be used; `problems` lists every reason (the operator corrects them; no retry)
"""

from __future__ import annotations

import difflib
import hashlib
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from agent.errors import BsfgError
from agent.fact_store import HOURS_MAX, HoldLimit, StoreSettings, StreamSettings
from agent.ingest import DeviceProfile, ModbusSourceSettings, OpcuaSourceSettings, SourceSettings
from agent.message import LOCAL_ZONE, STREAM, ZONE
from agent.replication.protocol.limits import CONSUMERS_BESIDE_STREAMS, REQUESTS_PER_SECOND_MAX, PeerLimits
from agent.replication.protocol.pacing import BYTES_PER_SECOND_MIN
from agent.signing.settings import OriginSettings, SigningSettings

DEVICES_FOLDER = "devices.d"  # beside node.toml
DEFAULT_STATE_DIR = "state"  # beside node.toml
STATE_DIR_BYTES_MAX = 480  # SQLite's limit is 512 with the file's name and -journal

HOLD_BYTES_MIN = 1024 * 1024  # a batch, with the batch after it, must fit

_NO_ZONE = f"no zone is called {LOCAL_ZONE!r}: consumers of the node's own machine are {LOCAL_ZONE}.<name>"
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
        found = "" if self.value is MISSING else f" = {self.value!r}"
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
class IdentitySettings:
    """[node]: the zone of this node, and the folder of its state."""

    zone: str
    state_dir: Path = Path(DEFAULT_STATE_DIR)

    @property
    def store_file(self) -> Path:
        """The fact store of this node."""
        return self.state_dir / "facts.db"

    def problems(self) -> Iterator[tuple[str, str]]:
        if not ZONE.fullmatch(self.zone):
            yield "zone", "a zone is 1 to 32 of a-z, 0-9 and -; it must equal the CN of this node's certificate"
        if self.zone == LOCAL_ZONE:
            yield "zone", _NO_ZONE
        if len(os.fsencode(self.state_dir)) > STATE_DIR_BYTES_MAX:
            yield "state_dir", f"SQLite opens no file below a path of more than {STATE_DIR_BYTES_MAX} bytes"


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """[[broker]]: an MQTT 5 broker that this node connects to, and the certificate it uses there."""

    name: str
    host: str
    ca_file: Path
    cert_file: Path
    key_file: Path
    port: int = 8883
    optional: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        for name in ("name", "host"):
            if not getattr(self, name):
                yield name, "must not be empty"
        if not 1 <= self.port <= 65_535:
            yield "port", "a TCP port is 1 to 65535"


@dataclass(frozen=True, slots=True)
class PullStart:
    """Where the first pull of a stream begins: at the peer's oldest fact, at its end, or at its end after a request for
    the latest value of each tag."""

    stream: str
    at: Literal["oldest", "end", "latest"]


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """[[peer]]: a node in another zone.

    `exports` are the streams that it may fetch from us, `pulls` those that we fetch from it, and `relays` the zones
    besides its own whose facts we accept from it. `appends` are the streams to which it may append here, including
    those that never leave this node. `asks`: commands of this node send it requests (`append --to`) although nothing is
    pulled. `bytes_per_second_max` limits all pulls from it together; 0 is no limit. `start` names the pulls that do not
    begin at the oldest fact. `anti_entropy_hours` is the time between two comparisons with it; 0 leaves them to `peer
    compare`.

    What it may take here: `consumers_max` consumers (0: eight more than it has exports), `requests_per_second_max`
    requests, `answer_bytes_per_second_max` bytes of answers (0 is no limit). Other peers are not delayed by it.
    `hold_bytes_max` sealed bytes, and `hold_hours_max` hours of facts, may wait for its confirmation (0: as long as the
    stream's settings allow); beyond that it loses the oldest.
    """

    zone: str
    broker: str
    exports: tuple[str, ...] = ()
    pulls: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    appends: tuple[str, ...] = ()
    asks: bool = False
    bytes_per_second_max: int = 0
    start: tuple[PullStart, ...] = ()
    anti_entropy_hours: float = 24.0
    consumers_max: int = 0
    requests_per_second_max: int = REQUESTS_PER_SECOND_MAX
    answer_bytes_per_second_max: int = 0
    hold_bytes_max: int = 0
    hold_hours_max: float = 0.0

    @property
    def hold_limit(self) -> HoldLimit:
        """What its consumers may hold back from being released."""
        return HoldLimit(self.hold_bytes_max, self.hold_hours_max)

    @property
    def limits(self) -> PeerLimits:
        """What it may take of this node's serving."""
        consumers_max = self.consumers_max or len(self.exports) + CONSUMERS_BESIDE_STREAMS
        return PeerLimits(consumers_max, self.requests_per_second_max, self.answer_bytes_per_second_max)

    def start_of(self, stream: str) -> Literal["oldest", "end", "latest"]:
        """Where the first pull of a stream begins."""
        return next((one.at for one in self.start if one.stream == stream), "oldest")

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, zones in (("zone", (self.zone,)), ("relays", self.relays)):
            for zone in zones:
                if not ZONE.fullmatch(zone):
                    yield name, f"{zone!r} is not a zone (1 to 32 of a-z, 0-9 and -)"
        if self.zone == LOCAL_ZONE:
            yield "zone", _NO_ZONE
        for name, streams in (("exports", self.exports), ("pulls", self.pulls), ("appends", self.appends)):
            for stream in streams:
                if not STREAM.fullmatch(stream):
                    yield name, f"{stream!r} is not a stream name (1 to 64 of a-z, 0-9, . _ and -)"
        if self.bytes_per_second_max != 0 and self.bytes_per_second_max < BYTES_PER_SECOND_MIN:
            yield (
                "bytes_per_second_max",
                f"0 for no limit, or at least {BYTES_PER_SECOND_MIN:,}, which is one small page a second",
            )
        if self.bytes_per_second_max and not self.pulls:
            yield (
                "bytes_per_second_max",
                "this limits pulls, and nothing is pulled from this peer; set it where the facts are pulled",
            )
        named = [one.stream for one in self.start]
        if missing := sorted(set(named) - set(self.pulls)):
            yield "start", f"{missing[0]!r} is not among pulls"
        if len(set(named)) < len(named):
            yield "start", "names a stream twice"
        if self.hold_bytes_max and self.hold_bytes_max < HOLD_BYTES_MIN:
            yield "hold_bytes_max", f"0 (no limit of its own) or at least {HOLD_BYTES_MIN}"
        if not 0 <= self.hold_hours_max <= HOURS_MAX:
            yield "hold_hours_max", f"0 (no limit of its own) to {HOURS_MAX}"
        if not 0 <= self.consumers_max <= 1000:
            yield "consumers_max", "1 to 1000, or 0 for eight more than there are exports"
        if not 1 <= self.requests_per_second_max <= 100_000:
            yield "requests_per_second_max", "1 to 100000"
        if self.answer_bytes_per_second_max != 0 and self.answer_bytes_per_second_max < BYTES_PER_SECOND_MIN:
            yield "answer_bytes_per_second_max", f"0 for no limit, or at least {BYTES_PER_SECOND_MIN:,}"
        if not 0 <= self.anti_entropy_hours < float("inf"):
            yield "anti_entropy_hours", "must be the hours between two comparisons, or 0 for none"
        if not (self.exports or self.pulls or self.appends or self.asks):
            why = "nothing is exchanged with this peer; name streams in exports, pulls or appends, or remove it"
            yield "zone", f"{why} (asks = true if only commands of this node ask it)"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """[health]: where /healthz and /metrics are served. Port 0 takes any free one, so that several nodes of a machine
    need no agreement; the node logs it, and commands find it in the state folder."""

    listen_host: str = "127.0.0.1"
    listen_port: int = 0

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.listen_host:
            yield "listen_host", "must not be empty; 0.0.0.0 listens on all interfaces, without authentication"
        if not 0 <= self.listen_port <= 65_535:
            yield "listen_port", "a TCP port is 0 to 65535"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All of node.toml. Relative paths have been resolved against the folder of the file."""

    node: IdentitySettings
    store: StoreSettings = field(default_factory=StoreSettings)
    stream: tuple[StreamSettings, ...] = ()
    broker: tuple[BrokerSettings, ...] = ()
    peer: tuple[PeerSettings, ...] = ()
    signing: SigningSettings = field(default_factory=SigningSettings)
    origin: tuple[OriginSettings, ...] = ()
    opcua: tuple[OpcuaSourceSettings, ...] = ()
    modbus: tuple[ModbusSourceSettings, ...] = ()
    health: HealthSettings = field(default_factory=HealthSettings)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Broken rules that concern several sections."""
        brokers = {broker.name for broker in self.broker}
        for index, peer in enumerate(self.peer):
            if peer.broker not in brokers:
                yield f"peer[{index}].broker", f"no [[broker]] is named {peer.broker!r}; named are {sorted(brokers)}"
            if peer.zone == self.node.zone:
                yield f"peer[{index}].zone", "this is our own zone; a node is not its own peer"
            if self.node.zone in peer.relays:
                yield f"peer[{index}].relays", "our own facts are never taken back from a peer; remove our zone"
        for index, origin in enumerate(self.origin):
            if origin.zone == self.node.zone and origin.signatures != "if_present":
                yield f"origin[{index}].signatures", "this is our own zone, whose facts are signed here; see [signing]"
            elif origin.signatures == "required" and not origin.pinned and self.signing.facts_ca_file is None:
                why = "nothing could be accepted: name signing.facts_ca_file, or pin the zone's certificate"
                yield f"origin[{index}].signatures", why
        yield from _twice([(f"origin[{i}].zone", o.zone) for i, o in enumerate(self.origin)])
        kept_here = {stream.name for stream in self.stream if stream.write_class == "local"}
        for index, peer in enumerate(self.peer):
            if leaving := sorted(kept_here.intersection(peer.exports)):
                yield f"peer[{index}].exports", f"{leaving[0]!r} has write_class local: its facts never leave this node"
        yield from _twice([(f"stream[{i}].name", s.name) for i, s in enumerate(self.stream)])
        named = [(f"broker[{i}].name", b.name) for i, b in enumerate(self.broker)]
        yield from _twice(named)
        yield from _twice([(f"peer[{i}].zone", p.zone) for i, p in enumerate(self.peer)])
        sources = [(f"opcua[{i}].name", s.name) for i, s in enumerate(self.opcua)]
        yield from _twice(sources + [(f"modbus[{i}].name", s.name) for i, s in enumerate(self.modbus)])

    @property
    def sources(self) -> tuple[SourceSettings, ...]:
        """The sources of all protocols."""
        return (*self.opcua, *self.modbus)


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of a node.toml that are good by themselves, whatever is wrong with the others; `settings` only if
    there is no problem at all."""

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
    """A node.toml that a process reads again, and what it held when it was last read and taken."""

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
        """Whether the file holds something else than was read."""
        return self._present_digest() != self._digest

    def _present_digest(self) -> bytes:
        try:
            return hashlib.blake2b(self.file.read_bytes()).digest()
        except OSError:
            return b""


def load_sections(file: Path) -> Sections:
    """What of `file` can be used, and every problem of the rest. Raises ConfigError for a file that is no TOML."""
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
        # The likeliest reason by far: printed lines were pasted at the end, and `bsfg init` wrote their section
        # already.
        hint = "; move the lines into the section that is there already" if "twice" in str(error) else ""
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
        file = reader.folder / device if device.endswith(".toml") else reader.folder / DEVICES_FOLDER / f"{device}.toml"
        profile = _read_profile(reader, file, f"modbus[{index}].device", device)
        defaults = {} if profile is None else profile.defaults()
        merged.append({**defaults, **source})
        for name in defaults.keys() - source.keys():
            reader.places[f"modbus[{index}].{name}"] = f"{file}: {name}"
    return {**table, "modbus": merged}


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
    """A device profile; None if it cannot be used, which is told."""
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
    if profile is _WRONG:  # go on with what is right: a wrong key must not make others seem to be missing
        wrong = {one.path for one in of_profile.problems}
        right = {"description": "", **{name: value for name, value in found.items() if name not in wrong}}
        profile = _Reader(file.parent).table(DeviceProfile, right, "")
    return profile


def _twice(named: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for path, name in named:
        if name in seen:
            yield path, f"{name!r} is also {seen[name]}; names must differ"
        seen.setdefault(name, path)


class _Reader:
    """Reads tables by the fields of dataclasses, and collects the problems."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self.places: dict[str, str] = {}  # where a value stands that is not in node.toml, by its path there

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
