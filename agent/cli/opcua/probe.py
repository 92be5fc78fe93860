"""`bsfg opcua test`: test the connection to a server step by step, and print the section for node.toml."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import Any

import click
from click.core import ParameterSource

from agent.cli import json_option, print_json
from agent.cli.opcua import PINNED, SECTION_BEGINS, SECTION_ENDS
from agent.cli.opcua.options import DEFAULT_MODE, DEFAULT_POLICY, connection_of, connection_options
from agent.cli.terminal import print_step
from agent.escaping import printable
from agent.ingest.opcua.explore.probe import Probe, section_of
from agent.settings.sources import OpcuaSourceSettings

_OWN = (  # options about ourselves that a further command needs as they were given
    ("pki_folder", "--pki"),
    ("certificate_file", "--certificate"),
    ("private_key_file", "--key"),
    ("application_uri", "--application-uri"),
)


@click.command()
@connection_options
@click.option("--trust", is_flag=True, help="Trust the server's certificate without asking.")
@json_option
def test(trust: bool, as_json: bool, **options: Any) -> None:
    """Test URL step by step: name, port, endpoints, certificates, session, state, clock, limits.

    Prints the [[opcua]] section to paste into node.toml; of a source that is there, only the line that changes. An
    unknown certificate of the server is shown and trusted on confirmation. Exit status 1 when a step fails.
    """
    is_source = "://" not in options["url"]
    given = connection_of(options)

    def confirm(verdict: Any) -> bool:
        if trust or as_json or not sys.stdin.isatty():
            return trust
        click.echo(f"  the server shows a certificate that {verdict.why}:", err=True)
        click.echo(f"    {printable(verdict.facts.subject)}, SHA-1 {verdict.facts.sha1}", err=True)
        click.echo(f"    SHA-256 {verdict.facts.sha256}", err=True)
        return click.confirm("  is that the thumbprint shown at the server? Trust it", err=True)

    probe = Probe(given.settings, given.password, given.is_chosen, confirm)
    failed = asyncio.run(_run(probe, as_json=as_json))
    text = section_of(probe.settings)
    if as_json:
        print_json({"section": None if failed else text})
    elif is_source:
        if (pin := probe.settings.server_certificate_sha256) != given.settings.server_certificate_sha256:
            name = given.settings.name
            click.echo(f'next: in node.toml, set server_certificate_sha256 = "{pin}" for {name}; then bsfg reload')
    elif not failed:
        click.echo(f"\n{SECTION_BEGINS}{text}", nl=False)
        if given.password:
            click.echo('password_file = "..."  # a file with the password, mode 0600')
        click.echo(f"{SECTION_ENDS}{_browse_command(probe.settings)}")
    if failed:
        if (
            not as_json
            and not is_source
            and (pin := probe.settings.server_certificate_sha256) != given.settings.server_certificate_sha256
        ):
            click.echo(
                f"{PINNED}{pin}"
            )  # a pin is stored in no folder: without this line the confirmation would be lost
        sys.exit(1)


async def _run(probe: Probe, *, as_json: bool) -> bool:
    """Print the steps. Returns whether one failed."""
    failed = False
    if not as_json:
        click.echo(probe.settings.url)
    async for step in probe.steps():
        failed |= step.is_failed
        print_step(step, as_json=as_json)
    return failed


def _browse_command(settings: OpcuaSourceSettings) -> str:
    """How to browse with the settings that worked."""
    words = ["bsfg", "opcua", "browse", settings.url]
    if settings.insecure:
        words.append("--insecure")
    elif (settings.security_policy, settings.security_mode) != (DEFAULT_POLICY, DEFAULT_MODE):
        words += ["--policy", settings.security_policy, "--mode", settings.security_mode]
    if settings.server_certificate_sha256:
        words += ["--server-sha256", settings.server_certificate_sha256]
    elif settings.server_certificate_file is not None:
        words += ["--server-certificate", str(settings.server_certificate_file)]
    context = click.get_current_context()
    for name, option in _OWN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += [option, str(context.params[name])]
    if settings.user_name:
        words += ["--user", settings.user_name]
    if settings.password_file is not None:
        words += ["--password-file", str(settings.password_file)]
    if settings.user_certificate_file is not None:
        words += ["--user-certificate", str(settings.user_certificate_file)]
        words += ["--user-key", str(settings.user_private_key_file)]
    return shlex.join([*words, "--csv", str(settings.tags_file)])
