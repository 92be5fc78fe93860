"""Shared by the commands of `bsfg pki`: options, the prompts for the passphrase of an authority, and printed rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli import FOLDER, INPUT, json_option, print_either
from agent.replication import pki as authority

_Command = TypeVar("_Command", bound=Callable[..., Any])

AUTHORITY = Path("/srv/authority")


def folder_option(name: str, into: str, default: Path, variable: str, what: str) -> Callable[[_Command], _Command]:
    """A folder of keys, also named by a variable of the environment."""
    return click.option(
        name, into, type=FOLDER, default=default, show_default=True, envvar=variable, show_envvar=True, help=what
    )


def _pki_option(default: Path, what: str) -> Callable[[_Command], _Command]:
    return folder_option("--pki", "pki_folder", default, "BSFG_PKI", what)


authority_option = _pki_option(AUTHORITY, "The authority's folder.")
pki_option = _pki_option(Path("/etc/bsfg/pki"), "The node's folder of certificates and keys.")
broker_pki_option = _pki_option(Path("/etc/mosquitto/pki"), "The broker's folder of certificates and keys.")
force_option = click.option("--force", is_flag=True, help="Replace existing files.")


def days_option(default: int) -> Callable[[_Command], _Command]:
    """The validity of a certificate."""
    return click.option(
        "--days",
        type=click.IntRange(1, authority.DAYS_MAX),
        default=default,
        show_default=True,
        help="Validity in days.",
    )


broker_option = click.option("--broker", "for_broker", is_flag=True, help="NAME is a broker, not a node.")
KEY = "Passphrase of the authority's key"
passphrase_option = click.option(
    "--passphrase-file",
    type=INPUT,
    envvar="BSFG_PKI_PASSPHRASEFILE",
    show_envvar=True,
    help="The passphrase of the authority's key, in the first line; by default it is asked for.",
)


def new_authority_options(command: _Command) -> _Command:
    """The options with which `new_authority` makes one."""
    name = click.option("--name", default="", help="Name of the authority; by default a random one.")
    bare = click.option("--no-passphrase", is_flag=True, help="Leave the authority's key unprotected.")
    return name(days_option(authority.CA_DAYS)(passphrase_option(bare(force_option(json_option(command))))))


def new_authority(
    folder: Path, passphrase_file: Path | None, *, no_passphrase: bool, for_facts: bool = False, **asked: Any
) -> authority.CertificateDetails:
    """Make an authority, whose key has no passphrase only with --no-passphrase."""
    if passphrase_file is not None and no_passphrase:
        raise click.UsageError("--passphrase-file and --no-passphrase exclude each other")
    passphrase = None
    if not no_passphrase:
        passphrase = get_passphrase(passphrase_file, KEY, is_new=True, otherwise="--passphrase-file or --no-passphrase")
    return authority.create_authority(folder, datetime.now(UTC), passphrase=passphrase, for_facts=for_facts, **asked)


def passphrase_of(folder: Path, passphrase_file: Path | None) -> bytes | None:
    """The passphrase of the authority in `folder`; None if its key has none."""
    if not authority.is_locked(folder / "ca.key"):
        return None
    return get_passphrase(passphrase_file, KEY, is_new=False)


def get_passphrase(file: Path | None, whose: str, *, is_new: bool, otherwise: str = "--passphrase-file") -> bytes:
    """A passphrase: the first line of a file that only its owner may read, as a systemd credential is, or typed on the
    terminal, twice if it is new. `otherwise` are the options that replace the question."""
    if file is not None:
        authority.check_key_rights(file)
        return authority.read_file(file).split(b"\n", 1)[0].rstrip(b"\r")
    try:
        typed = click.prompt(whose, hide_input=_has_terminal(), confirmation_prompt=is_new, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # behind the question
        raise click.UsageError(f"no terminal to ask for the passphrase: give {otherwise}") from None
    return str(typed).encode()


def _has_terminal() -> bool:
    """Whether there is one that could show what is typed; without one, hiding it is a warning of Python's."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin.isatty()
    return True


def crl_valid(details: authority.CrlDetails) -> str:
    """The validity of a list."""
    if details.next_update is None:
        return "without expiry"
    return f"until {details.next_update:%Y-%m-%d %H:%M} UTC, {details.days_left} days left"


def plain_crl(
    file: Path, details: authority.CrlDetails | None, problems: Iterable[authority.IdentityProblem]
) -> dict[str, object]:
    """A revocation list for a program."""
    plain: dict[str, object] = {"file": str(file), "problems": [str(problem) for problem in problems]}
    if details is not None:
        plain |= {
            "crl_number": details.number,
            "issuer": details.issuer,
            "last_update": details.last_update,
            "next_update": details.next_update,
            "days_left": details.days_left,
            "revoked": [asdict(entry) for entry in details.revoked],
        }
    return plain


def print_issued(name: str, issued: authority.Issued, *, as_json: bool) -> None:
    """Print the files of a new identity."""
    files = {"cert_file": str(issued.cert_file), "key_file": str(issued.key_file), "ca_file": str(issued.ca_file)}
    text = f"{name}: {issued.cert_file} and {issued.key_file}, until {issued.certificate.not_after:%Y-%m-%d}"
    print_either({**files, **asdict(issued.certificate)}, text, as_json=as_json)


def print_rows(file: Path, rows: Mapping[str, str], problems: Iterable[str]) -> None:
    """Print a certificate: its file, what is known of it, and its problems."""
    click.echo(f"{file}")
    for name, value in rows.items():
        if value:
            click.echo(f"  {name:<8}{value}")
    for problem in problems:
        click.echo(f"  PROBLEM {problem}")


def valid_text(details: authority.CertificateDetails) -> str:
    """The validity of a certificate."""
    return (
        f"{details.not_before:%Y-%m-%d %H:%M} to {details.not_after:%Y-%m-%d %H:%M} UTC, {details.days_left} days left"
    )
