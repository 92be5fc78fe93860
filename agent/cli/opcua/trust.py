"""`bsfg opcua trust`: list the server certificates that sources trust and those that were rejected, and move
certificates between the two."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from agent.cli import config_option, json_option, print_json
from agent.cli.local_node import ask
from agent.cli.opcua.options import pki_option
from agent.config import ConfigError, load
from agent.escaping import printable
from agent.ingest.opcua.security.trust_folder import TrustFolder
from agent.local_socket import LocalError, RetrySource, SourceRetried, StateFolderUnusable


@click.command()
@click.argument("what", required=False, metavar="[THUMBPRINT|FILE]")
@config_option
@pki_option
@click.option("--issuer", is_flag=True, help="FILE is an authority whose certificates are trusted.")
@click.option("--crl", is_flag=True, help="FILE is the revocation list of an authority.")
@click.option("--remove", is_flag=True, help="Stop trusting THUMBPRINT.")
@json_option
def trust(
    what: str | None, config_file: Path, pki_folder: Path, issuer: bool, crl: bool, remove: bool, as_json: bool
) -> None:
    """Trust a server's certificate: one that was rejected, by THUMBPRINT, or one in a FILE. Without either, list them.

    Compare the thumbprint with the one that the server itself shows before trusting it.
    """
    folder = TrustFolder(pki_folder)
    if what is None:
        if issuer or crl or remove:
            raise click.UsageError("name the THUMBPRINT or FILE that is meant")
        _list(folder, as_json=as_json)
        return
    file = Path(what)
    if issuer or crl or (not remove and file.is_file()):
        if not file.is_file():
            raise click.UsageError(f"{what} is not a file")
        name = "issuers" if issuer else "crl" if crl else "trusted"
        text = f"{name}: {folder.add(name, file.read_bytes())}"
    elif remove:
        text = f"no longer trusted: {folder.distrust(what).file}"
    else:
        text = f"trusted: {folder.trust(what).file}"
    retried = [] if remove else _retry(config_file, pki_folder)
    if as_json:
        print_json({"done": text, "retried": retried})
        return
    click.echo(f"{text}; sources apply it at their next connection")
    for name in retried:
        click.echo(f"{name} connects now; see bsfg status")


def _retry(config_file: Path, folder: Path) -> list[str]:
    """Make the running node connect to the sources that use this folder and wait. Returns their names."""
    try:
        settings = load(config_file)
        sources = [source for source in settings.opcua if source.trust_folder is not None]
        names = [
            source.name
            for source in sources
            if source.trust_folder and source.trust_folder.absolute() == folder.absolute()
        ]
        answers = [(name, ask(settings, RetrySource(name), SourceRetried)) for name in names]
    except (ConfigError, LocalError, StateFolderUnusable):  # no node runs, or it is another user's
        return []
    return [name for name, answer in answers if answer.state == "waiting"]


def _list(folder: TrustFolder, *, as_json: bool) -> None:
    now = datetime.now(UTC)
    count = 0
    for name in ("trusted", "issuers", "rejected"):
        for certificate in folder.certificates(name):
            count += 1
            details, days = certificate.facts, certificate.facts.days_left(now)
            if as_json:
                shown = {"list": name, "file": str(certificate.file), "subject": details.subject, "sha1": details.sha1}
                print_json({**shown, "sha256": details.sha256, "days_left": round(days, 1)})
                continue
            left = "can only be pinned" if details.fault else f"{days:.0f} days left" if days > 0 else "ended"
            click.echo(printable(f"{name:<9} {details.sha1}  {details.subject}, {left}"))
    if not as_json:
        lists = len(folder.revocation_lists())
        if lists:
            click.echo(f"{'crl':<9} {lists} revocation list{'s' * (lists > 1)}")
        for file in folder.unreadable():
            click.echo(printable(f"ignored: {file} holds no certificate or revocation list"))
        if not count:
            click.echo(f"{folder.folder} holds no certificates; bsfg opcua test URL shows the certificate of a server")
