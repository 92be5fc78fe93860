"""`bsfg peer`: the peers of this node and the connection to each.

`list` prints the configured peers and their state in the running node. `compare` compares the stored facts with a
peer's and repairs differences. `test` tries the connection step by step: configuration, name, TCP, TLS, identity,
rights, protocol, round trip, clocks, streams. It works with and without a running node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agent import local_socket
from agent.cli import config_option, json_option, print_json
from agent.cli.health.status import everything_option
from agent.cli.local_node import ask, load_settings
from agent.client import Client
from agent.errors import BsfgError
from agent.health.brief import SHOWN_MAX
from agent.health.problems import counted
from agent.settings.host import host_and_port
from agent.settings.node import NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings

if TYPE_CHECKING:
    from agent.replication.broker import BrokerTarget, Peer

CONNECTED = "connected"
COMPARE_MS_MAX = 6 * 3600 * 1000  # to read a store of a hundred gigabytes and fetch a tenth of it again


@click.group()
def peer() -> None:
    """List the peers of this node, test a connection, compare what is stored."""


@peer.command(name="list")
@config_option
@everything_option
@json_option
def list_command(config_file: Path, everything: bool, as_json: bool) -> None:
    """List the configured peers and their state in the running node; of many peers ten, without --all or --json."""
    settings = load_settings(config_file)
    state = _state(settings)
    listed = list(settings.peer)
    if len(listed) > SHOWN_MAX and not everything and not as_json:
        up = sum(found.startswith(CONNECTED) for found in state.values())
        said = f", {up:,} connected" if state else ""
        click.echo(
            f"{len(listed):,} peers{said}; --all lists all, here are {SHOWN_MAX}, those without connection first:"
        )
        listed = sorted(listed, key=lambda peer: _rank(state.get(peer.node, "")))[:SHOWN_MAX]
    for peer in listed:
        found = state.get(peer.node, "")
        if as_json:
            print_json({**asdict(peer), "state": found or None})
            continue
        click.echo(f"{peer.node:<24} at {peer.broker}{f': {found}' if found else ''}")
        for what in ("exports", "pulls", "relays", "appends"):
            if streams := getattr(peer, what):
                click.echo(f"  {what:<8} {', '.join(streams)}")
    if not settings.peer and not as_json:
        click.echo(f"{config_file} names no [[peer]]")


@peer.command()
@click.argument("name", metavar="NODE")
@config_option
@json_option
def test(name: str, config_file: Path, as_json: bool) -> None:
    """Test each step of the connection between this node and NODE. Exit status 1 when a step fails."""
    from agent.replication.broker import CheckOutcome, check_peer

    settings = load_settings(config_file)
    tested = named_peer(settings, name)
    at = broker_of(settings, tested)
    if not as_json:
        click.echo(f"{settings.node.name} to {name} at broker {at.name} ({host_and_port(at.host, at.port)})")
    bad = 0
    for step in check_peer(target_at(settings, at), peer_of(tested)):
        bad += step.is_bad
        if as_json:
            printed = {"broker": at.name, "step": step.step, "outcome": step.outcome.value}
            print_json({**printed, "what": step.what, "hint": step.hint, **step.figures})
            continue
        hint = f"\n{'':23}-> {step.hint}" if step.hint else ""
        word = {CheckOutcome.GOOD: "ok", CheckOutcome.NOTE: "note", CheckOutcome.BAD: "failed"}[step.outcome]
        click.echo(f"  {word:<7} {step.step:<13} {step.what}{hint}")
    if bad:
        sys.exit(1)


def named_peer(settings: NodeSettings, name: str) -> PeerSettings:
    """The peer of this name. Raises UsageError where node.toml names none."""
    found = next((peer for peer in settings.peer if peer.node == name), None)
    if found is None:
        known = ", ".join(sorted(peer.node for peer in settings.peer)) or "none"
        if len(settings.peer) > SHOWN_MAX:
            known = f"{len(settings.peer):,} others"
        raise click.UsageError(f"node.toml names no peer {name!r}; it names {known}")
    return found


def broker_of(settings: NodeSettings, peer: PeerSettings) -> BrokerSettings:
    """The broker over which a peer is reached."""
    return next(broker for broker in settings.broker if broker.name == peer.broker)


def target_at(settings: NodeSettings, at: BrokerSettings) -> BrokerTarget:
    """A broker, and our identity there."""
    from agent.replication.broker import BrokerTarget

    return BrokerTarget(at.host, at.port, settings.node.name, at.ca_file, at.cert_file, at.key_file)


def peer_of(settings: PeerSettings) -> Peer:
    """The properties of a peer that its test needs."""
    from agent.replication.broker import Peer

    return Peer(
        settings.node, bool(settings.exports or settings.appends), settings.pulls, bool(settings.pulls or settings.asks)
    )


@peer.command()
@click.argument("name", metavar="NODE")
@config_option
@click.option("--repair", is_flag=True, help="Fetch what is missing or damaged here.")
@click.option("--scan", is_flag=True, help="First read everything stored here to find damage.")
@json_option
def compare(name: str, config_file: Path, repair: bool, scan: bool, as_json: bool) -> None:
    """Compare what was pulled from NODE with NODE's store, by digests. Exit status 1 when a difference is left
    unrepaired."""
    from agent.node import compare_alone

    settings = load_settings(config_file)
    request = local_socket.ComparePeer(name, repair, scan)
    answer = ask(settings, request, local_socket.Compared, COMPARE_MS_MAX, compare_alone)
    for stream in answer.streams:
        if as_json:
            print_json(msgspec.to_builtins(stream))
            continue
        for line in _lines(name, stream):
            click.echo(line)
    if any(stream.repaired_ranges < stream.divergent_ranges or stream.missing_artifacts for stream in answer.streams):
        sys.exit(1)


def _lines(node: str, stream: local_socket.ComparedStream) -> Iterator[str]:
    """The comparison of one stream as lines for people."""
    equal = "equal" if not stream.divergent_ranges else f"{stream.divergent_ranges} ranges differ"
    cost = f"{stream.exchanges} exchanges, {stream.bytes:,} bytes"
    yield f"{stream.stream}: {stream.compared_facts:,} facts compared with {node}, {equal} ({cost})"
    for what, places in (("missing here", stream.missing), ("damaged here", stream.damaged)):
        for origin, first, last in places:
            yield f"  {what}: {origin} {first:,} to {last:,}"
    for zone_of, count in stream.damaged_definitions:
        yield f"  damaged here: some of the first {count:,} tag definitions of {zone_of}"
    for why in stream.forks:
        yield f"  fork: {why}"
    if stream.repaired_ranges:
        yield f"  repaired: {stream.repaired_ranges} ranges, {stream.repaired_facts:,} facts"
    if stream.repaired_definitions:
        yield f"  repaired: {stream.repaired_definitions:,} tag definitions"
    if stream.repaired_artifacts:
        yield f"  repaired: {stream.repaired_artifacts:,} artifacts"
    if stream.unavailable_facts:
        yield f"  not available from {node}: {stream.unavailable_facts:,} facts"
    if stream.missing_artifacts:
        yield f"  missing here: {stream.missing_artifacts:,} artifacts to which facts refer"
    for why in stream.refused:
        yield f"  not accepted: {why}"


def _rank(state: str) -> tuple[bool, bool]:
    """Orders peers: those without connection first, then those with a pull that is behind or blocked."""
    return state.startswith(CONNECTED), state == CONNECTED


def _state(settings: NodeSettings) -> dict[str, str]:
    """Whether each peer is connected, and which pulls from it are behind or blocked, by node, from the running node;
    empty when no node runs. Of a peer from which nothing is pulled: only that its broker is not connected."""
    try:
        found = Client(settings.node.state_dir).status(everything=True)
    except BsfgError:
        return {}
    down = {
        broker["name"]: " ".join(broker["trouble"].split()) for broker in found["brokers"] if not broker["connected"]
    }
    states = {peer.node: f"not connected: {down[peer.broker]}" for peer in settings.peer if peer.broker in down}
    for peer in found["peers"]:
        has_answered = peer["connected"] or peer["blocked"]
        link = "fenced, stopped" if peer["fenced"] else f"not connected: {down.get(peer['broker']) or peer['trouble']}"
        link = CONNECTED if has_answered else link
        if has_answered or peer["zone"] not in states:
            states[peer["zone"]] = link
    blocked: dict[tuple[str, str], list[str]] = {}
    for peer in found["peers"]:
        if behind := max(0, peer["end_offset"] - peer["position"]):
            states[peer["zone"]] += f"; {peer['stream']} is {counted(behind, 'fact')} behind"
        if peer["blocked"]:
            blocked.setdefault((peer["zone"], peer["trouble"].rstrip(".")), []).append(peer["stream"])
    for (zone, trouble), streams in blocked.items():
        states[zone] += f"; {', '.join(streams)} {'is' if len(streams) == 1 else 'are'} blocked: {trouble}"
    return states
