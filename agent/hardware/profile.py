"""Core: the profile of a class of gateways, read from its file, and the choice of the profile that fits a machine.

A profile (profiles/*.toml) holds what the maker publishes and a measurement does not show: how often a cell of the
flash can be erased, whether the clock has a battery. A figure without a source is left out, and calculations that need
it are skipped.

    ProfileError            a profile cannot be used; the text lists every problem (its author corrects them)
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from itertools import chain
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from agent.errors import BsfgError

ARCHITECTURES = ("amd64", "arm64")  # that packages are built for


class ProfileError(BsfgError):
    """A gateway profile breaks the rules of hardware/README.md."""

    hint = "hardware/README.md lists every key with its unit"


@dataclass(frozen=True, slots=True)
class Gateway:
    """[gateway]: what it is."""

    name: str
    title: str
    architecture: str
    cpu_cores: int | None = None
    memory_bytes: int | None = None
    real_time_clock: str | None = None  # "battery", "capacitor" or "none"


@dataclass(frozen=True, slots=True)
class Match:
    """[match]: how the machine names itself. `device_tree`: beginnings of `compatible` strings; `dmi`: beginnings of
    vendor or product; `otherwise`: for every machine of its architecture that no other profile names."""

    device_tree: tuple[str, ...] = ()
    dmi: tuple[str, ...] = ()
    otherwise: bool = False


@dataclass(frozen=True, slots=True)
class Storage:
    """[storage]: the disk that holds /var/lib/bsfg."""

    kind: str | None = None
    device: str | None = None
    capacity_bytes: int | None = None
    system_bytes: int | None = None  # taken by the operating system and others
    erase_cycles: int | None = None
    write_amplification: float | None = None  # bytes worn per byte written, inside the device
    sync_p50_ms: float | None = None
    sync_p99_ms: float | None = None
    power_loss_protected: bool = False


@dataclass(frozen=True, slots=True)
class SerialPort:
    """[[serial_port]]: a line for Modbus RTU."""

    name: str
    device: str
    modes: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class NetworkPort:
    """[[network_port]]: a jack, and the zone it is meant for."""

    name: str
    zone: str
    speed_mbit_s: int | None = None


@dataclass(frozen=True, slots=True)
class Watchdog:
    """[watchdog]: the hardware watchdog that systemd's RuntimeWatchdogSec can feed."""

    device: str
    timeout_s_max: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One gateway class. `figures_from` has the source of each number."""

    gateway: Gateway
    match: Match = Match()
    storage: Storage = Storage()
    figures_from: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))
    serial_port: tuple[SerialPort, ...] = ()
    network_port: tuple[NetworkPort, ...] = ()
    watchdog: Watchdog | None = None


def choose(
    profiles: Iterable[Profile], architecture: str, device_tree: Iterable[str], dmi: Iterable[str]
) -> Profile | None:
    """The profile of a machine with these identifiers; None for an architecture without a profile."""
    trees, names = tuple(device_tree), tuple(dmi)
    found = list(profiles)
    by_tree = (profile for profile in found if any(tree.startswith(profile.match.device_tree) for tree in trees))
    by_dmi = (profile for profile in found if any(name.startswith(profile.match.dmi) for name in names))
    others = (profile for profile in found if profile.match.otherwise and profile.gateway.architecture == architecture)
    return next(chain(by_tree, by_dmi, others), None)


def parse_profile(text: str, name: str = "profile") -> Profile:
    """A profile from the text of its file. Raises ProfileError with every problem found."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{name}: is not TOML: {error}") from error
    problems: list[str] = []
    given = {key: _read(kind, table.get(key, MISSING), key, problems) for key, kind in _KINDS.items()}
    problems += [f"{key}: is not a part of a profile" for key in table.keys() - _KINDS.keys()]
    problems += _unsourced(table)
    if problems:
        raise ProfileError(f"{name}: " + "; ".join(problems))
    return Profile(**{key: value for key, value in given.items() if value is not MISSING})


_KINDS: dict[str, Any] = get_type_hints(Profile)
_OPTIONAL = {part.name for part in fields(Profile)} - {"gateway"}


def _read(kind: Any, found: object, path: str, problems: list[str]) -> Any:
    """A value of the type of a field; what cannot be used is added to `problems`."""
    if found is MISSING:
        if path.partition(".")[0] not in _OPTIONAL:
            problems.append(f"{path}: is missing")
        return MISSING
    if get_origin(kind) is UnionType:
        (kind,) = set(get_args(kind)) - {type(None)}
    if get_origin(kind) is MappingProxyType and isinstance(found, dict):
        return MappingProxyType({str(key): str(value) for key, value in found.items()})
    if get_origin(kind) is tuple and isinstance(found, list):
        return tuple(_read(get_args(kind)[0], item, f"{path}[{index}]", problems) for index, item in enumerate(found))
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(found, dict):
        return _read_record(kind, found, path, problems)
    if kind is float and type(found) is int:
        found = float(found)
    if type(found) is not kind or (isinstance(found, int | float) and found < 0) or found == "":
        problems.append(f"{path}: {found!r} cannot be used")
    return found


def _read_record(kind: type, found: dict[str, object], path: str, problems: list[str]) -> Any:
    hints, known = get_type_hints(kind), {field_.name: field_ for field_ in fields(kind)}
    before = len(problems)
    problems += [f"{path}.{key}: is not known" for key in found.keys() - known.keys()]
    values = {}
    for name, field_ in known.items():
        if name in found:
            values[name] = _read(hints[name], found[name], f"{path}.{name}", problems)
        elif field_.default is MISSING:
            problems.append(f"{path}.{name}: is missing")
    return kind(**values) if len(problems) == before else MISSING


def _unsourced(table: dict[str, Any]) -> Iterator[str]:
    """Problems of `figures_from`: it must name the source of each number in the single tables, and nothing else."""
    numbers = {
        f"{part}.{key}"
        for part, found in table.items()
        if isinstance(found, dict) and part != "figures_from"
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    sourced = table.get("figures_from", {})
    sourced = set(sourced) if isinstance(sourced, dict) else set()
    yield from (f"figures_from: does not say where {key} comes from" for key in sorted(numbers - sourced))
    yield from (f"figures_from: {key} is not a number of this profile" for key in sorted(sourced - numbers))
