"""Checks of a page that a peer sent: it is what was asked for, the peer may send it, and it can be read. Core: no IO.

Two steps. `read_page` decodes an answer when it arrives and checks its header, which is cheap. `check_batches` reads
each batch's header and digest and opens the batch once within its limits, which is most of a receiver's work, so it
runs in another thread. The store compares the history that the batches claim. A failed check does not depend on load or
luck, so it is final (`PageRefused`). What a peer may bring is given as names: of zones, and of single origins of which
this node takes its own facts back. A batch whose framing and digest are right and whose content cannot be opened does
not fail the page: its origin made it so, and what is behind it must not wait for that origin. It is marked, and
declined by name (`agent.signing.chains`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from agent.batch import Header, Origin, parse, verify
from agent.columns import BatchError
from agent.pages import ReceivedPage
from agent.replication.protocol.codec import ArrivedAnswer
from agent.replication.protocol.errors import ERRORS, MalformedMessage, ReplicationError, UnprovenAnswer, advice
from agent.replication.protocol.messages import (
    CLAIM_MAX,
    Answer,
    DigestsAnswer,
    ErrorAnswer,
    FetchAnswer,
    FetchSequences,
    GetDigests,
    HeldRun,
    SequencesAnswer,
    origin_named,
)
from agent.replication.pulling.receiving.pull_events import ArrivedPage, FetchFailed
from agent.signing.chains import Offered

REASON_CHARACTERS_MAX = 200
"""Of why a batch cannot be opened: it may quote the batch."""


class PageRefused(ReplicationError):
    """A page that the peer must not send; the text names what is wrong with it."""


@dataclass(slots=True)
class PageContent:
    """The part of a page that goes to the store. `entries` are first offset, last offset and size in bytes of each of
    `sealed`; `signers` the certificates of their keys (DER); `held_runs` what was left out as held. `judged` is the
    result of the check once that has begun; it raises PageRefused or an error of the store."""

    entries: Sequence[tuple[int, int, int]]
    sealed: Sequence[bytes]
    holes: Sequence[tuple[int, int, str]] = ()
    signers: Sequence[bytes] = ()
    held_runs: Sequence[HeldRun] = ()
    judged: Awaitable[ReceivedPage] | None = None


def read_page(
    fetch_id: int, arrived: ArrivedAnswer, peer_node: str, stream: str
) -> tuple[ArrivedPage, PageContent] | FetchFailed:
    """The page in the answer to a fetch, or why it has none that counts."""
    try:
        answer, sealed = arrived.open()
        if isinstance(answer, ErrorAnswer):
            error = answer.error
            reason = f"{error.code}: {advice(error.message, error.hint)}"
            return FetchFailed(fetch_id, error.code, reason, error.retryable, answer.life)
        return check_page(answer, sealed, peer_node, stream)
    except UnprovenAnswer as error:
        return FetchFailed(fetch_id, error.code, str(error), error.retryable)
    except MalformedMessage as error:
        # Another major version stays unreadable until a node is updated; any other may have been damaged in transit.
        if error.code == "unsupported_version":
            return FetchFailed(fetch_id, error.code, f"{error.why}. {ERRORS[error.code].hint}", is_retryable=False)
        return FetchFailed(fetch_id, "malformed", f"unreadable answer: {error.why}", is_retryable=True)
    except PageRefused as error:
        return FetchFailed(fetch_id, "page_refused", str(error), is_retryable=False)


def check_page(
    answer: Answer, attachment: Sequence[bytes], peer_node: str, stream: str
) -> tuple[ArrivedPage, PageContent]:
    """The page as the receiver takes it, and its content. Raises PageRefused when it is not what this peer may send for
    this stream."""
    if not isinstance(answer, FetchAnswer):
        raise PageRefused("an answer to another operation than FetchFacts")
    if answer.node != peer_node:
        raise PageRefused(f"answer of {answer.node}, asked was {peer_node}")
    if answer.stream != stream:
        raise PageRefused(f"page of stream {answer.stream!r}, asked for was {stream!r}")
    first_offset, last_offset = answer.covered() or (0, 0)
    page = ArrivedPage(
        frontier=answer.frontier,
        first_offset=first_offset,
        last_offset=last_offset,
        more=answer.more,
        end_offset=answer.end_offset,
        lease=answer.lease or 0,
        lease_in_force=answer.lease_in_force,
        life=answer.life,
        after=answer.after.position,
        lives=tuple(life.position for life in answer.lives),
    )
    return page, PageContent(answer.batches, attachment, answer.holes, tuple(answer.signers), answer.held_runs)


def check_batches(content: PageContent, stream: str, origins: frozenset[str]) -> list[Offered]:
    """The batches of a page, parsed. Raises PageRefused unless each is whole, matches its entry, and
    is of this stream and of an origin that this peer may bring. One that does not open to its last fact is marked."""
    offered = []
    for (first, last, _), data in zip(content.entries, content.sealed, strict=True):
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
        if batch.header.last_sequence > CLAIM_MAX:  # no answer of this node could name it
            unreadable = f"its last sequence is {batch.header.last_sequence}, at most {CLAIM_MAX}"
        offered.append(Offered(batch, first, last, unreadable))
    return offered


def check_sequences(
    answer: Answer, attachment: Sequence[bytes], peer_node: str, request: FetchSequences, origins: frozenset[str]
) -> tuple[list[Offered], PageContent]:
    """Batches of a page of sequences, checked as by `check_batches`, and its content. Raises PageRefused when it is not
    what was asked for."""
    if not isinstance(answer, SequencesAnswer):
        raise PageRefused("an answer to another operation than FetchSequences")
    if (answer.node, answer.stream, answer.origin) != (peer_node, request.stream, request.origin):
        raise PageRefused(f"answer of {answer.node}: {answer.stream} of {answer.origin}, which was not asked for")
    content = PageContent(answer.batches, attachment, (), tuple(answer.signers))
    offered = check_batches(content, request.stream, origins)
    for offer in offered:
        header = offer.batch.header
        if (str(header.origin), header.first_sequence) != (request.origin, offer.first_offset):
            raise PageRefused(f"batch at sequence {offer.first_offset} is another than the page says")
    return offered, content


def check_digests(answer: Answer, peer_node: str, request: GetDigests) -> DigestsAnswer:
    """The answer to a request for digests. Raises PageRefused when it is not what was asked for, or more."""
    if not isinstance(answer, DigestsAnswer) or (answer.node, answer.stream) != (peer_node, request.stream):
        raise PageRefused(f"{peer_node} gave another answer than digests of {request.stream}")
    if request.first_sequence is None or request.last_sequence is None:
        if answer.ends:
            raise PageRefused(f"{peer_node} sent digests of batches, asked for were ranges")
        zones, origins = {zone for zone, _, _ in answer.before}, [origin_named(name) for name, *_ in answer.ranges]
        if request.zone is None and answer.before and answer.before[0][0] <= (request.after_zone or ""):
            raise PageRefused(f"{peer_node} named zones again")
        if {origin.zone for origin in origins} - zones or (request.zone is not None and zones != {request.zone}):
            raise PageRefused(f"{peer_node} named other zones than were asked for")
        if request.below is not None and any(origin.life.hex() >= request.below for origin in origins):
            raise PageRefused(f"{peer_node} named lives of {request.zone} again")
        return answer
    first, last, count = request.first_sequence, request.last_sequence, len(answer.ends)
    if answer.ranges or count > request.ends_max + 1:
        many = f"{count} digests and {len(answer.ranges)} ranges"
        raise PageRefused(f"{peer_node} sent {many}, asked for were at most {request.ends_max + 1} digests")
    if answer.ends and not first <= answer.ends[0][0] <= answer.ends[-1][0] <= last:
        raise PageRefused(f"{peer_node} sent digests outside of {first} to {last}")
    return answer


def _check_header(header: Header, where: str, count: int, stream: str, origins: frozenset[str]) -> None:
    if header.stream != stream:
        raise PageRefused(f"{where} is of stream {header.stream!r}, asked for was {stream!r}")
    if header.is_slice:
        raise PageRefused(
            f"{where} is a slice: it can be read, not stored. Either the limit is too small, or our position is inside"
            " this batch because the peer's store is an old copy that has gone on"
        )
    if header.count != count:
        raise PageRefused(f"{where} holds {header.count} facts, the page says {count}")
    _check_origin(header.origin, where, origins)


def _check_origin(origin: Origin, what: str, origins: frozenset[str]) -> None:
    if origin.zone not in origins and str(origin) not in origins:
        hint = f'Add "{origin.zone}" to relays of this peer in node.toml here, if the peer may bring its facts'
        hint += " (each of two gateways of a plant is a zone by its name, too)."
        raise PageRefused(f"{what} is of zone {origin.zone}, which this peer may not relay. {hint}")
