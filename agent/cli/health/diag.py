"""`bsfg diag`: one file for support. It shows what would be in it, and asks before it writes.

Nothing secret is in it: no key, no password, no certificate, no fact. Settings are those of node.toml with the values
of names that could hold a secret taken out.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import click

from agent import __version__
from agent.cli import FILE, config_option, write_whole
from agent.cli.local_node import load_settings
from agent.config import SECRET_NAME, USER_OF_URL

COMMAND_S = 60.0
LOG_LINES = 2_000
PEERS_MAX = 5  # a test takes up to a minute
SECRET = re.compile(
    rf"""(?xis)
    ( [\w-]* (?:{SECRET_NAME.pattern}|user_name|smtp_user) [\w-]* (?<!_file) ["']? [ \t]* = [ \t]* )
    ( \"{{3}} .*? (?: \"{{3}} | \Z ) | '{{3}} .*? (?: '{{3}} | \Z ) | [^\n]* )  # in an inline table also what follows it
    """
)


def without_secrets(text: str) -> str:
    """Settings whose values that could be secret are hidden. The names of files and the numbers of lines stay."""
    text = USER_OF_URL.sub("hidden", text)
    return SECRET.sub(lambda found: f'{found[1]}"hidden"{chr(10) * found[2].count(chr(10))}', text)


@click.command()
@config_option
@click.option("--out", type=FILE, help="The file.  [default: bsfg-diag-ZONE-TIME.tar.gz]")
@click.option("--yes", is_flag=True, help="Do not ask.")
def diag(config_file: Path, out: Path | None, yes: bool) -> None:
    """Write one file for support: settings without secrets, status, checks, store statistics, log, versions, peer
    tests."""
    settings = load_settings(config_file)
    node = settings.node.name
    file = out or Path(f"bsfg-diag-{node}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    if os.path.lexists(file):  # before the tests
        raise click.ClickException(f"{file} exists; name another file with --out")
    parts = _parts(config_file, node, [peer.node for peer in settings.peer[:PEERS_MAX]])
    click.echo("The file for support will have:")
    for name, (about, _) in parts.items():
        click.echo(f"  {name:<16} {about}")
    click.echo("It has no key, no password, no certificate and no fact.")
    try:
        is_wanted = yes or click.confirm("Write it?")
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("there is no terminal to ask; give --yes") from None
    if not is_wanted:
        sys.exit(1)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, (_, read) in parts.items():
            data = read().encode(errors="replace")
            entry = tarfile.TarInfo(f"bsfg-diag/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o640
            tar.addfile(entry, io.BytesIO(data))
    write_whole(file, packed.getvalue(), 0o600)
    click.echo(f"{file}: {len(packed.getvalue()) / 1000:,.0f} kB")


def _parts(config_file: Path, zone: str, peers: list[str]) -> dict[str, tuple[str, Callable[[], str]]]:
    """By name: what it is, and what reads it."""

    def bsfg(*words: str) -> Callable[[], str]:
        return lambda: _output([sys.executable, "-m", "agent.cli", *words, "--config", str(config_file)])

    log = f"journalctl -u bsfg@{zone} -u bsfg-page@{zone} -n {LOG_LINES} --no-pager -o short-iso".split()
    tests = {f"peer-{peer}.txt": (f"bsfg peer test {peer}", bsfg("peer", "test", peer)) for peer in peers}
    return tests | {
        "node.toml": ("the settings, without secrets", lambda: without_secrets(_text(config_file))),
        "check.txt": ("bsfg check", bsfg("check")),
        "status.json": ("bsfg status --all --json", bsfg("status", "--all", "--json")),
        "fleet.json": ("bsfg fleet --json: the zones below", bsfg("fleet", "--json")),
        "store.json": ("bsfg store stats --json: counts and sizes", bsfg("store", "stats", "--json")),
        "peers.txt": ("bsfg peer list", bsfg("peer", "list")),
        "log.txt": (f"the last {LOG_LINES:,} log lines of node and page", lambda: _output(log)),
        "versions.json": ("versions of the program, Python, the system", _versions),
    }


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError as error:
        return f"{error}\n"


def _output(words: list[str]) -> str:
    """What a command prints, and its exit status."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n"
    return f"{done.stdout}{done.stderr}[exit status {done.returncode}]\n"


def _versions() -> str:
    packages = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    found = {"bsfg": __version__, "python": sys.version, "system": platform.platform(), "packages": packages}
    return json.dumps(found, indent=1, sort_keys=True)
