"""`bsfg pki`: the certificates of a site that has no authority of its own.

`ca` once, `issue` for each zone and each broker, `renew` before they expire, `revoke` when one is lost, `crl` where the
list expires, `show` and `list` to see what there is. `import` puts certificates of a site's own PKI into the same
places. The folder (`--pki`) is a plain folder of PEM files, on a machine that is neither a gateway nor a broker. With
`--json` each command prints one object a line; times are ISO 8601 with their zone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli import json_option
from agent.replication import pki as authority
from agent.replication.protocol.topics import is_zone

_Command = TypeVar("_Command", bound=Callable[..., Any])

pki_option = click.option(
    "--pki",
    "pki_folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("pki"),
    show_default=True,
    envvar="BSFG_PKI",
    help="The authority's folder.",
)
_force_option = click.option("--force", is_flag=True, help="Replace existing files.")


def _days_option(default: int) -> Callable[[_Command], _Command]:
    return click.option(
        "--days",
        type=click.IntRange(1, authority.DAYS_MAX),
        default=default,
        show_default=True,
        help="Validity in days.",
    )


_broker_option = click.option("--broker", "for_broker", is_flag=True, help="NAME is a broker, not a zone.")
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def pki() -> None:
    """Create and show the certificates of zones and brokers."""


@pki.command()
@pki_option
@click.option("--name", default="", help="Name of the authority; by default a random one.")
@_days_option(authority.CA_DAYS)
@_force_option
@json_option
def ca(pki_folder: Path, name: str, days: int, force: bool, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Create the authority of this site: once, on a machine that is neither a gateway nor a broker."""
    facts = authority.create_authority(pki_folder, datetime.now(UTC), name=name, days=days, force=force)
    if as_json:
        _print_json(asdict(facts))
        return
    click.echo(f"authority {facts.subject} in {pki_folder}, until {facts.not_after:%Y-%m-%d}")
    click.echo(f"next: bsfg pki issue ZONE; keep {pki_folder / 'ca.key'} secret, and a backup copy at another place")


@pki.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_broker_option
@click.option("--host", "hosts", multiple=True, help="Name or address by which nodes reach the broker; repeatable.")
@pki_option
@_days_option(authority.LEAF_DAYS)
@_force_option
@json_option
def issue(
    names: tuple[str, ...],
    for_broker: bool,  # noqa: FBT001 click's way
    hosts: tuple[str, ...],
    pki_folder: Path,
    days: int,
    force: bool,  # noqa: FBT001 click's way
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Sign certificates for zones, or with --broker for a broker, and create their keys."""
    if bad := [name for name in names if not is_zone(name)]:
        raise click.UsageError(f"{', '.join(map(repr, bad))}: a name is 1 to 32 of a-z, 0-9 and -")
    if for_broker and len(names) > 1:
        raise click.UsageError("one broker at a time: each has its own hosts")
    if for_broker != bool(hosts):
        raise click.UsageError("--broker needs --host, and only a broker has hosts")
    now = datetime.now(UTC)
    for name in names:
        if for_broker:
            issued = authority.issue_broker(pki_folder, name, hosts, now, days=days, force=force)
        else:
            issued = authority.issue_zone(pki_folder, name, now, days=days, force=force)
        _print_issued(name, issued, as_json=as_json)
    if not as_json and not for_broker:
        click.echo(f"next: copy .pem, .key and {pki_folder / 'ca.pem'} to each zone's node over a secure channel")


@pki.command()
@click.argument("name", metavar="NAME")
@_broker_option
@click.option("--same-key", is_flag=True, help="Keep the present key: only the certificate has to be copied.")
@click.option("--rollback", is_flag=True, help="Restore the identity from before the last renewal.")
@pki_option
@_days_option(authority.LEAF_DAYS)
@json_option
def renew(
    name: str,
    for_broker: bool,  # noqa: FBT001 click's way
    same_key: bool,  # noqa: FBT001 click's way
    rollback: bool,  # noqa: FBT001 click's way
    pki_folder: Path,
    days: int,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Issue the next certificate of NAME. The present one stays valid until it expires.

    A node uses new files without a restart if they are complete and valid.
    """
    now = datetime.now(UTC)
    if rollback:
        issued = authority.roll_back(pki_folder, name, now, broker=for_broker)
    else:
        issued = authority.renew(pki_folder, name, now, broker=for_broker, same_key=same_key, days=days)
    _print_issued(name, issued, as_json=as_json)
    if not as_json:
        what = "the .pem" if same_key and not rollback else ".pem and .key"
        then = "run bsfg broker config again, and bsfg broker reload" if for_broker else "copy to the zone's node"
        click.echo(f"next: {what}: {then}; the previous identity is in {issued.cert_file.parent / 'previous'}")


@pki.command()
@click.argument("what", metavar="NAME|SERIAL")
@_broker_option
@click.option(
    "--reason", type=click.Choice(sorted(authority.REASONS)), default="unspecified", show_default=True, help="Why."
)
@pki_option
@json_option
def revoke(what: str, for_broker: bool, reason: str, pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Revoke every valid certificate of NAME, or the one with this serial number.

    A broker refuses it once it has read the new list. A zone that is connected stays connected until its rights are
    removed: bsfg broker deny.
    """
    records = authority.revoke(pki_folder, what, datetime.now(UTC), broker=for_broker, reason=reason)
    for each in records:
        if as_json:
            _print_json(_plain_record(each))
        else:
            click.echo(f"{each.name}: revoked {each.serial} ({reason})")
    if as_json:
        return
    if for_broker:
        click.echo(
            "note: brokers read the list, nodes do not. A stolen key of a broker can impersonate it to the nodes"
        )
        click.echo("until its certificate expires; only a new authority in their ca_file prevents that sooner.")
        return
    click.echo(
        f"next: copy {pki_folder / 'ca.crl'} to each broker as zones.crl; there, for a zone that is connected, "
        f"bsfg broker deny {records[0].name}, which also makes the broker read the list"
    )


@pki.command()
@click.option(
    "--days", type=click.IntRange(1, authority.DAYS_MAX), help="Validity in days; by default that of the previous list."
)
@pki_option
@json_option
def crl(days: int | None, pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Reissue the revocation list with the next number, before it expires and brokers refuse all clients."""
    facts = authority.reissue_crl(pki_folder, datetime.now(UTC), days=days)
    if as_json:
        _print_json(_plain_crl(pki_folder / "ca.crl", facts, []))
    else:
        click.echo(f"{pki_folder / 'ca.crl'}: list {facts.number}, {_crl_valid(facts)}")
        click.echo("next: copy it to each broker as zones.crl, and run there: bsfg broker reload")


@pki.command(name="list")
@pki_option
@json_option
def list_command(pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """List every certificate signed here: its name, its validity, and when and why it was revoked."""
    for each in authority.list_issued(pki_folder, datetime.now(UTC)):
        if as_json:
            _print_json(_plain_record(each))
        else:
            taken = f"  revoked {each.revoked.at:%Y-%m-%d %H:%M} ({each.revoked.reason})" if each.revoked else ""
            click.echo(f"{each.name:<24} {each.not_before:%Y-%m-%d} to {each.not_after:%Y-%m-%d}  {each.serial}{taken}")


@pki.command(name="import")
@click.argument("name", metavar="NAME")
@_broker_option
@click.option(
    "--cert", "cert_file", type=_FILE, required=True, help="Its certificate, with all intermediate ones up to the root."
)
@click.option("--key", "key_file", type=_FILE, required=True, help="Its private key, without a password.")
@click.option("--ca", "ca_file", type=_FILE, required=True, help="The root, or roots, that nodes and brokers trust.")
@click.option("--crl", "crl_file", type=_FILE, help="The revocation lists of those authorities.")
@pki_option
@_force_option
@json_option
def import_command(
    name: str,
    for_broker: bool,  # noqa: FBT001 click's way
    cert_file: Path,
    key_file: Path,
    ca_file: Path,
    crl_file: Path | None,
    pki_folder: Path,
    force: bool,  # noqa: FBT001 click's way
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Check an identity that a site's own PKI made for NAME, and copy it into the folder.

    On a node it installs a renewed identity: certificate and key are replaced together.
    """
    issued = authority.import_identity(
        pki_folder,
        name,
        cert_file,
        key_file,
        ca_file,
        datetime.now(UTC),
        crl_file=crl_file,
        broker=for_broker,
        force=force,
    )
    _print_issued(name, issued, as_json=as_json)


@pki.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@pki_option
@json_option
def show(files: tuple[Path, ...], pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Show certificates: those in FILES, or the authority, zones and brokers of the folder.

    Exit status 1 when one of them is not usable: expired, not yet valid, or without a matching key.
    """
    now = datetime.now(UTC)
    if files:
        shown = [
            (file, each, _time_problems(file, now)) for file in files for each in authority.load_certificates(file)
        ]
    else:
        _require_folder(pki_folder)
        shown = [
            (file, authority.load_certificates(file)[0], _folder_problems(pki_folder, file, now))
            for file in _folder_files(pki_folder)
        ]
    usable = True
    for file, certificate, problems in shown:
        facts = authority.describe(certificate, now)
        usable = usable and facts.valid_now and not problems
        if as_json:
            _print_json({"file": str(file), **asdict(facts), "problems": [str(problem) for problem in problems]})
        else:
            _print_certificate(file, facts, problems)
    if not files:
        usable = _show_crl(pki_folder, now, as_json=as_json) and usable
    if not usable:
        sys.exit(1)


def _folder_files(folder: Path) -> list[Path]:
    return [folder / "ca.pem", *sorted(folder.glob("brokers/*.pem")), *sorted(folder.glob("zones/*.pem"))]


def _folder_problems(folder: Path, file: Path, now: datetime) -> list[authority.Problem]:
    """The problems of one of the folder's certificates, checked for the purpose of its subfolder."""
    ca_file = folder / "ca.pem"
    revoked = authority.check_not_revoked(file, folder / "ca.crl")
    match file.parent.name, file.name:
        case "zones", _:
            return authority.check_identity(file, file.with_suffix(".key"), ca_file, file.stem, now=now) + revoked
        case "brokers", _:
            return authority.check_broker_identity(file, file.with_suffix(".key"), ca_file, now=now) + revoked
    return _time_problems(file, now)


def _require_folder(folder: Path) -> None:
    """Raise PkiError unless the folder holds a complete authority, or imported certificates, which sign nothing."""
    if (folder / "ca.key").exists() or not (folder / "ca.pem").exists():
        authority.load_authority(folder)


def _time_problems(file: Path, now: datetime) -> list[authority.Problem]:
    return [problem for each in authority.load_certificates(file) for problem in authority.check_times(file, each, now)]


def _show_crl(folder: Path, now: datetime, *, as_json: bool) -> bool:
    """Show the revocation list; whether a broker would accept clients with it."""
    file = folder / "ca.crl"
    problems = authority.check_crl(file, folder / "ca.pem", now=now)
    try:
        facts = authority.describe_crl(authority.load_crl(file), now)
    except authority.PkiError:
        facts = None
    if as_json:
        _print_json(_plain_crl(file, facts, problems))
        return not problems
    click.echo(f"{file}")
    if facts is not None:
        click.echo(f"  list    {facts.number}, {len(facts.revoked)} revoked")
        click.echo(f"  valid   {_crl_valid(facts)}")
        if not problems and facts.days_left is not None and facts.days_left < authority.CRL_WARN_DAYS:
            click.echo("  SOON    after it has expired brokers refuse all clients; make the next: bsfg pki crl")
    for problem in problems:
        click.echo(f"  PROBLEM {problem.why}; {problem.hint}")
    return not problems


def _crl_valid(facts: authority.CrlDetails) -> str:
    """The validity of a list."""
    if facts.next_update is None:
        return "without expiry"
    return f"until {facts.next_update:%Y-%m-%d %H:%M} UTC, {facts.days_left} days left"


def _plain_crl(
    file: Path, facts: authority.CrlDetails | None, problems: Iterable[authority.Problem]
) -> dict[str, object]:
    """A revocation list for a program."""
    plain: dict[str, object] = {"file": str(file), "problems": [str(problem) for problem in problems]}
    if facts is not None:
        plain |= {
            "crl_number": facts.number,
            "issuer": facts.issuer,
            "last_update": facts.last_update,
            "next_update": facts.next_update,
            "days_left": facts.days_left,
            "revoked": [asdict(each) for each in facts.revoked],
        }
    return plain


def _plain_record(each: authority.IssuedRecord) -> dict[str, object]:
    """A signed certificate as recorded, for a program."""
    return {
        "serial": each.serial,
        "name": each.name,
        "not_before": each.not_before,
        "not_after": each.not_after,
        "revoked_at": each.revoked and each.revoked.at,
        "reason": each.revoked and each.revoked.reason,
    }


def _print_issued(name: str, issued: authority.Issued, *, as_json: bool) -> None:
    """Print where a new identity is."""
    if as_json:
        files = {"cert_file": issued.cert_file, "key_file": issued.key_file, "ca_file": issued.ca_file}
        _print_json({**{key: str(file) for key, file in files.items()}, **asdict(issued.certificate)})
        return
    click.echo(f"{name}: {issued.cert_file} and {issued.key_file}, until {issued.certificate.not_after:%Y-%m-%d}")


def _print_certificate(file: Path, facts: authority.CertificateDetails, problems: Iterable[authority.Problem]) -> None:
    """One certificate, in rows."""
    click.echo(f"{file}")
    rows = {
        "subject": facts.subject,
        "zone": facts.zone,
        "issuer": facts.issuer,
        "for": ", ".join(facts.purposes) or ("signing certificates" if facts.is_ca else "anything"),
        "hosts": ", ".join(facts.hosts),
        "valid": f"{facts.not_before:%Y-%m-%d %H:%M} to {facts.not_after:%Y-%m-%d %H:%M} UTC, {facts.days_left} days left",
        "serial": facts.serial,
        "sha256": facts.fingerprint_sha256,
    }
    for name, value in rows.items():
        if value:
            click.echo(f"  {name:<8}{value}")
    for problem in problems:
        click.echo(f"  PROBLEM {problem.why}; {problem.hint}")


def _print_json(value: object) -> None:
    """Print one object as a line, times in ISO 8601."""
    click.echo(json.dumps(value, default=datetime.isoformat))
