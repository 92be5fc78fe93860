"""Core: whether a gateway's storage bears a load, from the gateway's profile and what the node's configuration will
write.

A profile (hardware/*.toml) describes a class of gateway. The answer is in units an engineer decides by: hours of facts
that fit, years that the flash lasts, and whether the disk can sync often enough. It is an estimate from measurements of
the store's log.

    ProfileError            a profile cannot be used; the text lists every problem (its author corrects them)
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from agent.errors import BsfgError
from agent.health.flash import SECONDS_PER_DAY, commits_per_s, flash_years, written_bytes_per_s

HOURS_WANTED = 24.0  # the specification: survive an enterprise outage of a day and more
YEARS_WANTED = 10.0  # a gateway's service life in a cabinet
SYNC_SHARE_MAX = 0.5  # of the time between two commits; above it the log runs after the sources


class ProfileError(BsfgError):
    """A gateway profile breaks the rules of hardware/README.md."""

    hint = "hardware/README.md lists every key with its unit"


@dataclass(frozen=True, slots=True)
class Gateway:
    """[gateway]: what it is."""

    name: str
    title: str
    architecture: str
    cpu_cores: int
    memory_bytes: int
    real_time_clock: str  # "battery", "none" or "capacitor": decides what the clock says after a cold start


@dataclass(frozen=True, slots=True)
class Storage:
    """[storage]: the disk that holds /var/lib/bsfg."""

    kind: str
    device: str
    capacity_bytes: int
    system_bytes: int  # taken by the operating system and others
    free_floor_percent: float  # never used: a full disk cannot even delete
    erase_cycles: int
    write_amplification: float  # bytes worn per byte written, inside the device
    sync_p50_ms: float
    sync_p99_ms: float
    power_loss_protected: bool


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
    speed_mbit_s: int
    zone: str


@dataclass(frozen=True, slots=True)
class Watchdog:
    """[watchdog]: the hardware watchdog that systemd's RuntimeWatchdogSec can feed."""

    device: str
    timeout_s_max: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One gateway class. `figures_from` has the source of each number."""

    gateway: Gateway
    storage: Storage
    figures_from: MappingProxyType[str, str]
    serial_port: tuple[SerialPort, ...] = ()
    network_port: tuple[NetworkPort, ...] = ()
    watchdog: Watchdog | None = None


@dataclass(frozen=True)  # without slots, so that a command line can name its defaults
class Load:
    """What a node will write: facts after report by exception, their size in a batch, and the time between commits."""

    facts_per_s: float
    bytes_per_fact: float = 9.0  # the limit at rest in batches of 1000 noisy floats
    commit_interval_ms: float = 250.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer, with the figures it rests on. `concerns` is empty when the load fits; `advice` is about the gateway
    whatever the load."""

    hours_that_fit: float
    flash_years: float
    bytes_stored_per_day: float
    bytes_written_per_day: float
    sync_share: float
    concerns: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def assess(profile: Profile, load: Load) -> Fit:
    """Whether and how the load fits the gateway."""
    assert load.facts_per_s > 0, "a load without facts wears nothing"
    assert load.bytes_per_fact > 0
    assert load.commit_interval_ms > 0
    disk = profile.storage
    usable = disk.capacity_bytes * (1 - disk.free_floor_percent / 100) - disk.system_bytes
    stored_per_s = load.facts_per_s * load.bytes_per_fact
    commits = commits_per_s(load.facts_per_s, load.commit_interval_ms)
    written_per_s = written_bytes_per_s(commits, stored_per_s)
    fit = Fit(
        hours_that_fit=usable / stored_per_s / 3600,
        flash_years=flash_years(written_per_s, disk.capacity_bytes, disk.erase_cycles, disk.write_amplification),
        bytes_stored_per_day=stored_per_s * SECONDS_PER_DAY,
        bytes_written_per_day=written_per_s * SECONDS_PER_DAY,
        sync_share=disk.sync_p99_ms / (1000 / commits),
        advice=tuple(_advice(profile)),
    )
    return replace(fit, concerns=tuple(_concerns(fit)))


def _concerns(fit: Fit) -> Iterator[str]:
    if fit.hours_that_fit < HOURS_WANTED:
        yield (
            f"{fit.hours_that_fit:.0f} h of facts fit, {HOURS_WANTED:.0f} h are wanted: "
            "use a deadband, a longer interval or a larger disk"
        )
    if fit.flash_years < YEARS_WANTED:
        yield f"the flash lasts {fit.flash_years:.1f} years, {YEARS_WANTED:.0f} are wanted: commit less often"
    if fit.sync_share > SYNC_SHARE_MAX:
        yield f"a slow sync takes {100 * fit.sync_share:.0f} % of the time between commits: commit less often"


def _advice(profile: Profile) -> Iterator[str]:
    if not profile.storage.power_loss_protected:
        yield "the disk may lie about a sync when power fails: feed the gateway from a buffered supply"
    if profile.gateway.real_time_clock == "none":
        yield "no battery clock: certificates are refused until the time is set; use a time server or fake-hwclock"
    if profile.watchdog is None:
        yield "no hardware watchdog: a hung kernel stays hung"


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
_OPTIONAL = {field.name for field in fields(Profile) if field.default is not MISSING}


def _read(kind: Any, found: object, path: str, problems: list[str]) -> Any:
    """A value of the type of a field; what cannot be used is added to `problems`."""
    if found is MISSING:
        if path.partition(".")[0] not in _OPTIONAL:
            problems.append(f"{path}: is missing")
        return MISSING
    if kind == _KINDS["watchdog"]:
        kind = Watchdog
    if get_origin(kind) is MappingProxyType and isinstance(found, dict):
        return MappingProxyType({str(key): str(value) for key, value in found.items()})
    if get_origin(kind) is tuple and isinstance(found, list):
        return tuple(_read(get_args(kind)[0], one, f"{path}[{index}]", problems) for index, one in enumerate(found))
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(found, dict):
        return _read_record(kind, found, path, problems)
    if kind is float and type(found) is int:
        found = float(found)
    if type(found) is not kind or (isinstance(found, int | float) and found < 0) or found == "":
        problems.append(f"{path}: {found!r} cannot be used")
    return found


def _read_record(kind: type, found: dict[str, object], path: str, problems: list[str]) -> Any:
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    before = len(problems)
    problems += [f"{path}.{key}: is not known" for key in found.keys() - known.keys()]
    values = {}
    for name, field in known.items():
        if name in found:
            values[name] = _read(hints[name], found[name], f"{path}.{name}", problems)
        elif field.default is MISSING:
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
