"""`bsfg pki`, at the authority: create it, revoke what it issued, and list it.

`issue` makes the key as well, for trials and tests; with `requests` no key leaves its machine.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from agent.cli import json_option, print_either
from agent.cli.pki.options import (
    authority_option,
    broker_option,
    crl_valid,
    days_option,
    force_option,
    new_authority,
    new_authority_options,
    passphrase_of,
    passphrase_option,
    plain_crl,
    print_issued,
)
from agent.replication import pki as authority
from agent.replication.protocol.topics import is_node


@click.command()
@authority_option
@new_authority_options
def ca(pki_folder: Path, as_json: bool, **asked: Any) -> None:
    """Create the authority of this site: once, on a machine that is neither a gateway nor a broker."""
    details = new_authority(pki_folder, **asked)
    kept = f"keep {pki_folder / 'ca.key'} and its passphrase secret, and keep a copy of both at another place"
    print_either(
        asdict(details),
        f"authority {details.subject} in {pki_folder}, until {details.not_after:%Y-%m-%d}",
        f"next: bsfg pki request NODE on each node, bsfg pki sign here; {kept}",
        as_json=as_json,
    )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@broker_option
@click.option("--host", "hosts", multiple=True, help="Name or address by which nodes reach the broker; repeatable.")
@authority_option
@passphrase_option
@days_option(authority.LEAF_DAYS)
@force_option
@json_option
def issue(
    names: tuple[str, ...],
    for_broker: bool,
    hosts: tuple[str, ...],
    pki_folder: Path,
    passphrase_file: Path | None,
    days: int,
    force: bool,
    as_json: bool,
) -> None:
    """Sign certificates for nodes, or with --broker for a broker, and create their keys here.

    For trials: a key that is created here has to be copied to its node. In production use request, sign and import.
    """
    if bad := [name for name in names if not is_node(name)]:
        raise click.UsageError(f"{', '.join(map(repr, bad))}: a name is 1 to 32 of a-z, 0-9 and -")
    if for_broker and len(names) > 1:
        raise click.UsageError("one broker at a time: each has its own hosts")
    if for_broker != bool(hosts):
        raise click.UsageError("--broker needs --host, and only a broker has hosts")
    now, passphrase = datetime.now(UTC), passphrase_of(pki_folder, passphrase_file)
    for name in names:
        if for_broker:
            issued = authority.issue_broker(pki_folder, name, hosts, now, days=days, force=force, passphrase=passphrase)
        else:
            issued = authority.issue_zone(pki_folder, name, now, days=days, force=force, passphrase=passphrase)
        print_issued(name, issued, as_json=as_json)
    if not as_json and not for_broker:
        click.echo(f"next: copy .pem, .key and {pki_folder / 'ca.pem'} to each node over a secure channel")


@click.command()
@click.argument("what", metavar="NAME|SERIAL")
@broker_option
@click.option(
    "--reason", type=click.Choice(sorted(authority.REASONS)), default="unspecified", show_default=True, help="Why."
)
@authority_option
@passphrase_option
@json_option
def revoke(
    what: str, for_broker: bool, reason: str, pki_folder: Path, passphrase_file: Path | None, as_json: bool
) -> None:
    """Revoke every valid certificate of NAME, or the one with this serial number.

    A broker refuses it once it has read the new list. A node that is connected stays connected until its rights are
    removed: bsfg broker deny.
    """
    passphrase = passphrase_of(pki_folder, passphrase_file)
    records = authority.revoke(
        pki_folder, what, datetime.now(UTC), broker=for_broker, reason=reason, passphrase=passphrase
    )
    for record in records:
        print_either(_plain_record(record), f"{record.name}: revoked {record.serial} ({reason})", as_json=as_json)
    if as_json:
        return
    if for_broker:
        click.echo(
            "note: brokers read the list, nodes do not. A stolen key of a broker can impersonate it to the nodes"
        )
        click.echo("until its certificate expires; only a new authority in their ca_file prevents that sooner.")
        return
    click.echo(
        f"next: copy {pki_folder / 'ca.crl'} to each broker as zones.crl; there, for a node that is connected, "
        f"bsfg broker deny {records[0].name}, which also makes the broker read the list"
    )


@click.command()
@click.option(
    "--days", type=click.IntRange(1, authority.DAYS_MAX), help="Validity in days; by default that of the previous list."
)
@authority_option
@passphrase_option
@json_option
def crl(days: int | None, pki_folder: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """Reissue the revocation list with the next number, before it expires and brokers refuse all clients."""
    passphrase = passphrase_of(pki_folder, passphrase_file)
    details = authority.reissue_crl(pki_folder, datetime.now(UTC), days=days, passphrase=passphrase)
    file = pki_folder / "ca.crl"
    told = f"{file}: list {details.number}, {crl_valid(details)}"
    next_step = "next: copy it to each broker as zones.crl, and run there: bsfg broker reload"
    print_either(plain_crl(file, details, []), told, next_step, as_json=as_json)


@click.command(name="list")
@authority_option
@json_option
def list_command(pki_folder: Path, as_json: bool) -> None:
    """List every certificate signed here: its name, its validity, and when and why it was revoked."""
    for record in authority.list_issued(pki_folder, datetime.now(UTC)):
        valid = f"{record.not_before:%Y-%m-%d} to {record.not_after:%Y-%m-%d}"
        end = f"  revoked {record.revoked.at:%Y-%m-%d %H:%M} ({record.revoked.reason})" if record.revoked else ""
        print_either(_plain_record(record), f"{record.name:<24} {valid}  {record.serial}{end}", as_json=as_json)


def _plain_record(record: authority.IssuedRecord) -> dict[str, object]:
    """A signed certificate as recorded, for a program."""
    plain, revoked = asdict(record), record.revoked
    del plain["revoked"]
    return {**plain, "revoked_at": revoked and revoked.at, "reason": revoked and revoked.reason}
