"""`bsfg pki show`: certificates with their problems, from files or from a whole folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from agent.cli import INPUT, json_option, print_json
from agent.cli.pki.options import authority_option, crl_valid, plain_crl, print_rows, valid_text
from agent.replication import pki as authority


@click.command()
@click.argument("files", nargs=-1, type=INPUT)
@authority_option
@json_option
def show(files: tuple[Path, ...], pki_folder: Path, as_json: bool) -> None:
    """Show certificates: those in FILES, or the authority, nodes and brokers of the folder.

    Exit status 1 when one of them is not usable: expired, not yet valid, or without a matching key.
    """
    now = datetime.now(UTC)
    if not files:
        _require_folder(pki_folder)
    shown = [
        (file, certificate, authority.check_times(file, certificate, now))
        for file in files or [pki_folder / "ca.pem"]
        for certificate in authority.load_certificates(file)
    ]
    if not files:
        shown += [
            (file, authority.load_certificates(file)[0], _folder_problems(pki_folder, file, now))
            for file in [*sorted(pki_folder.glob("brokers/*.pem")), *sorted(pki_folder.glob("zones/*.pem"))]
        ]
    usable = True
    for file, certificate, problems in shown:
        details = authority.describe(certificate, now)
        usable = usable and details.valid_now and not problems
        if as_json:
            print_json({"file": str(file), **asdict(details), "problems": [str(problem) for problem in problems]})
        else:
            _print_certificate(file, details, problems)
    if not files and ((pki_folder / "ca.crl").exists() or (pki_folder / "ca.key").exists()):
        usable = _show_crl(pki_folder, now, as_json=as_json) and usable
    if not usable:
        sys.exit(1)


def _folder_problems(folder: Path, file: Path, now: datetime) -> list[authority.IdentityProblem]:
    """The problems of one of the folder's certificates, checked for the purpose of its subfolder."""
    ca_file = folder / "ca.pem"
    key_file: Path | None = file.with_suffix(".key")
    if not file.with_suffix(".key").exists() and (folder / "ca.key").exists():
        key_file = None  # at the authority: the key is on the machine that uses it
    revoked = authority.check_not_revoked(file, folder / "ca.crl")
    if file.parent.name == "zones":
        return authority.check_identity(file, key_file, ca_file, file.stem, now=now) + revoked
    return authority.check_broker_identity(file, key_file, ca_file, now=now) + revoked


def _require_folder(folder: Path) -> None:
    """Raise PkiError unless the folder holds a complete authority, or imported certificates, which sign nothing."""
    if not folder.is_dir():
        raise authority.PkiError(f"{folder} is not a folder", "name one with --pki: on a node /etc/bsfg/pki")
    if not authority.is_locked(folder / "ca.key") and (
        (folder / "ca.key").exists() or not (folder / "ca.pem").exists()
    ):
        authority.load_authority(folder)


def _show_crl(folder: Path, now: datetime, *, as_json: bool) -> bool:
    """Print the revocation list of each authority. Returns whether a broker would accept clients with them."""
    file = folder / "ca.crl"
    problems = authority.check_crl(file, folder / "ca.pem", now=now)
    try:
        lists: list[authority.CrlDetails | None] = [
            authority.describe_crl(crl, now) for crl in authority.load_crls(file)
        ]
    except authority.PkiError:
        lists = [None]
    for details in lists:
        if as_json:
            print_json(plain_crl(file, details, problems))
            continue
        rows = {}
        if details is not None:
            rows = {"list": f"{details.number}, {len(details.revoked)} revoked", "valid": crl_valid(details)}
            if not problems and details.days_left is not None and details.days_left < authority.WARN_DAYS:
                rows["SOON"] = "once it has expired, brokers refuse all clients; make the next list: bsfg pki crl"
        print_rows(file, rows, _texts(problems))
    return not problems


def _print_certificate(
    file: Path, details: authority.CertificateDetails, problems: Iterable[authority.IdentityProblem]
) -> None:
    """One certificate, in rows."""
    rows = {
        "subject": details.subject,
        "zone": details.zone,
        "issuer": details.issuer,
        "for": ", ".join(details.purposes) or ("signing certificates" if details.is_ca else "anything"),
        "hosts": ", ".join(details.hosts),
        "valid": valid_text(details),
        "serial": details.serial,
        "sha256": details.fingerprint_sha256,
    }
    print_rows(file, rows, _texts(problems))


def _texts(problems: Iterable[authority.IdentityProblem]) -> list[str]:
    return [f"{problem.why}; {problem.hint}" for problem in problems]
