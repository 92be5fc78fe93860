"""`bsfg broker`: the folder that Mosquitto starts from, and checks of a running broker.

`config` writes configuration, rights and certificates. `reload` checks these files and makes running brokers read the
certificates, `restart` the rights too. `deny` takes all rights from a node. `check` connects with a node's identity and
tries what must work and what must be refused. `sessions` says which zone uses the broker how much.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import click

from agent.cli import FILE, FOLDER, INPUT, PATH, NumberRange, json_option, print_json
from agent.cli.pki.options import broker_pki_option, pki_option
from agent.replication.broker import (
    PORT,
    USER,
    Diagnostic,
    PeerLink,
    TopologyError,
    nodes_of,
    parse_link,
)
from agent.replication.protocol.topics import is_node
from agent.settings.host import host_problem


class _LinkType(click.ParamType[PeerLink]):
    """A link `SERVING:ASKING`, in the order of the topics."""

    name = "SERVING:ASKING"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> PeerLink:
        try:
            return parse_link(value)
        except TopologyError as error:
            self.fail(str(error), param, ctx)


def _host(_: click.Context, __: click.Parameter, host: str | None) -> str | None:
    if host is not None and (why := host_problem(host)):
        raise click.BadParameter(f"{host!r} {why}")
    return host


_config_file_option = click.option(
    "--config",
    "config_file",
    type=PATH,
    default=Path("/etc/mosquitto/bsfg"),
    show_default=True,
    help="The folder that bsfg broker config wrote, for all its brokers, or the mosquitto.conf of one.",
)
_pid_option = click.option(
    "--pid", type=click.IntRange(1), help="The broker's process; by default the one that runs with this file."
)
_HELP = "ASKING pulls facts from SERVING or appends there; repeatable, one link for each direction."


@click.group()
def broker() -> None:
    """Configure Mosquitto for this site and check that it runs as configured."""


@broker.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--name", help="The broker's certificate, as in: bsfg pki issue --broker NAME. By default the folder's name."
)
@click.option("--link", "links", type=_LinkType(), multiple=True, help=_HELP)
@click.option("--remove-link", "removed", type=_LinkType(), multiple=True, help="A link to remove; repeatable.")
@click.option("--port", type=click.IntRange(1, 65535), help=f"Port of a new broker; by default {PORT}.")
@click.option("--host", callback=_host, help="Address that a new broker listens on; by default all.")
@click.option("--user", help=f"The user that a new broker runs as; by default {USER}.")
@broker_pki_option
@json_option
def config(
    folder: Path,
    name: str | None,
    links: tuple[PeerLink, ...],
    removed: tuple[PeerLink, ...],
    port: int | None,
    host: str | None,
    user: str | None,
    pki_folder: Path,
    as_json: bool,
) -> None:
    """Write to FOLDER everything that Mosquitto needs to connect the nodes of a site, by their names.

    --link adds links, --remove-link removes them; other links stay. Without options, rights and certificates are
    written again. A denied node stays denied until --link names it. mosquitto.conf is written once and then yours. The
    changes are printed first. If anything is wrong, nothing is written.
    """
    from agent.replication.broker import BrokerFolder, BrokerPlan, find_plugin, write_broker

    files = BrokerFolder(folder)
    before, denied = files.rights()
    if missing := sorted(set(removed) - set(before)):
        raise TopologyError(f"{', '.join(map(str, missing))}: not among the links of {files.rights_file}")
    after = sorted({*before, *links} - set(removed))
    if not after:
        raise click.UsageError("no links; name at least one with --link SERVING:ASKING")
    changes = [f"- link {link}" for link in before if link not in after]
    changes += [f"+ link {link}" for link in after if link not in before]
    still_denied = set(denied) & set(nodes_of(after)) - set(nodes_of(links))
    changes += [f"+ rights of {zone}, which was denied" for zone in sorted(set(denied) & set(nodes_of(links)))]
    if not as_json:
        for line in changes or ["no change of links"]:
            click.echo(line)
        if still_denied:
            click.echo(f"without rights until one of their links is named again: {', '.join(sorted(still_denied))}")
    settings = files.settings()
    listener, _, address = settings.get("listener", "").partition(" ")
    for option, value, there in (
        ("port", port, listener),
        ("host", host, address),
        ("user", user, settings.get("user")),
    ):
        if settings and value is not None and str(value) != there:
            raise click.UsageError(
                f"--{option} {value}: {files.config_file} exists and says {there!r}; change it there"
            )
    plan = None
    if not settings:
        plan = BrokerPlan(str(folder.resolve()), find_plugin(), host or "", port or PORT, user or USER)
    write_broker(folder, pki_folder, name or folder.resolve().name, after, plan, still_denied)
    if as_json:
        found = {"folder": str(folder), "changes": changes, "links": [str(link) for link in after]}
        found["denied"] = sorted(still_denied)
        print_json(found)
    else:
        verb = "restart" if settings else "enable --now"
        click.echo(f"next: systemctl {verb} bsfg-broker@{folder.resolve().name}")
        click.echo("      then, as each zone: bsfg broker check --zone ZONE --link SERVING:ASKING")


@broker.command(name="reload")
@_config_file_option
@_pid_option
@json_option
def reload_command(config_file: Path, pid: int | None, as_json: bool) -> None:
    """Make running brokers read their certificates and revocation list again; connections stay.

    The files are checked first. If one is wrong, no signal is sent and the broker keeps what it has.
    """
    from agent.replication.broker import reload_broker

    files = _files(config_file, pid)
    _print(chain.from_iterable(reload_broker(file, pid, time.sleep) for file in files), as_json=as_json)


@broker.command()
@click.argument("zones", nargs=-1, required=True, metavar="NODE...")
@_config_file_option
@_pid_option
@json_option
def deny(zones: tuple[str, ...], config_file: Path, pid: int | None, as_json: bool) -> None:
    """Take all rights from nodes at once, and end their connections: the broker starts again.

    Other nodes reconnect within seconds and lose nothing. The certificates of the denied ones stay valid until they are
    revoked (bsfg pki revoke). Their rights return when bsfg broker config names one of their links with --link.
    """
    from agent.replication.broker import deny_nodes, end_broker

    if bad := [zone for zone in zones if not is_node(zone)]:
        raise click.UsageError(f"{', '.join(map(repr, bad))}: a node is 1 to 32 of a-z, 0-9 and -")
    files = _files(config_file, pid)
    for file in files:
        rights_file = deny_nodes(file, zones)
        if not as_json:
            click.echo(f"{rights_file}: no rights for {', '.join(zones)}")
    _print((end_broker(file, pid) for file in files), as_json=as_json)


@broker.command()
@_config_file_option
@_pid_option
@json_option
def restart(config_file: Path, pid: int | None, as_json: bool) -> None:
    """Check the files of running brokers and end them, so that their services start them with the present ones.

    Needed after a change of links, and to end the connections of a node whose certificate was revoked.
    """
    from agent.replication.broker import check_broker_files, end_broker

    def steps(file: Path) -> Iterator[Diagnostic]:
        found = list(check_broker_files(file))
        yield from found
        if not any(diagnosis.is_bad for diagnosis in found):
            yield end_broker(file, pid)

    _print(chain.from_iterable(steps(file) for file in _files(config_file, pid)), as_json=as_json)


def _files(config_file: Path, pid: int | None) -> list[Path]:
    """The configuration of each broker that the file or folder names."""
    from agent.replication.broker import config_files

    files = config_files(config_file)
    if pid is not None and len(files) > 1:
        raise click.UsageError(
            f"--pid names one broker, and {config_file} configures {len(files)}: name one mosquitto.conf"
        )
    return files


@broker.command()
@_config_file_option
@click.option("--log", "log_file", type=INPUT, help="The broker's log; by default the journal.")
@click.option("--seconds", type=NumberRange(0.1, 3600), default=5.0, show_default=True, help="How long to look.")
@click.option(
    "--watch",
    "watch_file",
    type=FILE,
    help="Look without end, and write to this file, for the nodes of this machine, which zones use too much.",
)
@json_option
def sessions(config_file: Path, log_file: Path | None, seconds: float, watch_file: Path | None, as_json: bool) -> None:
    """Show how many sessions each zone has at this machine's brokers, and how much it sends; the zone that sends most
    comes first.

    For a broker that is slow, or refuses connections: a certificate may open any number of sessions. Needs the broker's
    log from the time when the zones connected.
    """
    from agent.file_replace import write_file
    from agent.replication.broker import UNKNOWN, BrokerFolder, abuses, config_files, received_bytes, zone_loads

    files = config_files(config_file)
    listeners = [BrokerFolder(file.parent).settings().get("listener", str(PORT)) for file in files]
    ports = " or ".join(f"sport = :{listener.split()[0]}" for listener in listeners)

    def look() -> dict[str, int]:
        return received_bytes(_output("ss", "-Htni", "state", "established", f"( {ports} )"))

    zones = dict[str, str]()
    before, used_s = look(), _processor_s(files)
    while True:
        time.sleep(seconds)
        after, zones = look(), zones | _zones_by_address(log_file)
        now_s = _processor_s(files)
        found = zone_loads(zones, before, after, seconds)
        if watch_file is None:
            break
        cores = max((now_s[pid] - used_s.get(pid, 0.0) for pid in now_s), default=0.0) / seconds
        write_file(watch_file, json.dumps([abuse._asdict() for abuse in abuses(found, cores)]).encode(), 0o644)
        zones = {address: zone for address, zone in zones.items() if address in after}
        before, used_s = after, now_s
    if as_json:
        print_json([load._asdict() for load in found])
        return
    click.echo(f"{'zone':32} {'sessions':>8} {'kB/s':>10}")
    for zone, number, bytes_per_s in found:
        click.echo(f"{zone:32} {number:8} {bytes_per_s / 1000:10.1f}")
    if found and (zone := found[0].zone) != UNKNOWN:
        click.echo(f"if {zone} should not: bsfg broker deny {zone}, and at the authority bsfg pki revoke {zone}")


def _zones_by_address(log_file: Path | None) -> dict[str, str]:
    """By the log, of which the journal may have any amount."""
    from agent.replication.broker import zones_by_address

    if log_file is not None:
        return zones_by_address(log_file.read_text("utf-8", "replace").splitlines())
    journal = ("journalctl", "-u", "bsfg-broker@*", "-o", "cat", "-n", "100000")
    return zones_by_address(_output(*journal).splitlines())


def _processor_s(files: list[Path]) -> dict[int, float]:
    """The processor time of each broker, by its process."""
    from agent.replication.broker import find_brokers

    found = dict[int, float]()
    for pid in chain.from_iterable(map(find_brokers, files)):
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise click.ClickException(f"{command[0]} failed: {getattr(error, 'stderr', '') or error}") from error


@broker.command()
@click.option("--zone", help="The node whose identity is used; without it only the files are checked.")
@click.option(
    "--files",
    "config_file",
    type=PATH,
    help="Also check what a reload would read: the folder of this machine's brokers, or one mosquitto.conf.",
)
@click.option("--link", "links", type=_LinkType(), multiple=True, help=_HELP + " Links of other nodes are ignored.")
@click.option("--host", default="localhost", show_default=True, callback=_host, help="Host of the broker.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port of the broker.")
@click.option("--ca", "ca_file", type=PATH, help="CA certificate; by default ca.pem in --pki.")
@click.option("--cert", "cert_file", type=PATH, help="Certificate; by default the node's in --pki.")
@click.option("--key", "key_file", type=PATH, help="Key; by default the node's in --pki.")
@pki_option
@json_option
def check(
    zone: str | None,
    config_file: Path | None,
    links: tuple[PeerLink, ...],
    host: str,
    port: int,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    pki_folder: Path,
    as_json: bool,
) -> None:
    """Check a running broker as ZONE: handshake, limits, each right of its links, and what it must refuse."""
    from agent.replication.broker import BrokerTarget, check_broker, check_broker_files, config_files

    if zone is None and config_file is None:
        raise click.UsageError("give --zone to test a running broker, --files to check its files, or both")
    diagnostics: list[Iterator[Diagnostic]] = []
    if config_file is not None:
        diagnostics += [check_broker_files(file) for file in config_files(config_file)]
    if zone is None:
        _print(chain.from_iterable(diagnostics), as_json=as_json)
        return
    if not is_node(zone):
        raise click.UsageError(f"--zone {zone!r}: a node is 1 to 32 of a-z, 0-9 and -")
    access = BrokerTarget(
        host,
        port,
        zone,
        ca_file or pki_folder / "ca.pem",
        cert_file or pki_folder / "zones" / f"{zone}.pem",
        key_file or pki_folder / "zones" / f"{zone}.key",
    )
    diagnostics.append(check_broker(access, links))
    _print(chain.from_iterable(diagnostics), as_json=as_json)


def _print(diagnostics: Iterable[Diagnostic], *, as_json: bool) -> None:
    """Print each diagnostic as it is made; exit status 1 when one is bad."""
    bad = 0
    for diagnostic in diagnostics:
        bad += diagnostic.is_bad
        if as_json:
            print_json({"outcome": diagnostic.outcome.value, "what": diagnostic.what, "hint": diagnostic.hint})
        else:
            hint = f"\n      -> {diagnostic.hint}" if diagnostic.hint else ""
            click.echo(f"{diagnostic.outcome.value:<5} {diagnostic.what}{hint}")
    if bad:
        sys.exit(1)
