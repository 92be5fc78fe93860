"""`bsfg append` and `bsfg lease`: append one fact, or take a producer's lease, at this node or with `--to` at a peer's.

The running node is asked at its local socket; where none runs, the command opens the store itself and handles the
request in the same way.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import get_args

import click
import msgspec

from agent.append_contract import STORED
from agent.cli import config_option, json_option, print_either, print_json, refuse_given
from agent.cli.local_node import answer_s_option, ask, load_settings, node_client, to_option
from agent.local_socket import LocalError
from agent.message import Envelope, canonical_json, parse_json
from agent.replication.protocol.messages import (
    AcquireLease,
    AppendAnswer,
    AppendedEntry,
    AppendFact,
    LeaseAnswer,
    NewFact,
    NewMessage,
)
from agent.settings.node import NodeSettings
from agent.settings.store import Acks, StreamSettings

stream_option = click.option("--stream", default="facts.operational", show_default=True, help="The stream.")


@click.command()
@config_option
@stream_option
@click.option(
    "--new-stream", is_flag=True, help="Begin the stream if it does not exist; one in node.toml needs no flag."
)
@to_option
@answer_s_option
@click.option(
    "--message-id", help="A message with the same id and content is stored once.  [default: a hash of the fact]"
)
@click.option(
    "--to-zone", default="*", show_default=True, help="The zone that the fact is meant for; it does not route the fact."
)
@click.option("--correlation-id", help="Id that related messages share.")
@click.option("--causation-id", help="message_id of the message that caused this one.")
@click.option(
    "--media-type",
    help="Media type of the artifact that the fact refers to, as application/pdf (see `bsfg object put`).",
)
@click.option("--acks", type=click.Choice(get_args(Acks)), help="When to answer.  [default: the stream's acks]")
@click.option("--producer", help="The producer that holds the lease; needs --lease-epoch.")
@click.option("--lease-epoch", type=click.IntRange(1), help="Refuse if a newer lease is in force (see `bsfg lease`).")
@click.option(
    "--base-offset", type=click.IntRange(0), help="Refuse if the subject has a newer fact; strong streams only."
)
@click.argument("subject")
@click.argument("predicate")
@click.argument("object_json")
@json_option
def append(
    config_file: Path,
    stream: str,
    new_stream: bool,
    peer: str | None,
    answer_s: float,
    message_id: str | None,
    to_zone: str,
    correlation_id: str | None,
    causation_id: str | None,
    media_type: str | None,
    acks: Acks | None,
    producer: str | None,
    lease_epoch: int | None,
    base_offset: int | None,
    subject: str,
    predicate: str,
    object_json: str,
    as_json: bool,
) -> None:
    """Append the fact SUBJECT PREDICATE OBJECT_JSON once; return when it is durable here, or as --acks says."""
    settings = load_settings(config_file)
    content = canonical_json(parse_json("object_json", object_json.encode()))
    envelope = Envelope(
        message_id=message_id or _content_id(subject, predicate, content),
        from_zone=settings.node.zone,
        to_zone=to_zone,
        produced_at_unix_ms=time.time_ns() // 1_000_000,
        correlation_id=correlation_id,
        causation_id=causation_id,
        object_media_type=media_type,
    )
    message = NewMessage(
        envelope=envelope,
        fact=NewFact(subject=subject, predicate=predicate, object=msgspec.Raw(content)),
        producer=producer,
        lease_epoch=lease_epoch,
        base_offset=base_offset,
    )
    request = AppendFact(stream=stream, messages=[message], acks=acks)
    if peer is None:
        if not new_stream and stream not in _configured(settings):
            _check_stream(settings, stream)
        answer = _append_here(settings, request)
    else:
        refuse_given(["new_stream"], "begins a stream of this node; a peer takes those that its node.toml names")
        from agent.cli.facts.peer_requests import append_fact  # MQTT is slow to import

        answer = append_fact(settings, peer, request, answer_s)
    if answer.warning:
        click.echo(f"bsfg: warning: {answer.warning}", err=True)
    outcome, offset, in_force = answer.outcome, answer.offset, answer.lease_epoch
    if as_json:
        shown = {"offset": offset, "outcome": outcome, "message_id": envelope.message_id}
        also = {"warning": answer.warning, "lease_epoch": in_force}
        print_json(shown | {name: value for name, value in also.items() if value})
    elif outcome == "rejected_fenced":
        click.echo(
            f"{outcome}: lease epoch {in_force} of {producer} is in force; "
            "stop this producer, or take a lease (bsfg lease)"
        )
    else:
        click.echo(f"{outcome}: offset {offset} of {stream}, message_id {envelope.message_id}")
    sys.exit(0 if outcome in STORED else 1)


@click.command()
@config_option
@stream_option
@to_option
@answer_s_option
@click.argument("producer")
@json_option
def lease(config_file: Path, stream: str, peer: str | None, answer_s: float, producer: str, as_json: bool) -> None:
    """Take and print a new lease epoch for PRODUCER. From now on, appends with a lower epoch are refused."""
    settings = load_settings(config_file)
    if peer is None:
        epoch = ask(settings, AcquireLease(stream=stream, producer=producer), LeaseAnswer).lease_epoch
        assert epoch is not None  # no lease_after was named
    else:
        from agent.cli.facts.peer_requests import acquire_lease  # MQTT is slow to import

        epoch = acquire_lease(settings, peer, stream, producer, answer_s)
    print_either({"lease_epoch": epoch}, str(epoch), as_json=as_json)


def _configured(settings: NodeSettings) -> set[str]:
    """The streams that node.toml names, and the default one."""
    of_peers = (name for peer in settings.peer for name in (*peer.exports, *peer.appends))
    return {"facts.operational", *(stream.name for stream in settings.stream), *of_peers}


def _check_stream(settings: NodeSettings, stream: str) -> None:
    """Raise LocalError for a stream that the store does not have."""
    known = [entry.name for entry in node_client(settings).streams()]
    if stream not in known:
        hint = f"there are: {', '.join(known) or 'none'}; to begin it: --new-stream, or a [[stream]] in node.toml"
        raise LocalError(f"there is no stream {stream!r}", hint)


def _append_here(settings: NodeSettings, request: AppendFact) -> AppendedEntry:
    named = [stream for stream in settings.stream if stream.name == request.stream] or [StreamSettings(request.stream)]
    return ask(settings, request, AppendAnswer, waits_ms=named[0].acks_timeout_ms).outcomes[0]


def _content_id(subject: str, predicate: str, content: bytes) -> str:
    """A hash of the fact, so that a repeated command stores it once."""
    return hashlib.sha256(b"\0".join((subject.encode(), predicate.encode(), content))).hexdigest()
