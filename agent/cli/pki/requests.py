"""`bsfg pki request`, `sign` and `import`: a certificate for a key that never leaves its machine."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from agent.cli import INPUT, json_option, print_either
from agent.cli.pki.options import (
    authority_option,
    broker_option,
    days_option,
    force_option,
    passphrase_of,
    passphrase_option,
    pki_option,
    print_issued,
)
from agent.replication import pki as authority


@click.command()
@click.argument("name", metavar="NAME")
@broker_option
@click.option("--host", "hosts", multiple=True, help="Name or address by which nodes reach the broker; repeatable.")
@pki_option
@force_option
@json_option
def request(name: str, for_broker: bool, hosts: tuple[str, ...], pki_folder: Path, force: bool, as_json: bool) -> None:
    """Create a new key for NAME on this machine, and the request for its certificate.

    The current certificate stays in use until the new one is imported.
    """
    if for_broker != bool(hosts):
        raise click.UsageError("--broker needs --host, and only a broker has hosts")
    made = authority.make_request(pki_folder, name, hosts=hosts, broker=for_broker, force=force)
    print_request(made, as_json=as_json)
    if not as_json:
        flag = "--broker " if for_broker else ""
        click.echo(f"next: copy it to the authority; there: bsfg pki sign {flag}{name} --request {name}.csr")


@click.command()
@click.argument("name", metavar="NAME")
@broker_option
@click.option(
    "--request",
    "request_file",
    type=INPUT,
    help="The request, made by bsfg pki request.  [default: none, for the key of the present certificate]",
)
@authority_option
@passphrase_option
@days_option(authority.LEAF_DAYS)
@json_option
def sign(
    name: str,
    for_broker: bool,
    request_file: Path | None,
    pki_folder: Path,
    passphrase_file: Path | None,
    days: int,
    as_json: bool,
) -> None:
    """Sign the request of node or broker NAME at the authority, or without --request the next certificate for the key
    that it has. The current one stays valid until it expires.

    Compare the fingerprint with the one that bsfg pki request printed: equal ones prove the origin of the request.
    """
    passphrase = passphrase_of(pki_folder, passphrase_file)
    now = datetime.now(UTC)
    issued = authority.sign_request(
        pki_folder, name, request_file, now, broker=for_broker, days=days, passphrase=passphrase
    )
    print_signed(name, issued, as_json=as_json)
    if not as_json:
        if request_file is None:
            click.echo("it is for the key of the present certificate; for a new key, sign with --request")
        hosts = f", for {', '.join(issued.certificate.hosts)}" if for_broker else ""
        click.echo(f"next: copy it and {issued.ca_file} to the machine of {name}{hosts}; there: bsfg pki import")


@click.command(name="import")
@click.argument("name", metavar="NAME")
@broker_option
@click.option(
    "--cert", "cert_file", type=INPUT, required=True, help="Its certificate, with all intermediate ones up to the root."
)
@click.option(
    "--key",
    "key_file",
    type=INPUT,
    help="Its private key, without a password; by default the requested one, else the present one.",
)
@click.option("--ca", "ca_file", type=INPUT, required=True, help="The root, or roots, that nodes and brokers trust.")
@click.option("--crl", "crl_file", type=INPUT, help="The revocation lists of those authorities.")
@pki_option
@force_option
@json_option
def import_command(
    name: str,
    for_broker: bool,
    cert_file: Path,
    key_file: Path | None,
    ca_file: Path,
    crl_file: Path | None,
    pki_folder: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Check a certificate that an authority signed for NAME, and install it with its key.

    On a node it also installs a renewed identity: certificate and key are replaced together.
    """
    now = datetime.now(UTC)
    given = authority.GivenFiles(cert_file, ca_file, key_file, crl_file)
    issued = authority.import_identity(pki_folder, name, given, now, broker=for_broker, force=force)
    print_issued(name, issued, as_json=as_json)


def print_request(made: authority.Request, *, as_json: bool) -> None:
    """Print the file of a request, and the fingerprint of its key."""
    print_either(
        {key: str(value) for key, value in asdict(made).items()},
        f"{made.request_file}, for the key {made.key_file}, which stays here",
        f"fingerprint of the key: {made.fingerprint_sha256}",
        as_json=as_json,
    )


def print_signed(name: str, issued: authority.Issued, *, as_json: bool) -> None:
    """Print the file of a certificate whose key is on another machine."""
    print_either(
        {"cert_file": str(issued.cert_file), "ca_file": str(issued.ca_file), **asdict(issued.certificate)},
        f"{name}: {issued.cert_file}, until {issued.certificate.not_after:%Y-%m-%d}",
        f"fingerprint of the key: {issued.certificate.key_sha256}",
        as_json=as_json,
    )
