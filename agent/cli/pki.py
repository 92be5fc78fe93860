"""`bsfg pki`: the certificates of a site that has no authority of its own.

`ca` once, `issue` for each zone and each broker, `show` to see what lies there, for whom and how long.  The folder
(`--pki`) is a plain folder of PEM files; it belongs on a machine that is neither a gateway nor a broker.
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
from agent.replication.topics import is_zone

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
        _print_json(_plain(facts))
        return
    click.echo(f"authority {facts.subject} in {pki_folder}, until {facts.not_after:%Y-%m-%d}")
    click.echo(
        f"next: bsfg pki issue ZONE; keep {pki_folder / 'ca.key'} to yourself, and a copy where it cannot burn too"
    )


@pki.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--broker", "for_broker", is_flag=True, help="NAME is a broker, not a zone.")
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
        if as_json:
            files = {"cert_file": issued.cert_file, "key_file": issued.key_file, "ca_file": issued.ca_file}
            _print_json({**{key: str(file) for key, file in files.items()}, **_plain(issued.certificate)})
        else:
            click.echo(
                f"{name}: {issued.cert_file} and {issued.key_file}, until {issued.certificate.not_after:%Y-%m-%d}"
            )
    if not as_json and not for_broker:
        click.echo(f"next: bring .pem and .key with {pki_folder / 'ca.pem'} to each zone's node, by a way you trust")


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
        authority.load_authority(pki_folder)
        shown = [
            (file, authority.load_certificates(file)[0], _folder_problems(pki_folder, file, now))
            for file in _folder_files(pki_folder)
        ]
    usable = True
    for file, certificate, problems in shown:
        facts = authority.describe(certificate, now)
        usable = usable and facts.valid_now and not problems
        if as_json:
            _print_json({"file": str(file), **_plain(facts), "problems": [str(problem) for problem in problems]})
        else:
            _print_certificate(file, facts, problems)
    if not usable:
        sys.exit(1)


def _folder_files(folder: Path) -> list[Path]:
    return [folder / "ca.pem", *sorted(folder.glob("brokers/*.pem")), *sorted(folder.glob("zones/*.pem"))]


def _folder_problems(folder: Path, file: Path, now: datetime) -> list[authority.Problem]:
    """What is wrong with one of the folder's certificates, knowing from its place what it is for."""
    ca_file = folder / "ca.pem"
    match file.parent.name, file.name:
        case "zones", _:
            return authority.check_identity(file, file.with_suffix(".key"), ca_file, file.stem, now=now)
        case "brokers", _:
            return authority.check_broker_identity(file, file.with_suffix(".key"), ca_file, now=now)
    return _time_problems(file, now) + authority.check_crl(folder / "ca.crl", ca_file, now=now)


def _time_problems(file: Path, now: datetime) -> list[authority.Problem]:
    return [problem for each in authority.load_certificates(file) for problem in authority.check_times(file, each, now)]


def _print_certificate(file: Path, facts: authority.CertificateFacts, problems: Iterable[authority.Problem]) -> None:
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


def _plain(facts: authority.CertificateFacts) -> dict[str, object]:
    return {**asdict(facts), "not_before": facts.not_before.isoformat(), "not_after": facts.not_after.isoformat()}


def _print_json(value: object) -> None:
    """One object a line, so that a program can read it as it comes."""
    click.echo(json.dumps(value))
