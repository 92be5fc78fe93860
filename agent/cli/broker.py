"""`bsfg broker`: the folder that Mosquitto starts from, and checks of a running broker.

`config` keeps the links in broker.toml and writes configuration, access list and packet filter rules of each broker
process. `reload` checks these files and makes running brokers read them. `deny` takes all rights from a zone. `check`
connects with a zone's identity and tries what must work and what must be refused.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import click

from agent.cli import json_option
from agent.cli.pki.options import broker_pki_option, pki_option
from agent.replication.broker import (
    CONFIG_NAME,
    PORT,
    USER,
    BrokerSite,
    Diagnostic,
    PeerLink,
    Process,
    TopologyError,
    parse_link,
    rights_of,
)
from agent.replication.protocol.topics import is_zone


class _LinkType(click.ParamType[PeerLink]):
    """A link `SERVING:ASKING`, in the order of the topics."""

    name = "SERVING:ASKING"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> PeerLink:
        try:
            return parse_link(value)
        except TopologyError as error:
            self.fail(str(error), param, ctx)


_config_file_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
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
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", help="The broker, as in: bsfg pki issue --broker NAME. Needed once.")
@click.option("--link", "links", type=_LinkType(), multiple=True, help=_HELP)
@click.option("--remove-link", "removed", type=_LinkType(), multiple=True, help="A link to remove; repeatable.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of new links; by default the first free one from 8883. Pairs of zones on one port share a process.",
)
@click.option(
    "--source", "sources", multiple=True, help="With --link: network from which its zones connect; repeatable."
)
@click.option("--host", help="Address to listen on; by default all.")
@click.option("--user", help=f"The user the broker runs as; by default {USER}.")
@click.option("--installed-in", help="Path of FOLDER on the broker's machine, if it is another.")
@click.option("--dry-run", is_flag=True, help="Show what would change and write nothing.")
@broker_pki_option
@json_option
def config(
    folder: Path,
    name: str | None,
    links: tuple[PeerLink, ...],
    removed: tuple[PeerLink, ...],
    port: int | None,
    sources: tuple[str, ...],
    host: str | None,
    user: str | None,
    installed_in: str | None,
    pki_folder: Path,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write to FOLDER everything that Mosquitto needs for the links in FOLDER/broker.toml.

    --link adds links, --remove-link removes them; other links stay. Without options, all files are written again from
    broker.toml and the present certificates. The changes are printed first. If anything is wrong, nothing is written.
    """
    from agent.replication.broker import changes, read_site_file, write_site

    before = read_site_file(folder)
    site = before or BrokerSite(name or "")
    site = replace(
        site,
        broker=name or site.broker,
        host=site.host if host is None else host,
        user=user or site.user,
        folder=site.folder if installed_in is None else installed_in,
    )
    if not is_zone(site.broker):
        raise click.UsageError(f"--name {site.broker!r}: a name is 1 to 32 of a-z, 0-9 and -")
    site = _with_changes(site, links, removed, port or 0, sources)
    if not site.processes:
        raise click.UsageError("no links; name at least one with --link SERVING:ASKING")
    differences = list(changes(before, site))
    if not as_json:
        for line in differences or ["no change of links, ports or limits"]:
            click.echo(line)
    if not dry_run:
        write_site(folder, pki_folder, before, site)
    if as_json:
        processes = [_process_json(each) for each in site.processes]
        click.echo(json.dumps({"folder": str(folder), "changes": differences, "processes": processes}))
    elif not dry_run:
        _print_next(folder, before, site)


def _with_changes(
    site: BrokerSite, links: Iterable[PeerLink], removed: Iterable[PeerLink], port: int, sources: tuple[str, ...]
) -> BrokerSite:
    """The site with these links added and removed, and these sources added to the processes of the added ones."""
    from agent.replication.broker import parse_sources, with_link, without_link

    for link in removed:
        site = without_link(site, link)
    for link in links:
        site = with_link(site, link, port)
    if sources:
        chosen = set(links)
        found = parse_sources(sources)
        processes = [
            replace(each, sources=tuple(dict.fromkeys((*each.sources, *found)))) if chosen & set(each.links) else each
            for each in site.processes
        ]
        site = replace(site, processes=tuple(processes))
    return site


def _process_json(process: Process) -> dict[str, object]:
    rights = {zone: rights_of(process.links, zone) for zone in process.zones}
    zones = {zone: {"write": each.write, "read": each.read} for zone, each in rights.items()}
    return {"name": process.name, "port": process.port, "sources": process.sources, "zones": zones}


def _print_next(folder: Path, before: BrokerSite | None, site: BrokerSite) -> None:
    """Which zone connects where, and what to do with the files."""
    start = site.folder or str(folder.resolve())
    for each in site.processes:
        click.echo(f"{' and '.join(each.zones)}: port {each.port}, mosquitto -c {start}/{each.name}/{CONFIG_NAME}")
    old = {each.name: each for each in before.processes} if before is not None else {}
    new = {each.name: each for each in site.processes}
    verbs = [("disable --now", name) for name in old if name not in new]
    for name, each in new.items():
        if name not in old:
            verbs.append(("enable --now", name))
        elif (old[name].port, old[name].connections, old[name].zones) != (each.port, each.connections, each.zones):
            verbs.append(("restart", name))
        elif old[name] != each:
            verbs.append(("reload", name))
    click.echo(
        f"next: cp -r {start}/systemd/* /etc/systemd/system/; systemctl daemon-reload; nft -f {start}/firewall.nft"
    )
    for verb, name in verbs:
        click.echo(f"      systemctl {verb} bsfg-broker@{name}")
    click.echo("      then, as each zone: bsfg broker check --zone ZONE --port PORT --link SERVING:ASKING")


@broker.command(name="reload")
@_config_file_option
@_pid_option
@json_option
def reload_command(config_file: Path, pid: int | None, as_json: bool) -> None:
    """Make running brokers read their certificates, revocation list and access list again.

    The files are checked first. If one is wrong, no signal is sent and the broker keeps what it has.
    """
    _print(_reloads(config_file, pid), as_json=as_json)


@broker.command()
@click.argument("zones", nargs=-1, required=True, metavar="ZONE...")
@_config_file_option
@_pid_option
@json_option
def deny(zones: tuple[str, ...], config_file: Path, pid: int | None, as_json: bool) -> None:
    """Take all rights from zones at once, also from connected ones. Other zones are not disturbed.

    Their certificates stay valid until they are revoked (bsfg pki revoke). The next bsfg broker config restores their
    rights, unless their links are left out.
    """
    from agent.replication.broker import config_files, deny_zones

    if bad := [zone for zone in zones if not is_zone(zone)]:
        raise click.UsageError(f"{', '.join(map(repr, bad))}: a zone is 1 to 32 of a-z, 0-9 and -")
    for file in config_files(config_file):
        acl_file = deny_zones(file, zones)
        if not as_json:
            click.echo(f"{acl_file}: no rights for {', '.join(zones)}")
    _print(_reloads(config_file, pid), as_json=as_json)


def _reloads(config_file: Path, pid: int | None) -> Iterator[Diagnostic]:
    """Reload each broker that the file or folder configures."""
    from agent.replication.broker import config_files, reload_broker

    files = config_files(config_file)
    if pid is not None and len(files) > 1:
        raise click.UsageError(
            f"--pid names one broker, and {config_file} configures {len(files)}: name one mosquitto.conf"
        )
    return chain.from_iterable(reload_broker(file, pid, time.sleep) for file in files)


@broker.command()
@click.option("--zone", help="The zone whose identity is used; without it only the files are checked.")
@click.option(
    "--files",
    "config_file",
    type=click.Path(path_type=Path),
    help="Also check what a reload would read: the folder of this machine's brokers, or one mosquitto.conf.",
)
@click.option("--link", "links", type=_LinkType(), multiple=True, help=_HELP + " Links of other zones are ignored.")
@click.option("--host", default="localhost", show_default=True, help="Host of the broker.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port of the broker.")
@click.option("--ca", "ca_file", type=click.Path(path_type=Path), help="CA certificate; by default ca.pem in --pki.")
@click.option(
    "--cert", "cert_file", type=click.Path(path_type=Path), help="Certificate; by default the zone's in --pki."
)
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Key; by default the zone's in --pki.")
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
    from agent.replication.broker import BrokerTarget, check_broker, check_broker_files, check_program, config_files

    if zone is None and config_file is None:
        raise click.UsageError("give --zone to test a running broker, --files to check its files, or both")
    diagnostics: list[Iterator[Diagnostic]] = []
    if config_file is not None:
        diagnostics += [check_broker_files(file) for file in config_files(config_file)]
        diagnostics.append(check_program())
    if zone is None:
        _print(chain.from_iterable(diagnostics), as_json=as_json)
        return
    if not is_zone(zone):
        raise click.UsageError(f"--zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
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
            click.echo(
                json.dumps({"outcome": diagnostic.outcome.value, "what": diagnostic.what, "hint": diagnostic.hint})
            )
        else:
            hint = f"\n      -> {diagnostic.hint}" if diagnostic.hint else ""
            click.echo(f"{diagnostic.outcome.value:<5} {diagnostic.what}{hint}")
    if bad:
        sys.exit(1)
