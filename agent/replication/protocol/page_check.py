"""Checks of a page that a peer sent: it is what was asked for, the peer may send it, and it can be read. Core: no IO.

Two steps. `check_page` checks the header of an answer, which is cheap, when it arrives. `check_batches` reads each
batch's header and digest and opens the batch once within its limits, which is most of a receiver's work, so it runs in
another thread. The store compares the history that the batches claim. A failed check does not depend on load or luck,
so it is final (`PageRefused`). What a peer may bring is given as names: of zones, and of single origins of which this
node takes its own facts back. A batch whose framing and digest are right and whose content cannot be opened does not
fail the page: its origin made it so, and what is behind it must not wait for that origin. It is marked, and declined by
name (`agent.signing.runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.batch import Header, Origin, parse, verify
from agent.columns import BatchError
from agent.pages import ReceivedDefinition
from agent.replication.protocol.errors import ReplicationError
from agent.replication.protocol.messages import Answer, DefinitionEntry, FetchAnswer, FetchSequences, SequencesAnswer
from agent.replication.protocol.pull_events import ArrivedPage, Content
from agent.signing.runs import Offered

DEFINITION_BYTES_MAX = 32 * 1024
"""Twice the largest that an origin can make."""

REASON_CHARACTERS_MAX = 200
"""Of why a batch cannot be opened: it may quote the batch."""


class PageRefused(ReplicationError):
    """A page that the peer must not send; the text names what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """The part of a page that goes to the store. `entries` are first offset, last offset and size in bytes of each of
    `sealed`; `heads` their heads, empty where one has none; `signers` the certificates of the heads' keys (DER)."""

    entries: Sequence[tuple[int, int, int]]
    sealed: Sequence[bytes]
    definitions: Sequence[ReceivedDefinition]
    holes: Sequence[tuple[int, int, str]] = ()
    heads: Sequence[bytes] = ()
    signers: Sequence[bytes] = ()


def check_page(
    answer: Answer,
    attachment: Sequence[bytes],
    peer_zone: str,
    stream: str,
    origins: frozenset[str],
    start_check: Callable[[PageContent], Content],
) -> ArrivedPage[Content]:
    """The page as the receiver takes it, with what `start_check` returns for its content, which begins the check of its
    batches.

    Raises PageRefused when it is not what this peer may send for this stream.
    """
    if not isinstance(answer, FetchAnswer):
        raise PageRefused("an answer to another operation than FetchFacts")
    if answer.store_zone != peer_zone:
        raise PageRefused(f"answer of zone {answer.store_zone}, asked was {peer_zone}")
    if answer.stream != stream:
        raise PageRefused(f"page of stream {answer.stream!r}, asked for was {stream!r}")
    definitions = [_check_definition(entry, origins) for entry in answer.definitions]
    first_offset, last_offset = answer.covered() or (0, 0)
    sealed, heads = answer.split(attachment)
    numbers: dict[str, int] = {}
    for definition in definitions:
        origin = str(definition.origin)
        numbers[origin] = max(definition.number, numbers.get(origin, 0))
    return ArrivedPage(
        epoch=answer.epoch,
        frontier=answer.frontier,
        first_offset=first_offset,
        last_offset=last_offset,
        more=answer.more,
        end_offset=answer.end_offset,
        definitions=numbers,
        lease=answer.lease or 0,
        lease_in_force=answer.lease_in_force,
        timeline=answer.timeline,
        content=start_check(
            PageContent(answer.batches, sealed, definitions, answer.holes, heads, tuple(answer.signers))
        ),
    )


def check_batches(content: PageContent, stream: str, origins: frozenset[str]) -> list[Offered]:
    """The batches of a page, parsed, with their heads. Raises PageRefused unless each is whole, matches its entry, and
    is of this stream and of an origin that this peer may bring. One that does not open to its last fact is marked."""
    offered = []
    heads = content.heads or [b""] * len(content.sealed)
    for (first, last, _), data, head in zip(content.entries, content.sealed, heads, strict=True):
        where, unreadable = f"batch at offset {first}", ""
        try:
            batch = parse(data)
        except BatchError as error:
            raise PageRefused(f"{where}: {error}") from error
        _check_header(batch.header, where, last - first + 1, stream, origins)
        try:
            verify(batch)
        except BatchError as error:
            unreadable = str(error)[:REASON_CHARACTERS_MAX]
        offered.append(Offered(batch, first, last, head, unreadable))
    return offered


def check_sequences(
    answer: Answer, attachment: Sequence[bytes], peer_zone: str, request: FetchSequences, origins: frozenset[str]
) -> tuple[list[Offered], PageContent]:
    """Batches of a page of sequences, checked as by `check_batches`, and its content. Raises PageRefused when it is not
    what was asked for."""
    if not isinstance(answer, SequencesAnswer):
        raise PageRefused("an answer to another operation than FetchSequences")
    if (answer.store_zone, answer.stream, answer.origin) != (peer_zone, request.stream, request.origin):
        raise PageRefused(f"answer of {answer.store_zone}: {answer.stream} of {answer.origin}, which was not asked for")
    sealed, heads = answer.split(attachment)
    definitions = [_check_definition(entry, origins) for entry in answer.definitions]
    content = PageContent(answer.batches, sealed, definitions, (), heads, tuple(answer.signers))
    offered = check_batches(content, request.stream, origins)
    for one in offered:
        header = one.batch.header
        if (str(header.origin), header.first_sequence) != (request.origin, one.first_offset):
            raise PageRefused(f"batch at sequence {one.first_offset} is another than the page says")
    return offered, content


def _check_header(header: Header, where: str, count: int, stream: str, origins: frozenset[str]) -> None:
    if header.stream != stream:
        raise PageRefused(f"{where} is of stream {header.stream!r}, asked for was {stream!r}")
    if header.is_slice:
        raise PageRefused(
            f"{where} is a slice: it can be read, not stored. Either the limit is too small, or our position is inside"
            " this batch because the peer's store is an old copy that has gone on: give it a new epoch"
        )
    if header.count != count:
        raise PageRefused(f"{where} holds {header.count} facts, the page says {count}")
    _check_origin(header.origin, where, origins)


def _check_definition(entry: DefinitionEntry, origins: frozenset[str]) -> ReceivedDefinition:
    origin = Origin(entry.zone, bytes.fromhex(entry.epoch))
    body = bytes(entry.definition)
    if len(body) > DEFINITION_BYTES_MAX:
        raise PageRefused(
            f"definition {entry.number} of {origin} has {len(body)} bytes, at most {DEFINITION_BYTES_MAX}"
        )
    _check_origin(origin, f"definition {entry.number}", origins)
    return ReceivedDefinition(origin, entry.number, body)


def _check_origin(origin: Origin, what: str, origins: frozenset[str]) -> None:
    if origins.isdisjoint((origin.zone, str(origin))):
        hint = "Add it to relays of this peer in node.toml if this peer may bring its facts."
        raise PageRefused(f"{what} is of zone {origin.zone}, which this peer may not relay. {hint}")
