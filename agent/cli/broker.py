"""`bsfg broker`: the folder a Mosquitto starts from, and the proof that the running one does what it must.

`config` writes configuration, access list and certificates from who asks whom; `check` tries a running broker with one
zone's identity: what must work, and what must not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from agent.cli import json_option
from agent.cli.pki import pki_option
from agent.replication import broker as plan
from agent.replication.topics import is_zone


class _LinkType(click.ParamType[plan.PeerLink]):
    """`SERVING:ASKING`, as the topics have it."""

    name = "SERVING:ASKING"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> plan.PeerLink:
        try:
            return plan.parse_link(value)
        except plan.TopologyError as error:
            self.fail(str(error), param, ctx)


_HELP = "ASKING pulls facts from SERVING; repeatable, one for each direction."


@click.group()
def broker() -> None:
    """Configure Mosquitto for this site, and prove that it runs as configured."""


@broker.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", required=True, help="The broker, as in: bsfg pki issue --broker NAME.")
@click.option("--link", "links", type=_LinkType(), multiple=True, required=True, help=_HELP)
@click.option("--host", default="", help="Address to listen on; by default all.")
@click.option("--port", type=click.IntRange(1, 65535), default=plan.PORT, show_default=True)
@click.option("--user", default=plan.USER, show_default=True, help="The user the broker runs as.")
@click.option("--installed-in", default="", help="Where FOLDER will lie on the broker's machine, if elsewhere.")
@pki_option
@json_option
def config(
    folder: Path,
    name: str,
    links: tuple[plan.PeerLink, ...],
    host: str,
    port: int,
    user: str,
    installed_in: str,
    pki_folder: Path,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Write to FOLDER everything that Mosquitto needs: nothing is written if any of it is wrong."""
    from agent.replication.broker_folder import write_broker_folder

    if not is_zone(name):
        raise click.UsageError(f"--name {name!r}: a name is 1 to 32 of a-z, 0-9 and -")
    wanted = plan.BrokerPlan(links=links, folder=installed_in, host=host, port=port, user=user)
    files = write_broker_folder(folder, pki_folder, name, wanted)
    if as_json:
        rights = {zone: plan.rights_of(links, zone) for zone in plan.zones_of(links)}
        zones = {zone: {"write": each.write, "read": each.read} for zone, each in rights.items()}
        click.echo(json.dumps({"config_file": str(files.config_file), "port": port, "zones": zones}))
        return
    click.echo(f"{files.folder}: a broker for {', '.join(plan.zones_of(links))} on port {port}")
    start = Path(installed_in or folder.resolve()) / plan.CONFIG_NAME
    click.echo(
        f"next: mosquitto -c {start} (a running one re-reads all but its port at SIGHUP), then bsfg broker check"
    )


@broker.command()
@click.option("--zone", required=True, help="The zone to try it as.")
@click.option("--link", "links", type=_LinkType(), multiple=True, help=_HELP + " Others than the zone's are ignored.")
@click.option("--host", default="localhost", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=plan.PORT, show_default=True)
@click.option("--ca", "ca_file", type=click.Path(path_type=Path), help="By default ca.pem of the authority's folder.")
@click.option("--cert", "cert_file", type=click.Path(path_type=Path), help="By default the zone's in that folder.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="By default the zone's in that folder.")
@pki_option
@json_option
def check(
    zone: str,
    links: tuple[plan.PeerLink, ...],
    host: str,
    port: int,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    pki_folder: Path,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Prove a running broker as ZONE: handshake, limits, each right of its links, and what must be refused."""
    from agent.replication.broker_check import Access, Outcome, check_broker

    if not is_zone(zone):
        raise click.UsageError(f"--zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
    access = Access(
        host,
        port,
        zone,
        ca_file or pki_folder / "ca.pem",
        cert_file or pki_folder / "zones" / f"{zone}.pem",
        key_file or pki_folder / "zones" / f"{zone}.key",
    )
    bad = 0
    for finding in check_broker(access, links):
        bad += finding.outcome is Outcome.BAD
        if as_json:
            click.echo(json.dumps({"outcome": finding.outcome.value, "what": finding.what, "hint": finding.hint}))
        else:
            hint = f"\n      -> {finding.hint}" if finding.hint else ""
            click.echo(f"{finding.outcome.value:<5} {finding.what}{hint}")
    if bad:
        sys.exit(1)
