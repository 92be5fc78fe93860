"""`bsfg opcua trust`: list the server certificates that sources trust and those that were rejected, and move
certificates between the two. `bsfg opcua certificate`: show or create our own certificate, which servers must trust,
and renew it in two steps, so that no server sees an unknown certificate; where node.toml has secured sources, the one
that they use."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import click
from click.core import ParameterSource

from agent.cli import FILE, config_option, json_option, print_either, print_json
from agent.cli.local_node import ask
from agent.cli.opcua.options import pki_option
from agent.config import ConfigError, load, load_sections
from agent.escaping import printable
from agent.ingest.opcua.security.certificate import (
    activate_certificate,
    ensure_certificate,
    file_to_import,
    read_certificate,
    renew_certificate,
)
from agent.ingest.opcua.security.trust_folder import TrustFolder
from agent.local_socket import LocalError, RetrySource, SourceRetried, StateFolderUnusable
from agent.settings.sources import APPLICATION_URI


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
    is_file = os.path.isfile(what)  # noqa: PTH113 Path.is_file raises for a long name
    if issuer or crl or (not remove and is_file):
        if not is_file:
            raise click.UsageError(f"{what} is not a file")
        name = "issuers" if issuer else "crl" if crl else "trusted"
        text = f"{name}: {folder.add(name, _content(Path(what)))}"
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


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error.strerror}; let this user read it") from error


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


@click.command()
@config_option
@pki_option
@click.option("--certificate", "certificate_file", type=FILE, help="Our certificate, instead of the one in --pki.")
@click.option("--key", "key_file", type=FILE, help="The key of our certificate.")
@click.option(
    "--application-uri", default=APPLICATION_URI, show_default=True, help="Application URI of a new certificate."
)
@click.option(
    "--renew", is_flag=True, help="Make the next certificate, for the same key; the present one stays in use."
)
@click.option("--activate", is_flag=True, help="Put the next certificate into use.")
@json_option
@click.pass_context
def certificate(
    ctx: click.Context,
    config_file: Path,
    pki_folder: Path,
    certificate_file: Path | None,
    key_file: Path | None,
    application_uri: str,
    renew: bool,
    activate: bool,
    as_json: bool,
) -> None:
    """Show our certificate and the file that a server imports. Create the certificate if there is none. It is that of
    the sources in node.toml; without any, that in --pki.

    To renew without an interruption: run with --renew, have every server trust the new file, then run with --activate.
    """
    if renew and activate:
        raise click.UsageError(
            "--renew and --activate are two steps; between them every server has to trust the new one"
        )
    is_named = ctx.get_parameter_source("pki_folder") is not ParameterSource.DEFAULT
    own, key = pki_folder / "own.der", pki_folder / "own.key"
    if not is_named and certificate_file is None and config_file.exists():
        own, key = _of_sources(config_file) or (own, key)
    own, key = certificate_file or own, key_file or key
    if renew:
        shown = renew_certificate(own, key)
        todo = "have every server trust this file, then run this command with --activate"
    elif activate:
        previous = activate_certificate(own, key)
        shown, todo = own, f"in use from the next connection on; the previous one is kept as {previous}"
    else:
        ensure_certificate(own, key, application_uri)
        shown, todo = own, "a server's operator imports this file as a trusted client"
    details, file = read_certificate(shown), file_to_import(shown)
    days = details.days_left(datetime.now(UTC))
    names = [*details.uris, *details.host_names]
    found = {"file": str(file), "sha1": details.sha1, "sha256": details.sha256, "names": names}
    print_either(
        {**found, "days_left": round(days, 1)},
        f"{file}: {days:.0f} days left, valid {details.validity}",
        f"  thumbprint  {details.sha1} (SHA-1)",
        f"  SHA-256     {details.sha256}",
        f"  names       {', '.join(names)}",
        f"  next: {todo}",
        as_json=as_json,
    )


def _of_sources(config_file: Path) -> tuple[Path, Path] | None:
    """Certificate and key of the secured sources in node.toml; None if there are none."""
    found = [(source.certificate_file, source.private_key_file) for source in load_sections(config_file).opcua]
    pairs = {(own, key) for own, key in found if own is not None and key is not None}
    if len(pairs) > 1:
        listed = " or ".join(sorted(str(own) for own, _ in pairs))
        raise click.UsageError(
            f"the sources in {config_file} use several: name one with --certificate and --key: {listed}"
        )
    return next(iter(pairs), None)
