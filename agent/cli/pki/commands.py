"""`bsfg pki`: the certificates of a site that has no authority of its own.

`ca` once, `issue` for each zone and each broker, `renew` before they end, `revoke` when one is lost, `crl` where the
list ends, `show` and `list` to see what there is.  `import` brings what a site's own PKI has made into the same places.
The folder (`--pki`) is a plain folder of PEM files; it belongs on a machine that is neither a gateway nor a broker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli import json_option
from agent.cli.pki.printing import (
    crl_valid,
    plain,
    plain_crl,
    plain_record,
    print_certificate,
    print_issued,
    print_json,
    show_crl,
)
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
_force_option = click.option("--force", is_flag=True, help="Replace what is there.")


def _days_option(default: int) -> Callable[[_Command], _Command]:
    return click.option(
        "--days", type=click.IntRange(1, authority.DAYS_MAX), default=default, show_default=True, help="Until it ends."
    )


_broker_option = click.option("--broker", "for_broker", is_flag=True, help="NAME is a broker, not a zone.")
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def pki() -> None:
    """Make and show the certificates of zones and brokers."""


@pki.command()
@pki_option
@click.option("--name", default="", help="What the authority is called; by default a name of its own.")
@_days_option(authority.CA_DAYS)
@_force_option
@json_option
def ca(pki_folder: Path, name: str, days: int, force: bool, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Make the authority of this site: once, on a machine that is neither gateway nor broker."""
    facts = authority.create_authority(pki_folder, datetime.now(UTC), name=name, days=days, force=force)
    if as_json:
        print_json(plain(facts))
        return
    click.echo(f"authority {facts.subject} in {pki_folder}, until {facts.not_after:%Y-%m-%d}")
    click.echo(
        f"next: bsfg pki issue ZONE; keep {pki_folder / 'ca.key'} to yourself, and a copy where it cannot burn too"
    )


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
    """Sign certificates for zones, or with --broker for a broker, and make their keys."""
    if bad := [name for name in names if not is_zone(name)]:
        raise click.UsageError(f"{', '.join(map(repr, bad))}: a name is 1 to 32 of a-z, 0-9 and -")
    if for_broker and len(names) > 1:
        raise click.UsageError("one broker at a time: each has hosts of its own")
    if for_broker != bool(hosts):
        raise click.UsageError("--broker needs --host, and only a broker has hosts")
    now = datetime.now(UTC)
    for name in names:
        if for_broker:
            issued = authority.issue_broker(pki_folder, name, hosts, now, days=days, force=force)
        else:
            issued = authority.issue_zone(pki_folder, name, now, days=days, force=force)
        print_issued(name, issued, as_json=as_json)
    if not as_json and not for_broker:
        click.echo(f"next: bring .pem and .key with {pki_folder / 'ca.pem'} to each zone's node, by a way you trust")


@pki.command()
@click.argument("name", metavar="NAME")
@_broker_option
@click.option("--same-key", is_flag=True, help="Sign the key it has: only the certificate has to be brought.")
@click.option("--rollback", is_flag=True, help="Put the identity from before the last renewal in force again.")
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
    """Give NAME its next certificate, beside the one it has, which stays valid until it ends.

    A node that finds new files in place of its old takes them over without a restart, if they are whole and good.
    """
    now = datetime.now(UTC)
    if rollback:
        issued = authority.roll_back(pki_folder, name, now, broker=for_broker)
    else:
        issued = authority.renew(pki_folder, name, now, broker=for_broker, same_key=same_key, days=days)
    print_issued(name, issued, as_json=as_json)
    if not as_json:
        what = "the .pem" if same_key and not rollback else ".pem and .key"
        then = "run bsfg broker config again, and bsfg broker reload" if for_broker else "bring them to the zone's node"
        click.echo(f"next: {what}: {then}; what was in force before lies in {issued.cert_file.parent / 'previous'}")


@pki.command()
@click.argument("what", metavar="NAME|SERIAL")
@_broker_option
@click.option(
    "--reason", type=click.Choice(sorted(authority.REASONS)), default="unspecified", show_default=True, help="Why."
)
@pki_option
@json_option
def revoke(what: str, for_broker: bool, reason: str, pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Take back every certificate of NAME that is still good, or the one with this serial number.

    The new list keeps it out once a broker has read it; what is connected stays so until its rights end:
    bsfg broker deny.
    """
    records = authority.revoke(pki_folder, what, datetime.now(UTC), broker=for_broker, reason=reason)
    for each in records:
        if as_json:
            print_json(plain_record(each))
        else:
            click.echo(f"{each.name}: revoked {each.serial} ({reason})")
    if as_json:
        return
    if for_broker:
        click.echo(
            "note: brokers read the list, nodes do not. Who has a broker's stolen key can stand in for it towards"
        )
        click.echo("the nodes until its certificate ends; only a new authority in their ca_file ends that sooner.")
        return
    click.echo(
        f"next: bring {pki_folder / 'ca.crl'} to each broker as zones.crl; there, for a zone that is connected, "
        f"bsfg broker deny {records[0].name}, which also makes the broker read the list"
    )


@pki.command()
@click.option("--days", type=click.IntRange(1, authority.DAYS_MAX), help="Its life; by default that of the one before.")
@pki_option
@json_option
def crl(days: int | None, pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Make the revocation list again, with the next number, before it ends and the broker refuses everybody."""
    facts = authority.reissue_crl(pki_folder, datetime.now(UTC), days=days)
    if as_json:
        print_json(plain_crl(pki_folder / "ca.crl", facts, []))
    else:
        click.echo(f"{pki_folder / 'ca.crl'}: list {facts.number}, {crl_valid(facts)}")
        click.echo("next: bring it to each broker as zones.crl, and there: bsfg broker reload")


@pki.command(name="list")
@pki_option
@json_option
def list_command(pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Every certificate ever signed here: for whom, from when to when, and when and why it was taken back."""
    for each in authority.list_issued(pki_folder, datetime.now(UTC)):
        if as_json:
            print_json(plain_record(each))
        else:
            taken = f"  revoked {each.revoked.at:%Y-%m-%d %H:%M} ({each.revoked.reason})" if each.revoked else ""
            click.echo(f"{each.name:<24} {each.not_before:%Y-%m-%d} to {each.not_after:%Y-%m-%d}  {each.serial}{taken}")


@pki.command(name="import")
@click.argument("name", metavar="NAME")
@_broker_option
@click.option(
    "--cert", "cert_file", type=_FILE, required=True, help="Its certificate, with what lies between and the root."
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
    """Take what a site's own PKI made for NAME, checked as a whole, into the folder: right places, right rights.

    On a node it puts a renewed identity in place without a moment in which certificate and key are two people's.
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
    print_issued(name, issued, as_json=as_json)


@pki.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@pki_option
@json_option
def show(files: tuple[Path, ...], pki_folder: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Show certificates: those in FILES, or the authority, zones and brokers of the folder.

    Exit status 1 when one of them is not usable: ended, not begun, or without a key that fits.
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
            print_json({"file": str(file), **plain(facts), "problems": [str(problem) for problem in problems]})
        else:
            print_certificate(file, facts, problems)
    if not files:
        usable = show_crl(pki_folder, now, as_json=as_json) and usable
    if not usable:
        sys.exit(1)


def _folder_files(folder: Path) -> list[Path]:
    return [folder / "ca.pem", *sorted(folder.glob("brokers/*.pem")), *sorted(folder.glob("zones/*.pem"))]


def _folder_problems(folder: Path, file: Path, now: datetime) -> list[authority.Problem]:
    """What is wrong with one of the folder's certificates, knowing from its place what it is for."""
    ca_file = folder / "ca.pem"
    revoked = authority.check_not_revoked(file, folder / "ca.crl")
    match file.parent.name, file.name:
        case "zones", _:
            return authority.check_identity(file, file.with_suffix(".key"), ca_file, file.stem, now=now) + revoked
        case "brokers", _:
            return authority.check_broker_identity(file, file.with_suffix(".key"), ca_file, now=now) + revoked
    return _time_problems(file, now)


def _require_folder(folder: Path) -> None:
    """An authority of ours, whole; or what was imported, which can sign nothing."""
    if (folder / "ca.key").exists() or not (folder / "ca.pem").exists():
        authority.load_authority(folder)


def _time_problems(file: Path, now: datetime) -> list[authority.Problem]:
    return [problem for each in authority.load_certificates(file) for problem in authority.check_times(file, each, now)]
