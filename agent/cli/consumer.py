"""`bsfg consumer list`, `add`, `remove`: the consumers of this node's streams, and what retention keeps for each.

The commands ask the running node, which has the last activity of each consumer; if no node runs, they read the store.
Facts stay on this gateway until every consumer has confirmed them, so remove a consumer that is no longer needed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from agent import local_socket
from agent.cli import config_option, json_option, print_either, print_json, table
from agent.cli.local_node import (
    answer_s_option,
    ask,
    load_settings,
    node_client,
    start_option,
    to_option,
    unknown_stream,
)
from agent.message import LOCAL_ZONE
from agent.page.words import size
from agent.pages import Start

_COLUMNS = ("consumer", "stream", "zone", "state", "frontier", "behind", "holds back", "hours", "last seen", "lease")


@click.group()
def consumer() -> None:
    """The consumers of this node's streams, and the facts kept for each."""


@consumer.command("list")
@config_option
@json_option
def list_(config_file: Path, as_json: bool) -> None:
    """List every consumer: its frontier, the facts kept for it, and when it was last seen."""
    answer = ask(load_settings(config_file), local_socket.ListConsumers(), local_socket.Consumers)
    if as_json:
        print_json([msgspec.to_builtins(entry) for entry in answer.consumers])
    elif not answer.consumers:
        click.echo("no consumers: facts are kept until ttl_hours have passed")
    else:
        for line in table.lines(_COLUMNS, [_row(entry) for entry in answer.consumers], "table"):
            click.echo(line)


@consumer.command()
@config_option
@click.option("--stream", required=True, help="The stream that the consumer reads. It cannot be changed later.")
@click.option("--zone", help="The zone that the consumer belongs to.  [default: local, this machine]")
@start_option
@click.argument("name")
@json_option
def add(config_file: Path, stream: str, zone: str | None, start: Start, name: str, as_json: bool) -> None:
    """Register the consumer NAME. From now on facts are kept for it. An existing consumer does not change."""
    settings = load_settings(config_file)
    request = local_socket.RegisterConsumer(name, stream, start, zone or LOCAL_ZONE)
    known = sorted(entry.name for entry in node_client(settings).streams() if entry.end_offset)
    answer = ask(settings, request, local_socket.Registered)
    found = {"consumer": name, "stream": answer.stream, "frontier": answer.frontier}
    print_either(found, f"{name} reads {answer.stream} from offset {answer.frontier + 1}", as_json=as_json)
    if known and stream not in known:  # not refused: a consumer may exist before the first fact
        click.echo(unknown_stream(known, stream, name), err=True)


@consumer.command()
@config_option
@to_option
@answer_s_option
@click.option("--force", is_flag=True, help="Remove it even if it fetched or confirmed recently.")
@click.option("--now", is_flag=True, help="Remove it at once, without the delay of ten minutes.")
@click.argument("name")
@json_option
def remove(
    config_file: Path, peer: str | None, answer_s: float, force: bool, now: bool, name: str, as_json: bool
) -> None:
    """Remove the consumer NAME and print which facts were kept for it. With --to, remove a consumer of this zone at a
    peer; this takes effect at once."""
    if peer is not None and (force or now):
        raise click.UsageError("--force and --now are for consumers of this node; with --to it is removed at once")
    settings = load_settings(config_file)
    if peer is not None:
        from agent.cli.facts.peer_requests import unregister_consumer  # MQTT is slow to import

        if not unregister_consumer(settings, peer, name, answer_s):
            raise click.ClickException(f"{peer} has no consumer {name}")
        print_either({"state": "deleted"}, f"{name} is removed at {peer}", as_json=as_json)
        return
    answer = ask(settings, local_socket.RemoveConsumer(name, force, now), local_socket.Removed)
    was = answer.was
    if as_json:
        print_json({"state": answer.state, "was": msgspec.to_builtins(was)})
        return
    if answer.state == "deleted":
        click.echo(f"{name} is removed")
    else:
        click.echo(f"{name} will be removed in 10 minutes, unless it fetches or confirms before then")
    if was.behind_facts:
        old = "" if was.held_hours is None else f", the oldest {was.held_hours:.1f} h old"
        click.echo(
            f"it had not confirmed {was.behind_facts} facts, {size(was.held_bytes)}{old}; they may now be released"
        )


def _row(entry: local_socket.ConsumerEntry) -> tuple[object, ...]:
    hours = "" if entry.held_hours is None else f"{entry.held_hours:.1f}"
    at_s = None if entry.seen_unix_ms is None else entry.seen_unix_ms // 1000
    seen = "never" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = f"{entry.state}, in sync" if entry.in_sync else entry.state
    lease = f"{entry.lease_epoch} {entry.lease_holder}" if entry.lease_epoch else ""
    held = size(entry.held_bytes) if entry.held_bytes else ""
    return (entry.name, entry.stream, entry.zone, state, entry.frontier, entry.behind_facts, held, hours, seen, lease)
