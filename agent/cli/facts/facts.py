"""`bsfg append`, `fetch`, `confirm`, `tail`: facts by hand, on the machine of the node.

Reading opens the store's file, read-only, whether a node runs or not. Writing asks the running node at its socket; where none
runs, the command opens the store itself and goes through the same door. With `--to`, an append goes to a peer's node across the
broker and is answered in the same words. Facts are printed as JSON lines: offset, envelope and fact as the specification shows them,
samples presented as messages.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import click

from agent import local_socket
from agent.append_contract import STORED, Told, told
from agent.cli import config_option, json_option
from agent.cli.door import answer_s_option, ask, start_option, to_option
from agent.config import NodeSettings, load
from agent.fact_store import Acks, Hole, Start, StoreReader, StreamSettings
from agent.message import Envelope, Fact, canonical_json, parse_json
from agent.query.scan import fact_messages

OPERATIONAL = "facts.operational"
FOLLOW_S = 0.2

stream_option = click.option("--stream", default=OPERATIONAL, show_default=True, help="The stream.")


@click.command()
@config_option
@stream_option
@to_option
@answer_s_option
@click.option("--message-id", help="Same id and content again is stored once.  [default: a hash of the fact]")
@click.option("--to-zone", default="*", show_default=True, help="Whom the fact is meant for; not a route.")
@click.option("--correlation-id", help="The wider conversation.")
@click.option("--causation-id", help="message_id of the immediate cause.")
@click.option(
    "--media-type", help="What the artifact is that the fact refers to (application/pdf; see `bsfg object put`)."
)
@click.option("--acks", type=click.Choice(get_args(Acks)), help="When to answer.  [default: the stream's acks]")
@click.option("--producer", help="Who appends, for a lease; goes with --lease-epoch.")
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
    as_json: bool,  # noqa: FBT001 click passes options by name
) -> None:
    """Append the fact SUBJECT PREDICATE OBJECT_JSON, once; return when it is durable, here or where `acks` says."""
    settings = load(config_file)
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
    request = local_socket.AppendFact(
        stream, envelope, Fact(subject, predicate, content), acks, producer, lease_epoch, base_offset
    )
    answer = _append_here(settings, request) if peer is None else _append_there(settings, peer, request, answer_s)
    if answer["warning"]:
        click.echo(f"bsfg: warning: {answer['warning']}", err=True)
    outcome, offset, in_force = answer["outcome"], answer["offset"], answer["lease_epoch"]
    if as_json:
        shown = {"offset": offset, "outcome": outcome, "message_id": envelope.message_id}
        also = {"warning": answer["warning"], "lease_epoch": in_force}
        click.echo(json.dumps(shown | {name: value for name, value in also.items() if value}))
    elif outcome == "rejected_fenced":
        click.echo(f"{outcome}: lease epoch {in_force} of {producer} is in force; stop, or acquire a lease")
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
def lease(config_file: Path, stream: str, peer: str | None, answer_s: float, producer: str, as_json: bool) -> None:  # noqa: FBT001 click passes options by name
    """Print a new lease epoch for PRODUCER, higher than every one before: appends with a lower one are refused from now on."""
    settings = load(config_file)
    if peer is None:
        epoch = cast(local_socket.LeaseAcquired, ask(settings, local_socket.AcquireLease(stream, producer))).lease_epoch
    else:
        from agent.cli.facts.append_to import acquire_lease

        epoch = acquire_lease(settings, peer, stream, producer, answer_s)
    click.echo(json.dumps({"lease_epoch": epoch}) if as_json else str(epoch))


@click.command()
@config_option
@stream_option
@click.option("--consumer", required=True, help="The durable reader; registered at its first fetch.")
@start_option
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Facts at most.")
def fetch(config_file: Path, stream: str, consumer: str, start: Start, limit: int) -> None:
    """Print the facts after CONSUMER's frontier, oldest first; the same again until they are confirmed."""
    settings = load(config_file)
    with _reader(settings) as reader:
        unknown = _told_unknown(reader, stream)
        registered = cast(
            local_socket.Registered,
            ask(settings, local_socket.RegisterConsumer(consumer, stream, start, is_fetching=True)),
        )
        if unknown:  # no refusal: a reader may be there before the first fact
            undo = f"bsfg consumer remove {consumer} --force --now"
            click.echo(
                f"{unknown}; consumer {consumer} waits for its first fact ({undo}, if that was a mistake)", err=True
            )
        damaged = False
        for one in fact_messages(reader, registered.stream, registered.frontier, limit):
            _print(one, registered.stream)
            damaged |= isinstance(one, Hole) and one.reason == "damaged"
    sys.exit(1 if damaged else 0)


@click.command()
@config_option
@click.option("--consumer", required=True, help="The durable reader.")
@click.option("--first-offset", type=click.IntRange(1), help="Confirm only from here on.  [default: the frontier]")
@click.argument("offset", type=click.IntRange(1))
@json_option
def confirm(config_file: Path, consumer: str, first_offset: int | None, offset: int, as_json: bool) -> None:  # noqa: FBT001 click passes options by name
    """Confirm that CONSUMER has everything up to OFFSET durably; the frontier never moves back."""
    settings = load(config_file)
    answer = cast(local_socket.Confirmed, ask(settings, local_socket.ConfirmReceipt(consumer, offset, first_offset)))
    advanced = answer.cursor_advanced_to
    click.echo(json.dumps({"cursor_advanced_to": advanced}) if as_json else f"cursor advanced to {advanced}")


@click.command()
@config_option
@click.option("--stream", default="facts.telemetry", show_default=True, help="The stream.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="The last so many.")
@click.option("--follow", is_flag=True, help="Go on printing as facts come, until Ctrl-C.")
def tail(config_file: Path, stream: str, limit: int, follow: bool) -> None:  # noqa: FBT001 click passes options by name
    """Print the last facts of a stream; moves no cursor."""
    settings = load(config_file)
    with _reader(settings) as reader, contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        if unknown := _told_unknown(
            reader, stream
        ):  # no refusal: its first fact may come yet, and --follow waits for it
            click.echo(unknown, err=True)
        after = max(0, reader.end_offset(stream) - limit)
        while True:
            for one in fact_messages(reader, stream, after, sys.maxsize):
                after = _print(one, stream)
            if not follow:
                return
            _pause()


def _append_here(settings: NodeSettings, request: local_socket.AppendFact) -> Told:
    named = [one for one in settings.stream if one.name == request.stream] or [StreamSettings(request.stream)]
    answer = cast(local_socket.Appended, ask(settings, request, waits_ms=named[0].acks_timeout_ms))
    return told(answer)


def _append_there(settings: NodeSettings, peer: str, request: local_socket.AppendFact, answer_s: float) -> Told:
    from agent.cli.facts.append_to import append

    return told(append(settings, peer, request, answer_s))


def _told_unknown(reader: StoreReader, stream: str) -> str:
    """What to say of a stream that is not here, perhaps misspelt; nothing of one that is."""
    known = sorted(info.name for info in reader.streams())
    return "" if stream in known else f"bsfg: no stream {stream!r} yet; there are: {', '.join(known) or 'none'}"


def _print(one: dict[str, Any] | Hole, stream: str) -> int:
    """A fact as a line; a hole is said beside the facts. The offset that has been told."""
    if isinstance(one, Hole):
        click.echo(f"bsfg: {stream}: offsets {one.first_offset} to {one.last_offset} are {one.reason}", err=True)
        return one.last_offset
    click.echo(json.dumps(one, ensure_ascii=False))
    return int(one["offset"])


def _content_id(subject: str, predicate: str, content: bytes) -> str:
    """An id that follows from the fact alone, so that repeating a command stores nothing twice."""
    return hashlib.sha256(b"\0".join((subject.encode(), predicate.encode(), content))).hexdigest()


@contextlib.contextmanager
def _reader(settings: NodeSettings) -> Iterator[StoreReader]:
    with contextlib.closing(StoreReader(settings.store_file)) as reader:
        yield reader


def _pause() -> None:
    time.sleep(FOLLOW_S)
