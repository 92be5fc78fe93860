"""How `bsfg pki` shows what it finds: rows for a person, one JSON object a line for a program.

A program can read each object as it comes; times are ISO 8601 with their zone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from agent.replication import pki as authority


def show_crl(folder: Path, now: datetime, *, as_json: bool) -> bool:
    """Show the revocation list; whether a broker would read it and let people in."""
    file = folder / "ca.crl"
    problems = authority.check_crl(file, folder / "ca.pem", now=now)
    try:
        facts = authority.describe_crl(authority.load_crl(file), now)
    except authority.PkiError:
        facts = None
    if as_json:
        print_json(plain_crl(file, facts, problems))
        return not problems
    click.echo(f"{file}")
    if facts is not None:
        click.echo(f"  list    {facts.number}, {len(facts.revoked)} revoked")
        click.echo(f"  valid   {crl_valid(facts)}")
        if not problems and facts.days_left is not None and facts.days_left < authority.CRL_WARN_DAYS:
            click.echo("  SOON    when it has ended brokers refuse everybody; make the next: bsfg pki crl")
    for problem in problems:
        click.echo(f"  PROBLEM {problem.why}; {problem.hint}")
    return not problems


def crl_valid(facts: authority.CrlDetails) -> str:
    """How long the list lasts."""
    if facts.next_update is None:
        return "without an end"
    return f"until {facts.next_update:%Y-%m-%d %H:%M} UTC, {facts.days_left} days left"


def plain_crl(
    file: Path, facts: authority.CrlDetails | None, problems: Iterable[authority.Problem]
) -> dict[str, object]:
    """A revocation list for a program."""
    plain: dict[str, object] = {"file": str(file), "problems": [str(problem) for problem in problems]}
    if facts is not None:
        plain |= {
            "crl_number": facts.number,
            "issuer": facts.issuer,
            "last_update": facts.last_update.isoformat(),
            "next_update": facts.next_update and facts.next_update.isoformat(),
            "days_left": facts.days_left,
            "revoked": [{**asdict(each), "at": each.at.isoformat()} for each in facts.revoked],
        }
    return plain


def plain_record(each: authority.IssuedRecord) -> dict[str, object]:
    """One line of what was ever signed, for a program."""
    return {
        "serial": each.serial,
        "name": each.name,
        "not_before": each.not_before.isoformat(),
        "not_after": each.not_after.isoformat(),
        "revoked_at": each.revoked and each.revoked.at.isoformat(),
        "reason": each.revoked and each.revoked.reason,
    }


def print_issued(name: str, issued: authority.Issued, *, as_json: bool) -> None:
    """Where a new identity lies."""
    if as_json:
        files = {"cert_file": issued.cert_file, "key_file": issued.key_file, "ca_file": issued.ca_file}
        print_json({**{key: str(file) for key, file in files.items()}, **plain(issued.certificate)})
        return
    click.echo(f"{name}: {issued.cert_file} and {issued.key_file}, until {issued.certificate.not_after:%Y-%m-%d}")


def print_certificate(file: Path, facts: authority.CertificateDetails, problems: Iterable[authority.Problem]) -> None:
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


def plain(facts: authority.CertificateDetails) -> dict[str, object]:
    """A certificate for a program."""
    return {**asdict(facts), "not_before": facts.not_before.isoformat(), "not_after": facts.not_after.isoformat()}


def print_json(value: object) -> None:
    """One object a line, so that a program can read it as it comes."""
    click.echo(json.dumps(value))
