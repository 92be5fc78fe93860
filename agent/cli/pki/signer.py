"""`bsfg pki signer`: the keys that sign facts. `key` on each node, then either `pin` its certificate at the receivers,
or `request`, `sign` at a facts authority (`ca`), and `import`; `compromise` when a key is lost.

The facts authority is a folder of its own, apart from the authority for TLS: an attacker with one of them can then
either connect or sign, not both.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from agent.cli import FILE, INPUT, config_option, json_option, print_either, print_json
from agent.cli.pki.options import (
    days_option,
    folder_option,
    force_option,
    new_authority,
    new_authority_options,
    passphrase_of,
    passphrase_option,
    pki_option,
    print_rows,
    valid_text,
)
from agent.cli.pki.requests import print_request, print_signed
from agent.config import load
from agent.replication import pki as authority
from agent.signing.certificates import Signer
from agent.signing.files import Compromise, compromises_text, read_compromises
from agent.signing.records import KEY_ID_BYTES

facts_option = folder_option("--facts", "facts_folder", Path("facts"), "BSFG_FACTS", "The facts authority's folder.")
_INSTANTS = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z"]


@click.group()
def signer() -> None:
    """The keys that sign facts, and the certificates with which receivers verify them."""


@signer.command(name="ca")
@facts_option
@new_authority_options
def ca_command(facts_folder: Path, as_json: bool, **asked: Any) -> None:
    """Create the facts authority of this site, on a machine other than that of the authority for TLS, if there is
    one."""
    details = new_authority(facts_folder, for_facts=True, **asked)
    print_either(
        asdict(details),
        f"facts authority {details.subject} in {facts_folder}, until {details.not_after:%Y-%m-%d}",
        f"next: name a copy of {facts_folder / 'ca.pem'} in node.toml of every receiver: [signing] facts_ca_file",
        as_json=as_json,
    )


@signer.command()
@click.argument("zone")
@pki_option
@days_option(authority.SIGNER_DAYS)
@force_option
@click.option(
    "--key-of", metavar="ZONE", help="Take the key of this zone: ZONE is the name of a node that records for it."
)
@json_option
def key(zone: str, pki_folder: Path, days: int, force: bool, key_of: str | None, as_json: bool) -> None:
    """Make the signing key of ZONE on its node, with a certificate that receivers can pin.

    Name both files in node.toml. With --force a new key replaces it; the former one is kept in previous/.
    """
    files, made = authority.create_signer(pki_folder, zone, datetime.now(UTC), days=days, force=force, key_of=key_of)
    _print_signer(files.cert_file, made, as_json=as_json)
    if key_of is not None and not as_json:
        click.echo(f"next: append it to the certificate_file that has the certificate of {key_of}, in node.toml")
    elif not as_json:
        click.echo("next, in the section [signing] of node.toml, which `bsfg init` has written:")
        click.echo(f'  key_file = "{files.key_file.absolute()}"')
        click.echo(f'  certificate_file = "{files.cert_file.absolute()}"')
        click.echo(f"and bsfg pki signer pin at each receiver, or bsfg pki signer request {zone}")


@signer.command()
@click.argument("zone")
@pki_option
@json_option
def request(zone: str, pki_folder: Path, as_json: bool) -> None:
    """Write the request for a certificate of ZONE's signing key."""
    print_request(authority.request_signer(pki_folder, zone), as_json=as_json)
    if not as_json:
        click.echo(f"next: copy it to the facts authority; there: bsfg pki signer sign {zone} --request {zone}.csr")


@signer.command()
@click.argument("zone")
@click.option("--request", "request_file", type=INPUT, required=True, help="The request, made by signer request.")
@facts_option
@passphrase_option
@days_option(authority.SIGNER_DAYS)
@json_option
def sign(
    zone: str, request_file: Path, facts_folder: Path, passphrase_file: Path | None, days: int, as_json: bool
) -> None:
    """Sign the request of ZONE's signing key at the facts authority.

    Compare the fingerprint with the one that bsfg pki signer request printed. Equal ones prove its origin.
    """
    passphrase = passphrase_of(facts_folder, passphrase_file)
    issued = authority.sign_signer(
        facts_folder, zone, request_file, datetime.now(UTC), days=days, passphrase=passphrase
    )
    print_signed(zone, issued, as_json=as_json)
    if not as_json:
        click.echo(f"next: copy it to the node; there: bsfg pki signer import {zone} --cert {zone}.pem")


@signer.command(name="import")
@click.argument("zone")
@click.option("--cert", "cert_file", type=INPUT, required=True, help="The certificate of this node's signing key.")
@click.option("--facts-ca", "facts_ca_file", type=INPUT, help="The facts authority that issued it, to check it.")
@pki_option
@json_option
def import_command(zone: str, cert_file: Path, facts_ca_file: Path | None, pki_folder: Path, as_json: bool) -> None:
    """Check the certificate that was issued for ZONE's signing key, and install it. After bsfg reload the node signs
    with it."""
    files, found = authority.import_signer(pki_folder, zone, cert_file, facts_ca_file, datetime.now(UTC))
    _print_signer(files.cert_file, found, as_json=as_json)


@signer.command()
@click.argument("files", nargs=-1, required=True, type=INPUT)
@click.option("--facts-ca", "facts_ca_file", type=INPUT, help="Also check that this facts authority issued them.")
@json_option
def show(files: tuple[Path, ...], facts_ca_file: Path | None, as_json: bool) -> None:
    """Show signer certificates. Exit status 1 when one has expired, or the facts authority did not issue it."""
    now_ms, is_good = round(datetime.now(UTC).timestamp() * 1000), True
    for file in files:
        found = authority.read_signer(file)
        problems = [str(refusal)] if (refusal := found.refuses(now_ms)) else []
        if facts_ca_file is not None and not authority.is_issued_by(file, facts_ca_file):
            problems.append(f"not issued by {facts_ca_file}")
        is_good = is_good and not problems
        _print_signer(file, found, problems, as_json=as_json)
    if not is_good:
        raise click.exceptions.Exit(1)


@signer.command()
@click.argument("cert_file", metavar="CERTIFICATE", type=INPUT)
def pin(cert_file: Path) -> None:
    """Print the lines for node.toml of a receiver that accepts this signer certificate of its zone, and no other.

    Compare the fingerprint with the one that bsfg pki signer show prints on the zone's node.
    """
    found = authority.read_signer(cert_file)
    details = authority.describe(authority.load_certificates(cert_file)[0], datetime.now(UTC))
    fingerprint = details.fingerprint_sha256.replace(":", "")
    click.echo(f'[[origin]]\nzone = "{found.zone}"\nsignatures = "required"\npinned = ["{fingerprint}"]')


@signer.command()
@click.argument("what", metavar="KEY_ID|CERTIFICATE")
@click.option("--since", type=click.DateTime(_INSTANTS), required=True, help="As 2026-11-22T10:00:00+00:00.")
@click.option("--note", default="", help="Why, for readers of the list.")
@click.option("--file", "list_file", type=FILE, help="The list, instead of the one in node.toml.")
@config_option
@json_option
def compromise(what: str, since: datetime, note: str, list_file: Path | None, config_file: Path, as_json: bool) -> None:
    """Record that a signing key is compromised since a time.

    Run it on every receiver. Facts that were verified before that time stay verified. Facts verified since then are
    suspect, including those that the zone itself signed and that arrived late. No new facts with this key are accepted.
    """
    if since.tzinfo is None:
        raise click.UsageError("--since needs a time zone: 2026-11-22T10:00:00+00:00")
    key_id = _key_id(what)
    file = list_file or load(config_file).signing.compromised_file
    known = read_compromises(file)
    with authority.disk_errors(file.parent):
        rows = [*known, Compromise(key_id, since, note)]
        authority.write_file(file, compromises_text(rows).encode(), 0o644)
    print_either(
        {"key_id": key_id.hex(), "since": since, "file": str(file)},
        f"{file}: key {key_id.hex()} is compromised since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "next: run this at every receiver, whose node then applies it; on the zone's node: bsfg pki signer key --force",
        as_json=as_json,
    )


def _key_id(what: str) -> bytes:
    """The key id that was typed, or that of a certificate's key."""
    with contextlib.suppress(ValueError):
        if len(found := bytes.fromhex(what)) == KEY_ID_BYTES:
            return found
    if not Path(what).is_file():
        raise click.UsageError(f"{what!r} is neither a key id ({2 * KEY_ID_BYTES} hex digits) nor a certificate's file")
    return authority.read_signer(Path(what)).key_id


def _print_signer(file: Path, found: Signer, problems: list[str] | None = None, *, as_json: bool) -> None:
    """One signer certificate, in rows."""
    certificate = authority.load_certificates(file)[0]
    details = authority.describe(certificate, datetime.now(UTC))
    if as_json:
        print_json({"file": str(file), "key_id": found.key_id.hex(), **asdict(details), "problems": problems or []})
        return
    rows = {
        "zone": found.zone,
        "key": found.key_id.hex(),
        "issuer": "itself, to be pinned" if certificate.issuer == certificate.subject else details.issuer,
        "valid": valid_text(details),
        "sha256": details.fingerprint_sha256,
    }
    print_rows(file, rows, problems or [])
