"""The options of every command that connects to a server, and the source settings made from them.

A password comes from a file or a prompt, never from the command line, where every process of the machine can read it.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from agent.cli import FILE, FOLDER, refuse_given
from agent.cli.node_choice import NodeFileParam, default_file
from agent.cli.prepare import unit
from agent.cli.source.access import named_source
from agent.config import load
from agent.ingest.opcua.explore.probe import check_settings
from agent.settings.host import host_of
from agent.settings.sources import APPLICATION_URI, OpcuaSourceSettings, SecurityMode, SecurityPolicy

_Command = TypeVar("_Command", bound=Callable[..., Any])
DEFAULT_POLICY: SecurityPolicy = "Basic256Sha256"
DEFAULT_MODE: SecurityMode = "SignAndEncrypt"


def _folder(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path:
    """The folder with the identity of the node, if it is one that systemd runs: a second identity would have to be
    trusted by every server, too. What root writes there is given to the node, which reads it."""
    file = ctx.params.get("config_file") or default_file()
    if value is not None or not unit.is_of_unit(file):
        return value or Path("pki/opcua")
    folder = unit.state_dir_of(file) / "opcua"
    ctx.call_on_close(lambda: _give_to_node(folder))
    return folder


def _give_to_node(folder: Path) -> None:
    """Give files of root to the user of the node. A link is given itself, not what it points to."""
    if os.geteuid() != 0 or not folder.exists():
        return
    try:
        user = pwd.getpwnam(unit.USER)
    except KeyError:
        return
    for path in (folder.parent, folder, *folder.rglob("*")):
        if path.lstat().st_uid == 0:
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


pki_option = click.option(
    "--pki",
    "pki_folder",
    type=FOLDER,
    show_default="opcua in the state folder of a node in /etc/bsfg, else pki/opcua",
    envvar="BSFG_OPCUA_PKI",
    show_envvar=True,
    callback=_folder,
    help="The folder of our certificate (own.der, own.key) and of those that are trusted.",
)
_OPTIONS = (
    click.argument("url", metavar="URL"),
    click.option(
        "--config",
        "config_file",
        type=NodeFileParam(),
        default=default_file,
        help="If URL is the name of a source: its node.toml.",
    ),
    pki_option,
    click.option("--certificate", "certificate_file", type=FILE, help="Our certificate, instead of the one in --pki."),
    click.option("--key", "private_key_file", type=FILE, help="The key of our certificate."),
    click.option(
        "--policy",
        type=click.Choice([p for p in get_args(SecurityPolicy) if p != "None"]),
        help="Use only this policy.",
    ),
    click.option(
        "--mode", type=click.Choice([m for m in get_args(SecurityMode) if m != "None"]), help="Use only this mode."
    ),
    click.option("--insecure", is_flag=True, help="Neither sign nor encrypt (policy None)."),
    click.option("--server-certificate", "server_certificate_file", type=FILE, help="Pin this server certificate."),
    click.option(
        "--server-sha256", "server_certificate_sha256", default="", help="Pin the server certificate with this SHA-256."
    ),
    click.option(
        "--application-uri",
        default=APPLICATION_URI,
        show_default=True,
        help="Our application URI, as in our certificate.",
    ),
    click.option("--user", "user_name", default="", help="A user name; a prompt asks for the password."),
    click.option("--password-file", type=FILE, help="A file with the password, instead of a prompt."),
    click.option(
        "--user-certificate", "user_certificate_file", type=FILE, help="A certificate that identifies the user."
    ),
    click.option("--user-key", "user_private_key_file", type=FILE, help="The key of the user certificate."),
    click.option(
        "--timeout-ms",
        "request_timeout_ms",
        type=click.IntRange(500, 120_000),
        default=10_000,
        show_default=True,
        help="Time limit for each answer.",
    ),
)


@dataclass(frozen=True, slots=True)
class SourceConnection:
    """The settings of a source, the password if it was asked for, and whether policy or mode were chosen."""

    settings: OpcuaSourceSettings
    password: str
    is_chosen: bool


def connection_options(command: _Command) -> _Command:
    """Give a command URL and the options; it gets them as keyword arguments for `connection_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def connection_of(options: dict[str, Any]) -> SourceConnection:
    """The settings that the options mean. Raises SourceRefused for those that no source may have."""
    url, config_file, pki = options.pop("url"), options.pop("config_file"), options.pop("pki_folder")
    if "://" not in url:
        if ":" in url or "/" in url:  # not a name of a source; node.toml need not exist
            raise click.UsageError(f"{url}: a URL begins with opc.tcp://, as opc.tcp://{url}")
        refuse_given(["pki_folder", *options], "goes with a URL; the settings of a source are in node.toml")
        kind = "OPC UA source (a URL begins with opc.tcp://)"
        return SourceConnection(named_source(load(config_file).opcua, url, config_file, kind), "", is_chosen=True)
    policy: SecurityPolicy | None = options.pop("policy")
    mode: SecurityMode | None = options.pop("mode")
    is_chosen = bool(policy or mode)
    if options["insecure"]:
        if is_chosen:
            raise click.UsageError("--insecure cannot be combined with --policy or --mode")
        policy = mode = "None"
    for name, file in (("certificate_file", "own.der"), ("private_key_file", "own.key")):
        options[name] = options[name] or (None if options["insecure"] else pki / file)
    name = re.sub(r"[^a-z0-9._-]+", "-", host_of(url).lower()).strip("-._") or "plc"
    password = ""
    wanted = OpcuaSourceSettings(
        name,
        url,
        Path(f"tags.d/{name}.csv"),
        security_policy=policy or DEFAULT_POLICY,
        security_mode=mode or DEFAULT_MODE,
        trust_folder=None if options["insecure"] and not options["user_name"] else pki,
        **options,
    )
    if wanted.user_name and wanted.password_file is None:
        check_settings(replace(wanted, password_file=Path("password")))
        password = _prompt(wanted.user_name)
    else:
        check_settings(wanted)
    return SourceConnection(wanted, password, is_chosen)


def _prompt(user: str) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask for the password of {user}; give --password-file")
    return str(click.prompt(f"password of {user}", hide_input=True, err=True))
