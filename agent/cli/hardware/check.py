"""`bsfg hardware check`: the properties of this gateway, the capacity and lifetime of its disk, and the calculations;
or those of another gateway from its profile.

Profiles come with the program; `bsfg hardware list` names them.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import click

from agent.cli import WRITABLE_FOLDER, NumberRange, json_option, print_json, writing
from agent.errors import BsfgError
from agent.hardware.fit import Disk, Fit, Load, assess
from agent.hardware.machine import Machine, MeasuredDisk, measure_disk, read_machine
from agent.hardware.profile import ARCHITECTURES, Profile, ProfileError, choose, parse_profile, parse_profiles

_POSITIVE = NumberRange(min=0, min_open=True)


class UnknownProfile(BsfgError):
    """No profile of this name comes with the program."""

    hint = "`bsfg hardware list` names them; a path to a file of your own works too"


@click.command("list")
def list_() -> None:
    """List the gateway profiles that come with the program."""
    for profile in shipped_profiles():
        click.echo(f"{profile.name:26}{profile.title}")


@click.command()
@click.argument("profile", required=False)
@click.option(
    "--facts-per-s", type=_POSITIVE, default=Load.facts_per_s, show_default=True, help="Load, in facts a second."
)
@click.option(
    "--bytes-per-fact",
    type=_POSITIVE,
    default=Load.bytes_per_fact,
    show_default=True,
    help="Bytes of a stored fact; `bsfg store stats` shows those of a node.",
)
@click.option(
    "--commit-interval-ms",
    type=_POSITIVE,
    default=Load.commit_interval_ms,
    show_default=True,
    help="The setting of node.toml.",
)
@click.option("--erase-cycles", type=click.IntRange(min=1), help="Erase cycles of the flash, from its data sheet.")
@click.option("--write-amplification", type=NumberRange(min=1), help="Bytes worn per byte written.")
@click.option(
    "--folder",
    type=WRITABLE_FOLDER,
    help="Measure the disk that this folder is on.  [default: /var/lib/bsfg if it may be written, else the current folder]",
)
@json_option
def check(
    profile: str | None,
    facts_per_s: float,
    bytes_per_fact: float,
    commit_interval_ms: float,
    erase_cycles: int | None,
    write_amplification: float | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Print how many hours of facts fit and how long the flash lasts, with the calculations. Without PROFILE, this
    machine is measured (64 MB are written and deleted) and its profile chosen. With PROFILE, a name or a file, the
    figures are for another gateway. Exit status 1 when there is a concern."""
    machine = measured = None
    if profile is None:
        state = Path("/var/lib/bsfg")
        usual = state if os.access(state, os.W_OK) else Path()
        with writing(folder or usual):
            machine, measured = read_machine(), measure_disk(folder or usual)
        found = choose(shipped_profiles(), machine.architecture, machine.device_tree, machine.dmi)
    else:
        found = _named(profile)
    disk = _disk(found, measured, erase_cycles, write_amplification)
    fit = assess(disk, Load(facts_per_s, bytes_per_fact, commit_interval_ms))
    concerns = (*_machine_concerns(found, machine), *fit.concerns)
    if as_json:
        records = {"machine": machine, "disk": measured}
        plain = {name: record and dataclasses.asdict(record) for name, record in records.items()}
        judged = dataclasses.asdict(dataclasses.replace(fit, concerns=concerns))
        print_json({"profile": found and found.name, **plain, **judged})
    else:
        for line in _lines(found, machine, measured, fit, facts_per_s):
            click.echo(line)
        for concern in concerns:
            click.echo(f"  ! {concern}")
        for note in _notes(found, machine):
            click.echo(f"  note: {note}")
    sys.exit(1 if concerns else 0)


def shipped_profiles() -> list[Profile]:
    """The profiles that come with the program, by name."""
    return parse_profiles(resources.files("agent.hardware").joinpath("profiles.toml").read_text(encoding="utf-8"))


def _named(name: str) -> Profile:
    """A profile by its name, or from a file."""
    for profile in shipped_profiles():
        if profile.name == name:
            return profile
    try:
        return parse_profile(Path(name).read_text(encoding="utf-8"), name)
    except UnicodeDecodeError as error:
        raise ProfileError(f"{name}: is not UTF-8") from error
    except OSError as error:
        raise UnknownProfile(f"no gateway profile is called {name}") from error


def _disk(
    profile: Profile | None, measured: MeasuredDisk | None, erase_cycles: int | None, write_amplification: float | None
) -> Disk:
    """The measured figures, and from the profile those that cannot be measured."""
    known = profile or Profile("", "", "amd64")
    capacity = (measured or known).capacity_bytes
    free = None if capacity is None else capacity - (known.system_bytes or 0)
    return Disk(
        capacity_bytes=capacity,
        free_bytes=measured.free_bytes if measured else free,
        filesystem_bytes=measured.filesystem_bytes if measured else None,
        erase_cycles=erase_cycles or known.erase_cycles,
        write_amplification=write_amplification or known.write_amplification,
        sync_p99_ms=(measured or known).sync_p99_ms,
        wears=known.kind != "virtual",
    )


def _lines(
    profile: Profile | None, machine: Machine | None, measured: MeasuredDisk | None, fit: Fit, facts_per_s: float
) -> Iterator[str]:
    title = profile.title if profile else "a machine that no profile describes"
    yield f"{title} at {facts_per_s:g} facts/s:"
    if machine:
        yield f"  {machine.architecture}, {machine.cpu_cores} cores, {machine.memory_bytes / 1e9:,.1f} GB of memory"
        synchronised = "synchronised" if machine.clock_synchronised else "not synchronised"
        clock = "a real-time clock" if machine.has_real_time_clock else "no real-time clock"
        yield f"  clock: {machine.clock_source or 'unknown source'}, {synchronised}, {clock}"
        yield f"  serial ports: {', '.join(machine.serial_ports) or 'none'}"
        yield f"  hardware watchdog: {', '.join(machine.watchdogs) or 'none'}"
    if measured:
        yield (
            f"  disk {measured.device or '(no device)'}: fdatasync {measured.sync_p50_ms:g} ms, "
            f"1 in 100 takes {measured.sync_p99_ms:g} ms; {measured.write_mb_per_s:g} MB/s in one piece"
        )
        if measured.life_time:
            yield f"  the eMMC's own life-time register: {measured.life_time} (0x01: up to 10 % used)"
    for line in fit.sums:
        yield f"  {line}"
    if fit.facts_per_s_max:
        yield f"  the disk sustains {fit.facts_per_s_max:,.0f} facts/s for a day of outage and ten years"
    elif fit.facts_per_s_max == 0:
        yield "  the disk sustains no rate for ten years: the commits alone wear it out"


def _machine_concerns(profile: Profile | None, machine: Machine | None) -> Iterator[str]:
    architecture = machine.architecture if machine else profile.architecture if profile else ""
    if architecture not in ARCHITECTURES:
        yield f"there is no package for {architecture}; bsfg runs on {' and '.join(ARCHITECTURES)}"
    if machine and not machine.has_entropy:
        yield "the kernel has no random bytes yet: no key can be made; wait, or install rng-tools-debian"


def _notes(profile: Profile | None, machine: Machine | None) -> Iterator[str]:
    if profile and profile.kind != "virtual" and not profile.power_loss_protected:
        yield "a power cut may undo writes that the disk has reported as synced: power the gateway from a buffered supply"
    clock = profile.real_time_clock if profile else None
    if clock == "none" or (machine and not machine.has_real_time_clock):
        yield "no battery clock: certificates are refused until the time is set; use a time server or fake-hwclock"
    if machine and not machine.clock_synchronised:
        yield "the clock is not synchronised: the times of facts have its error; name a time server, `timedatectl` shows the state"
    if not machine.watchdogs if machine else profile and profile.watchdog_s_max is None:
        yield "no hardware watchdog: nothing restarts a gateway whose kernel hangs"
    elif profile and profile.watchdog_s_max:
        yield f"RuntimeWatchdogSec in /etc/systemd/system.conf: {profile.watchdog_s_max:g} s at most"
