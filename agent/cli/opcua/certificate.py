"""`bsfg opcua certificate`: show or create our own certificate, which servers must trust, and renew it in two steps, so
that no server sees an unknown certificate.

Where there is a node.toml with secured sources, it is the certificate that they use."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
from click.core import ParameterSource

from agent.cli import FILE, config_option, json_option, print_either
from agent.cli.opcua.options import pki_option
from agent.config import load_sections
from agent.ingest.opcua.security.certificate import (
    activate_certificate,
    ensure_certificate,
    file_to_import,
    read_certificate,
    renew_certificate,
)
from agent.settings.sources import APPLICATION_URI


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
