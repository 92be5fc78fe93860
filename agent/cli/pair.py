"""`bsfg pair`: this node as one of two that record for one zone. `status` says which one leads; `switch` hands the lead
over, before maintenance.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from agent import local_socket
from agent.cli import config_option, json_option, print_json
from agent.cli.health.status import reason_lines
from agent.cli.local_node import ask, load_settings
from agent.client import Client
from agent.errors import BsfgError
from agent.escaping import printable
from agent.health.problems import duration
from agent.health.snapshot import RECORDING
from agent.health.verdict import HEARD_MS, PAIR

SWITCH_MS_MAX = 60_000  # to read no more, to commit, to be pulled, and for the other node to begin
SAID = {"releases": "follows, leaves the lead to this node"}
"""What the other one says of itself, where that is a word of the protocol."""


class NoPair(BsfgError):
    """No other node records for the zone of this one."""

    hint = "[pair] of node.toml names the other node (docs/how-to/two-gateways.md)"


@click.group()
def pair() -> None:
    """Two gateways that record for one zone: which one leads, and a planned change."""


@pair.command()
@config_option
@json_option
def status(config_file: Path, as_json: bool) -> None:
    """Say which of the two nodes leads, and when this one heard the other and the witness. Exit status 1 if none leads,
    both record, or one refuses to say who leads."""
    found, reasons = _pair_of(config_file)
    if as_json:
        print_json(found)
    else:
        about = [reason for reason in reasons if reason["subject"] == PAIR]
        causes = {PAIR, *(cause for reason in about for cause in reason["caused_by"])}
        about = [reason for reason in reasons if reason["subject"] in causes]
        for line in [*_lines(found), *(line for reason in about for line in reason_lines(reason, is_hinted=True))]:
            click.echo(printable(line))
    heard_ms = found["partner_heard_ms"]  # what a leader said before it died, and this node began, says nothing of now
    now_ms = min(HEARD_MS, time.time() * 1000 - found["since_unix_ms"])
    partner_leads = found["partner_state"] == "leads" and heard_ms is not None and heard_ms < now_ms
    if not found["leader"] or found["refusals"] or (found["role"] in RECORDING and partner_leads):
        raise SystemExit(1)


@pair.command()
@config_option
def switch(config_file: Path) -> None:
    """Hand the lead over to the other node: stop reading, wait until the other one holds everything, let it begin. Exit
    status 1 if it could not; then this node records on."""
    settings = load_settings(config_file)
    began_s = time.monotonic()
    answer = ask(settings, local_socket.SwitchPair(), local_socket.PairSwitched, waits_ms=SWITCH_MS_MAX)
    click.echo(f"{answer.leader} leads now, after {time.monotonic() - began_s:.1f} s; this node follows")


def _pair_of(config_file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The pair as the running node knows it, and the node's problems."""
    status = Client(load_settings(config_file).node.state_dir).status()
    found = status.get("pair")
    if not found:
        raise NoPair(f"{config_file} has no [pair], or the node was not restarted since")
    return dict(found), list(status["reasons"])


def _lines(found: dict[str, Any]) -> list[str]:
    since = duration(time.time() - found["since_unix_ms"] / 1000)
    lines = [f"{found['zone']}: {found['leader'] or 'no node'} leads; this node {found['role']} for {since}"]
    if found["term"]:
        lines.append(f"  term      {found['term']}")
    heard_ms = found["partner_heard_ms"]
    said = "" if heard_ms is not None and heard_ms < HEARD_MS else "last said "
    state = f", {said}{SAID.get(found['partner_state'], found['partner_state'])}" if found["partner_state"] else ""
    lines.append(f"  partner   {found['partner']}{state}, {_heard(heard_ms)}")
    if found["witness"]:
        lines.append(f"  witness   {found['witness']}, {_heard(found['witness_heard_ms'])}")
    return lines


def _heard(ms: int | None) -> str:
    return "has not answered" if ms is None else f"heard {ms / 1000:.1f} s ago"
