"""`bsfg broker`: the folder that a Mosquitto broker starts from, and checks of a running broker.

`config` writes the configuration, access list and certificates for a set of links. `reload` checks these files and
makes a running broker read them. `deny` takes all rights from a zone. `check` connects with a zone's identity and tries
what must work and what must be refused.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import click

from agent.cli import json_option
from agent.cli.pki.options import pki_option
from agent.replication.broker import (
    CONFIG_NAME,
    PORT,
    USER,
    BrokerPlan,
    Diagnostic,
    PeerLink,
    TopologyError,
    parse_link,
    rights_of,
    zones_of,
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
    default=Path("/etc/mosquitto/bsfg/mosquitto.conf"),
    show_default=True,
    help="The broker's configuration, as bsfg broker config wrote it.",
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
@click.option("--name", required=True, help="The broker, as in: bsfg pki issue --broker NAME.")
@click.option("--link", "links", type=_LinkType(), multiple=True, required=True, help=_HELP)
@click.option("--host", default="", help="Address to listen on; by default all.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option("--user", default=USER, show_default=True, help="The user the broker runs as.")
@click.option("--installed-in", default="", help="Path of FOLDER on the broker's machine, if it is another.")
@pki_option
@json_option
def config(
    folder: Path,
    name: str,
    links: tuple[PeerLink, ...],
    host: str,
    port: int,
    user: str,
    installed_in: str,
    pki_folder: Path,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Write to FOLDER everything that Mosquitto needs. If anything is wrong, nothing is written."""
    from agent.replication.broker import write_broker_folder

    if not is_zone(name):
        raise click.UsageError(f"--name {name!r}: a name is 1 to 32 of a-z, 0-9 and -")
    wanted = BrokerPlan(links=links, folder=installed_in, host=host, port=port, user=user)
    files = write_broker_folder(folder, pki_folder, name, wanted)
    if as_json:
        rights = {zone: rights_of(links, zone) for zone in zones_of(links)}
        zones = {zone: {"write": each.write, "read": each.read} for zone, each in rights.items()}
        click.echo(json.dumps({"config_file": str(files.config_file), "port": port, "zones": zones}))
        return
    click.echo(f"{files.folder}: a broker for {', '.join(zones_of(links))} on port {port}")
    start = Path(installed_in or folder.resolve()) / CONFIG_NAME
    click.echo(
        f"next: mosquitto -c {start} (a running one: bsfg broker reload --config {start}), then bsfg broker check"
    )


@broker.command(name="reload")
@_config_file_option
@_pid_option
@json_option
def reload_command(config_file: Path, pid: int | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Make a running broker read its certificates, revocation list and access list again.

    The files are checked first. If one is wrong, no signal is sent and the broker keeps what it has.
    """
    from agent.replication.broker import reload_broker

    _print(reload_broker(config_file, pid, time.sleep), as_json=as_json)


@broker.command()
@click.argument("zones", nargs=-1, required=True, metavar="ZONE...")
@_config_file_option
@_pid_option
@json_option
def deny(zones: tuple[str, ...], config_file: Path, pid: int | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Take all rights from zones at once, also from connected ones. Other zones are not disturbed.

    Their certificates stay valid until they are revoked (bsfg pki revoke). The next bsfg broker config restores their
    rights, unless their links are left out.
    """
    from agent.replication.broker import deny_zones, reload_broker

    if bad := [zone for zone in zones if not is_zone(zone)]:
        raise click.UsageError(f"{', '.join(map(repr, bad))}: a zone is 1 to 32 of a-z, 0-9 and -")
    acl_file = deny_zones(config_file, zones)
    if not as_json:
        click.echo(f"{acl_file}: no rights for {', '.join(zones)}")
    _print(reload_broker(config_file, pid, time.sleep), as_json=as_json)


@broker.command()
@click.option("--zone", help="The zone whose identity is used; without it only the files are checked.")
@click.option(
    "--files",
    "config_file",
    type=click.Path(path_type=Path),
    help="Also check what a reload would read: the mosquitto.conf of a broker on this machine.",
)
@click.option("--link", "links", type=_LinkType(), multiple=True, help=_HELP + " Links of other zones are ignored.")
@click.option("--host", default="localhost", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option("--ca", "ca_file", type=click.Path(path_type=Path), help="By default ca.pem of the authority's folder.")
@click.option("--cert", "cert_file", type=click.Path(path_type=Path), help="By default the zone's in that folder.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="By default the zone's in that folder.")
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
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Check a running broker as ZONE: handshake, limits, each right of its links, and what it must refuse."""
    from agent.replication.broker import BrokerTarget, check_broker, check_broker_files

    if zone is None and config_file is None:
        raise click.UsageError("give --zone to test a running broker, --files to check its files, or both")
    diagnostics: list[Iterator[Diagnostic]] = []
    if config_file is not None:
        diagnostics.append(check_broker_files(config_file))
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
