"""The messages of `bsfg.replication` 1.0: every request and every answer, as checked values.

Types say what a field may contain; rules that types cannot express are checked by each message's `check`, which raises
MalformedMessage, so that a decoded message is always valid. `codec` encodes and decodes messages; `serving.operations`
carries requests out. docs/developers/protocol.md specifies the same for a second implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self, get_args

import msgspec

from agent.append_contract import WARNING_CHARACTERS_MAX, AppendOutcome
from agent.batch import RECORD_BYTES, Origin
from agent.lease import LEASE_EPOCH_MAX
from agent.message import JSON_INTEGER_MAX, Envelope, MessageError, check_depth
from agent.pages import BATCHES_MAX, CERTIFICATES_OF_KEY_MAX
from agent.positions import TRAIL_MAX, Position
from agent.replication.protocol.errors import MalformedMessage

# ---------------------------------------------------------------------------------------- types of fields, base classes

OFFSET_MAX = 2**63 - 1
"""Largest offset of a request."""
CLAIM_MAX = JSON_INTEGER_MAX
"""Largest integer of an answer, and largest sequence of an origin. A node adds up what its peers claim: the sum of a
thousand such values fits into 64 bits. A log reaches it after 28 years of ten million facts a second."""
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
PositiveOffset = Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)]
ClaimedOffset = Annotated[int, msgspec.Meta(ge=0, le=CLAIM_MAX)]
ClaimedPosition = Annotated[int, msgspec.Meta(ge=1, le=CLAIM_MAX)]
Time = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
StartText = Annotated[str, msgspec.Meta(max_length=40)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9._-]{1,64}\Z")]
Zone = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
DigestStart = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
Life = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
LifeOrNone = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
DigestOrNone = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
OriginName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}/[0-9a-f]{32}\Z")]
Lease = Annotated[int, msgspec.Meta(ge=0, le=LEASE_EPOCH_MAX)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
TimeText = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
Word = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_0-9]{1,64}\Z")]
Artifact = Annotated[str, msgspec.Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
Reason = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
SignerName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}/[0-9a-f]{16}\Z")]
Record = Annotated[bytes, msgspec.Meta(min_length=RECORD_BYTES, max_length=RECORD_BYTES)]
Certificate = Annotated[bytes, msgspec.Meta(min_length=1, max_length=4096)]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message; fields with their default value are not encoded."""


class LogPosition(Part, frozen=True):
    """A log was read up to `offset`, whose fact `life` has stored; offset 0 without a life: nothing was read. `digest`:
    of the batch that ends there; a client that stores nothing may omit it."""

    offset: ClaimedOffset = 0
    life: LifeOrNone = ""
    digest: DigestOrNone = ""

    @classmethod
    def of(cls, position: Position) -> Self:
        """The position as a message names it."""
        return cls(offset=position.offset, life=position.life.hex(), digest=position.digest.hex())

    @property
    def position(self) -> Position:
        """The position that is named."""
        return Position(bytes.fromhex(self.life), self.offset, bytes.fromhex(self.digest))


class RequestBody(Part, frozen=True):
    """Base class of requests."""

    def check(self) -> None:
        """Raise MalformedMessage for rules that field types cannot express."""


class Answering(Part, frozen=True, kw_only=True):
    """The node that answers, if it is not named like its zone."""

    store_node: Zone | None = None


class AnswerBody(Answering, frozen=True):
    """Base class of answers: names the answering store, and the life of the process."""

    store_zone: Zone
    life: Life

    @property
    def node(self) -> str:
        """The node that answers."""
        return self.store_node or self.store_zone

    def check(self) -> None:
        """Raise MalformedMessage for rules that field types cannot express."""

    def attached(self) -> list[int]:
        """Length in bytes of each piece of the attachment, in order."""
        return []


def operation_of(message: RequestBody | AnswerBody | type[RequestBody | AnswerBody]) -> str:
    """The operation of a message."""
    return str(message.__struct_config__.tag)


def check_forwards(first: int, last: int, operation: str) -> None:
    """Raise MalformedMessage if `first` is after `last`."""
    if first > last:
        raise MalformedMessage(f"the range {first} to {last} is backwards", "bad_request", operation)


def check_range(name: str, value: int, least: int, most: int, operation: str) -> None:
    """Raise MalformedMessage with `limit_out_of_range` unless least <= value <= most."""
    if not least <= value <= most:
        shown = str(value) if abs(value) <= OFFSET_MAX else "a number beyond 64 bits"
        raise MalformedMessage(f"{name} is {shown}, must be {least} to {most}", "limit_out_of_range", operation)


# -------------------------------------------------------------------------- facts of a consumer, by offset, by sequence

LIMIT_MAX = 1_000_000
BYTES_MAX_MIN, BYTES_MAX_MAX = 1024, 8 * 1024 * 1024
BYTES_MAX_DEFAULT = 256 * 1024
"""The page size with the highest throughput of paho and one broker (measured); larger pages delay other messages."""
WAIT_MS_MAX = 60_000
SIGNERS_MAX = 16
"""Keys of one page whose certificates are sent; a page ends before the batch that needs those of another one."""
CERTIFICATES_MAX = CERTIFICATES_OF_KEY_MAX * SIGNERS_MAX
"""Certificates of one page."""
SIGNERS_KNOWN_MAX = 512
"""Certificates that a request names by zone and key id, at most 52 bytes each; beyond, some are sent with each page."""
SignersKnown = Annotated[list[SignerName], msgspec.Meta(max_length=SIGNERS_KNOWN_MAX)]
HELD_MAX = 8
"""Ranges that a requester holds and names in a fetch: the newest two of each zone that another peer brings, too."""
HeldSpan = tuple[Zone, Life, ClaimedPosition, ClaimedPosition]
HELD_RUNS_MAX = 64
"""Runs of batches that one page leaves out as held. The named ranges are runs at the requester, so more are needed only
where the server stored them in another order; the page then ends, and the next one goes on."""
HeldRun = tuple[Zone, Life, ClaimedPosition, ClaimedPosition, Digest]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Confirm(Part, frozen=True):
    """Offsets `first_offset` to `last_offset` are durable at the requester; without `first_offset` all up to
    `last_offset`. `life` and `digest` are those of the position at `last_offset`."""

    last_offset: PositiveOffset
    life: Life
    digest: DigestOrNone = ""
    first_offset: PositiveOffset | None = None

    def check(self, operation: str) -> None:
        """Raise MalformedMessage if the range is backwards."""
        check_forwards(self.first_offset or self.last_offset, self.last_offset, operation)


class FetchFacts(RequestBody, frozen=True, tag="FetchFacts", tag_field="operation"):
    """A page from the consumer's frontier, or after a position; waits up to `wait_ms` for facts.

    `after` must be known to the store as it is. With `trail`, how far the newest lives of the log were read, the page
    begins at the one that is valid furthest there, or at the beginning. `held`: zone, life, first and last sequence of
    what the requester holds; batches within it are left out, and the answer names their digests (`held_runs`)."""

    consumer_name: Name
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    wait_ms: int = 0
    stream: Name | None = None
    start: Time | StartText = "oldest"
    after: LogPosition | None = None
    trail: Annotated[list[LogPosition], msgspec.Meta(max_length=TRAIL_MAX)] | None = None
    confirm: Confirm | None = None
    lease: Lease | None = None
    lease_after: Lease | None = None
    signers_known: SignersKnown | None = None
    held: Annotated[list[HeldSpan], msgspec.Meta(max_length=HELD_MAX)] = []

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchFacts")
        for _, _, first, last in self.held:
            check_forwards(first, last, "FetchFacts")
        check_range("wait_ms", self.wait_ms, 0, WAIT_MS_MAX, "FetchFacts")
        _ = self.starts
        if self.after is not None and self.trail is not None:
            raise MalformedMessage("after and trail exclude each other", "bad_request", "FetchFacts")
        if self.confirm is not None:
            self.confirm.check("FetchFacts")

    @property
    def starts(self) -> Literal["oldest", "end"] | int:
        """Where a consumer starts that this request registers: oldest, end, or ms since 1970. Raises
        MalformedMessage."""
        start = self.start
        match start:
            case int():
                return start
            case "oldest":
                return "oldest"
            case "end":
                return "end"
        try:
            found = datetime.fromisoformat(start)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None or found < _EPOCH:
            why = f"start is {start!r}; it must be a time with a time zone, oldest or end"
            raise MalformedMessage(why, "bad_request", "FetchFacts")
        return (found - _EPOCH) // timedelta(milliseconds=1)


class FetchRange(RequestBody, frozen=True, tag="FetchRange", tag_field="operation"):
    """A page of facts `first_offset` to `last_offset` of a stream, without a consumer and without waiting; with
    `whole_batches` beyond both ends of the range if need be. `life` and `digest` are those of the position at
    `last_offset`, or the life of a later one."""

    stream: Name
    first_offset: PositiveOffset
    last_offset: PositiveOffset
    life: Life
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    digest: DigestOrNone = ""
    whole_batches: bool = False
    signers_known: SignersKnown | None = None

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchRange")
        check_forwards(self.first_offset, self.last_offset, "FetchRange")


class FetchSequences(RequestBody, frozen=True, tag="FetchSequences", tag_field="operation"):
    """A page of whole batches with sequences `first_sequence` to `last_sequence` of one origin, also the requester's
    own. `position`: as in GetDigests."""

    stream: Name
    origin: OriginName
    first_sequence: ClaimedPosition
    last_sequence: ClaimedPosition
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    signers_known: SignersKnown | None = None
    position: LogPosition | None = None

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchSequences")
        check_forwards(self.first_sequence, self.last_sequence, "FetchSequences")


class ConfirmReceipt(RequestBody, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """Facts up to `offset` (from `first_offset`, if given) are durable at the requester. `life` and `digest` are those
    of the position at `offset`. What of it is not in this log is not confirmed."""

    consumer_name: Name
    offset: PositiveOffset
    life: Life
    digest: DigestOrNone = ""
    first_offset: PositiveOffset | None = None
    lease: Lease | None = None

    @property
    def confirm(self) -> Confirm:
        """The confirmed range."""
        where = {"life": self.life, "digest": self.digest}
        return Confirm(last_offset=self.offset, first_offset=self.first_offset, **where)

    def check(self) -> None:
        self.confirm.check("ConfirmReceipt")


class GetCursor(RequestBody, frozen=True, tag="GetCursor", tag_field="operation"):
    """A consumer's position."""

    consumer_name: Name


class UnregisterConsumer(RequestBody, frozen=True, tag="UnregisterConsumer", tag_field="operation"):
    """Remove a consumer of the requesting zone; facts that only it held back may then be released."""

    consumer_name: Name
    lease: Lease | None = None


class PageAnswer(AnswerBody, frozen=True):
    """One page of a stream. `batches`: (first_offset, last_offset, bytes in the attachment), in order of offset.

    `omitted`: ranges of offsets left out because they are of the requester's own zone. `holes`: (first_offset,
    last_offset, reason) of facts that the store no longer has: `expired` (released unconfirmed) or `damaged`; unknown
    reasons mean the same. Together they cover a contiguous run of offsets. `more`: the requested range continues after
    the page. `signers`: certificates (DER) of the keys of these batches that the requester did not name in
    `signers_known`; none if it sent no such list."""

    stream: Name
    batches: list[tuple[ClaimedPosition, ClaimedPosition, ClaimedPosition]] = []
    omitted: list[tuple[ClaimedPosition, ClaimedPosition]] = []
    holes: list[tuple[ClaimedPosition, ClaimedPosition, Reason]] = []
    more: bool = False
    signers: Annotated[list[Certificate], msgspec.Meta(max_length=CERTIFICATES_MAX)] = []

    def upper_bound(self) -> int:
        """Upper bound of all positions in the page."""
        raise NotImplementedError

    def covered(self) -> tuple[int, int] | None:
        """First and last offset of the page; None if it covers none."""
        runs = self.runs()
        return (runs[0][0], runs[-1][1]) if runs else None

    def runs(self) -> list[tuple[int, int]]:
        """All ranges of the page (batches, omitted ranges, holes), sorted."""
        return sorted([(first, last) for first, last, _ in (*self.batches, *self.holes)] + list(self.omitted))

    def attached(self) -> list[int]:
        return [length for _, _, length in self.batches]

    def check(self) -> None:
        self.checked_runs()

    def checked_runs(self) -> list[tuple[int, int]]:
        """As `runs`. Raises MalformedMessage unless the page covers one contiguous run up to its end at most."""
        operation = operation_of(self)
        parts = max(len(self.batches), len(self.omitted), len(self.holes))
        if parts > BATCHES_MAX:
            raise MalformedMessage(f"page of {parts} batches or ranges, at most {BATCHES_MAX}", operation=operation)
        runs = self.runs()
        reached = runs[0][0] - 1 if runs else 0
        for first, last in runs:
            if not reached + 1 == first <= last:
                raise MalformedMessage(f"page not contiguous at offset {reached}", operation=operation)
            reached = last
        if runs and reached > self.upper_bound():
            raise MalformedMessage(f"page to {reached}, beyond its end {self.upper_bound()}", operation=operation)
        return runs


class OffsetsAnswer(PageAnswer, frozen=True, kw_only=True):
    """A page whose positions are offsets."""

    end_offset: ClaimedOffset

    def upper_bound(self) -> int:
        return self.end_offset


class FetchAnswer(OffsetsAnswer, frozen=True, kw_only=True, tag="FetchFacts", tag_field="operation"):
    """A consumer's page. Without offsets: no facts came while waiting.

    `lease`: the requester's lease, if it sent or requested one. `lease_in_force`: the lease in force, if `lease_after`
    named another one; the answer then contains nothing else. `after`: the position after which the page begins.
    `lives`: of each life with facts in the page, the last position there, in order. `held_runs`: zone, life, first
    and last sequence of each run of batches that was left out as held, and the digest of its last batch."""

    frontier: ClaimedOffset
    lease: Lease | None = None
    lease_in_force: Lease | None = None
    after: LogPosition = LogPosition()
    lives: Annotated[list[LogPosition], msgspec.Meta(max_length=TRAIL_MAX)] = []
    held_runs: Annotated[list[HeldRun], msgspec.Meta(max_length=HELD_RUNS_MAX)] = []

    def check(self) -> None:
        """Raise MalformedMessage unless the page begins after `after`, and `lives` cover it."""
        runs, reached = self.checked_runs(), self.after.offset
        is_right = bool(runs) == bool(self.lives)
        for position in self.lives:
            is_right = is_right and position.offset > reached and position.life != ""
            reached = position.offset
        if not is_right or (runs and (self.after.offset, reached) != (runs[0][0] - 1, runs[-1][1])):
            raise MalformedMessage("positions of a page do not fit its offsets", operation="FetchFacts")
        for _, _, first, last, _ in self.held_runs:
            check_forwards(first, last, "FetchFacts")


class RangeAnswer(OffsetsAnswer, frozen=True, tag="FetchRange", tag_field="operation"):
    """A page of a range, up to its end or the log's end; without offsets if it is beyond the log."""


class SequencesAnswer(PageAnswer, frozen=True, kw_only=True, tag="FetchSequences", tag_field="operation"):
    """A page whose positions are sequences of `origin`: whole batches; the first may begin before the requested range.

    Holes may also be `absent`: never held by this store. Nothing is omitted.
    """

    origin: OriginName

    def upper_bound(self) -> int:
        return CLAIM_MAX


class ConfirmAnswer(AnswerBody, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The consumer's frontier after the confirmation, durable before the answer."""

    cursor_advanced_to: ClaimedOffset
    lease: Lease | None = None


class CursorAnswer(AnswerBody, frozen=True, tag="GetCursor", tag_field="operation"):
    """A consumer's stream and frontier, and the end of the stream."""

    consumer_name: Name
    stream: Name
    frontier: ClaimedOffset
    end_offset: ClaimedOffset


class UnregisterAnswer(AnswerBody, frozen=True, tag="UnregisterConsumer", tag_field="operation"):
    """The consumer is gone, durably. `was_registered` is false where there was none, as for a repeated request."""

    was_registered: bool


def check_page(limit: int, bytes_max: int, operation: str) -> None:
    """Raise MalformedMessage if the requested page size is out of range."""
    check_range("limit", limit, 1, LIMIT_MAX, operation)
    check_range("bytes_max", bytes_max, BYTES_MAX_MIN, BYTES_MAX_MAX, operation)


# --------------------------------------------------------------------------------------- digests, to compare two stores

ENDS_MAX, ENDS_DEFAULT = 256, 64
"""Digests inside a range in one answer: each exchange narrows it to a 64th, so a billion facts take five exchanges."""
RANGES_MAX = 2000
"""Ranges in one answer: whole origins until there are a thousand ranges, and one origin has at most a thousand."""


class GetDigests(RequestBody, frozen=True, tag="GetDigests", tag_field="operation"):
    """What is held of each zone after `after_zone`: the ranges of its newest life, and count and sum of those of all
    lives before. Or, with `zone`, the ranges of its lives before `below`, the newest first, and not before `down_to`.
    Or, with `origin`, digests at some batch ends in a range of it.

    Equal count and sum prove equal ranges, so further lives are only asked for where those differ. An equal digest
    proves equality of the whole history before it, so a few digests find where two stores differ. `position`: the end
    of the log in the first answer of the comparison, which goes on with the same log only.
    """

    stream: Name
    after_zone: Zone | None = None
    zone: Zone | None = None
    below: Life | None = None
    down_to: Life | None = None
    origin: OriginName | None = None
    first_sequence: ClaimedPosition | None = None
    last_sequence: ClaimedPosition | None = None
    ends_max: int = ENDS_DEFAULT
    position: LogPosition | None = None

    def check(self) -> None:
        check_range("ends_max", self.ends_max, 1, ENDS_MAX, "GetDigests")
        given = [bound is not None for bound in (self.origin, self.first_sequence, self.last_sequence)]
        is_wrong = any(given) and not (all(given) and self.after_zone is None and self.zone is None)
        if is_wrong or (self.zone is None) != (self.below is None) or (self.down_to is not None and self.zone is None):
            why = "origin, first_sequence and last_sequence are only valid together, and so are zone and below"
            raise MalformedMessage(why, "bad_request", "GetDigests")
        if self.first_sequence is not None and self.last_sequence is not None:
            check_forwards(self.first_sequence, self.last_sequence, "GetDigests")


class DigestsAnswer(AnswerBody, frozen=True, tag="GetDigests", tag_field="operation"):
    """Ranges held, or digests of batch ends.

    `ranges`: (origin, first_sequence, last_sequence, digest before the first, digest of the last batch), sorted, of
    what is held or was held before retention; whole lives. `before`: for each zone, in order, how many ranges are held
    of its lives before those of `ranges`, and the sum of their digests; `more` if other zones follow. `ends`:
    (last_sequence, digest) of batches in the requested range. `end_offset`: end of the log when it was read, which
    `end_life` has stored; the log up to there contains all `ranges`."""

    stream: Name
    end_offset: ClaimedOffset
    end_life: LifeOrNone = ""
    ranges: Annotated[
        list[tuple[OriginName, ClaimedPosition, ClaimedPosition, Digest, Digest]], msgspec.Meta(max_length=RANGES_MAX)
    ] = []
    before: Annotated[list[tuple[Zone, ClaimedOffset, Digest]], msgspec.Meta(max_length=RANGES_MAX)] = []
    ends: Annotated[list[tuple[ClaimedPosition, Digest]], msgspec.Meta(max_length=ENDS_MAX + 2)] = []
    more: bool = False

    def check(self) -> None:
        """Raise MalformedMessage unless ranges and ends are sorted and do not overlap."""
        starts = [(origin, first) for origin, first, _, _, _ in self.ranges]
        overlaps = any(
            left[0] == right[0] and left[2] >= right[1]
            for left, right in zip(self.ranges, self.ranges[1:], strict=False)
        )
        zones = [zone for zone, _, _ in self.before]
        if (
            sorted(starts) != starts
            or sorted(set(zones)) != zones
            or overlaps
            or any(first > last for _, first, last, _, _ in self.ranges)
        ):
            raise MalformedMessage("ranges of digests are not in order", operation="GetDigests")
        places = [last for last, _ in self.ends]
        if sorted(set(places)) != places:
            raise MalformedMessage("ends of batches are not in order", operation="GetDigests")


def origin_named(name: str) -> Origin:
    """The origin in a field that was already checked."""
    zone, _, life = name.partition("/")
    return Origin(zone, bytes.fromhex(life))


# ------------------------------------------------------------------------------------------------------ tag definitions

CHAINS_MAX = 100
"""Zones whose definitions one request names."""
DEFINITIONS_MAX = 16_384
"""Definitions of one answer, of 16 bytes at least."""
HELD_NAMED_MAX = 4
HELD_BYTES = 8


class WantedDefinitions(Part, frozen=True):
    """The tag definitions of a zone up to the one that has this digest. `held`: the first bytes of the digests of some
    that the requester has, newest first."""

    zone: Zone
    digest: Digest
    held: Annotated[list[DigestStart], msgspec.Meta(max_length=HELD_NAMED_MAX)] = []


class GetDefinitions(RequestBody, frozen=True, tag="GetDefinitions", tag_field="operation"):
    """Tag definitions that batches name, in the order of this list, at most `bytes_max` bytes of them."""

    wanted: Annotated[list[WantedDefinitions], msgspec.Meta(min_length=1, max_length=CHAINS_MAX)]
    bytes_max: int = BYTES_MAX_DEFAULT

    def check(self) -> None:
        check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, BYTES_MAX_MAX, "GetDefinitions")


class DefinitionRun(Part, frozen=True):
    """Consecutive definitions of the chain that ends with `digest`: those after the one that the request named by
    `after`, or from the first; `lengths` in bytes, in the attachment."""

    zone: Zone
    digest: Digest
    lengths: list[ClaimedPosition]
    after: DigestStart | None = None


class DefinitionsAnswer(AnswerBody, frozen=True, tag="GetDefinitions", tag_field="operation"):
    """The attachment is the definitions, each the canonical JSON of its zone, byte for byte. A chain that the store
    does not have is left out; what did not fit is requested again, after the last definition that came."""

    runs: Annotated[list[DefinitionRun], msgspec.Meta(max_length=CHAINS_MAX)] = []

    def attached(self) -> list[int]:
        return [length for run in self.runs for length in run.lengths]

    def check(self) -> None:
        if len(self.attached()) > DEFINITIONS_MAX:
            raise MalformedMessage(f"more than {DEFINITIONS_MAX} definitions", operation="GetDefinitions")


# ------------------------------------------------------------------------------------------------- artifacts, in chunks

CHUNK_BYTES_MAX = 256 * 1024
"""Bytes of an artifact in one answer: as many as a page."""
PUT_BYTES_MAX = 45_000
"""Bytes of an artifact in one request; base64 makes 60,000 of them."""


class GetObject(RequestBody, frozen=True, tag="GetObject", tag_field="operation"):
    """Bytes of an artifact from `offset`; a fact that the requester may read must refer to it."""

    digest: Artifact
    offset: Offset = 0
    bytes_max: int = CHUNK_BYTES_MAX

    def check(self) -> None:
        check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, CHUNK_BYTES_MAX, "GetObject")


class PutObject(RequestBody, frozen=True, tag="PutObject", tag_field="operation"):
    """The next bytes of an artifact of `size` bytes. Without `data`: ask how many bytes an earlier attempt stored."""

    digest: Artifact
    size: PositiveOffset
    offset: Offset = 0
    data: Annotated[bytes, msgspec.Meta(max_length=PUT_BYTES_MAX)] = b""


class ObjectAnswer(AnswerBody, frozen=True, tag="GetObject", tag_field="operation"):
    """The attachment is `bytes` bytes of the artifact, from `offset`. After the last one the requester checks the
    digest."""

    size: ClaimedPosition
    offset: ClaimedOffset
    bytes: ClaimedOffset = 0

    def attached(self) -> list[int]:
        return [self.bytes] if self.bytes else []

    def check(self) -> None:
        if self.bytes > CHUNK_BYTES_MAX or (self.offset + self.bytes > self.size and self.bytes):
            why = f"{self.bytes} bytes from {self.offset} of {self.size}"
            raise MalformedMessage(why, operation="GetObject")


class PutAnswer(AnswerBody, frozen=True, tag="PutObject", tag_field="operation"):
    """`received`: bytes stored so far, continue there. `is_complete`: all bytes, checked against the digest, and
    durable."""

    received: ClaimedOffset
    is_complete: bool


# --------------------------------------------------------------------------------------------- streams and their bounds


class GetBounds(RequestBody, frozen=True, tag="GetBounds", tag_field="operation"):
    """The first and last offset a stream holds; and up to where `position` is valid in its log."""

    stream: Name
    position: LogPosition | None = None


class ListStreams(RequestBody, frozen=True, tag="ListStreams", tag_field="operation"):
    """List the streams exported to the requester."""


class StreamEntry(Part, frozen=True):
    """One exported stream and its bounds; `first_offset` is `end_offset + 1` if it is empty."""

    name: Name
    first_offset: ClaimedPosition
    end_offset: ClaimedOffset


class BoundsAnswer(AnswerBody, frozen=True, tag="GetBounds", tag_field="operation"):
    """The bounds of one stream. `end_life` has stored its last fact. `resolved`: the position of the request, as far as
    it is valid in this log; none if it is unknown."""

    stream: Name
    first_offset: ClaimedPosition
    end_offset: ClaimedOffset
    end_life: LifeOrNone = ""
    resolved: LogPosition | None = None


class StreamsAnswer(AnswerBody, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the requester, by name, and the server's wall clock in ms since 1970, for comparison
    only."""

    streams: list[StreamEntry]
    unix_ms: ClaimedOffset | None = None


# ---------------------------------------------------------------------- appends of other zones, and leases of producers

MESSAGES_MAX = 256
"""Messages of one append: as many small ones as fit into a request, and their outcomes into an answer."""


class NewFact(Part, frozen=True):
    """A fact; `object` is any JSON, stored in canonical form."""

    subject: str
    predicate: str
    object: msgspec.Raw


class NewMessage(Part, frozen=True):
    """A message to store once, with its preconditions: the producer's lease, the newest fact of the subject that it is
    based on."""

    envelope: Envelope
    fact: NewFact
    producer: str | None = None
    lease_epoch: Annotated[int, msgspec.Meta(ge=1, le=LEASE_EPOCH_MAX)] | None = None
    base_offset: Offset | None = None


class AppendFact(RequestBody, frozen=True, tag="AppendFact", tag_field="operation"):
    """Append messages to a stream in this order; if one breaks a rule, none is stored."""

    stream: Name
    messages: Annotated[list[NewMessage], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    acks: Literal["none", "local", "quorum", "all"] | None = None


class AcquireLease(RequestBody, frozen=True, tag="AcquireLease", tag_field="operation"):
    """Acquire a new lease epoch for a producer of the requesting zone; appends with a lower epoch are fenced from then
    on.

    With `lease_after` only if that epoch is in force (0: none).
    """

    stream: Name
    producer: Name
    lease_after: Offset | None = None


class AppendedEntry(Part, frozen=True):
    """The outcome of one message, as in `agent.append_contract`; an unknown outcome counts as a refusal."""

    offset: ClaimedOffset
    outcome: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    warning: Annotated[str, msgspec.Meta(max_length=WARNING_CHARACTERS_MAX)] = ""
    lease_epoch: ClaimedOffset | None = None
    """The one in force, where the append was fenced."""

    @classmethod
    def of(cls, outcome: AppendOutcome) -> Self:
        """The entry for an outcome of the store."""
        warning, in_force = outcome.warning[:WARNING_CHARACTERS_MAX], outcome.lease_epoch or None
        return cls(offset=outcome.offset, outcome=outcome.outcome, warning=warning, lease_epoch=in_force)


class AppendAnswer(AnswerBody, frozen=True, tag="AppendFact", tag_field="operation"):
    """The outcome of each message, in the order of the request."""

    outcomes: Annotated[list[AppendedEntry], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]


class LeaseAnswer(AnswerBody, frozen=True, tag="AcquireLease", tag_field="operation"):
    """The new lease epoch; or, if `lease_after` was not in force, the epoch that is."""

    lease_epoch: ClaimedPosition | None = None
    lease_in_force: ClaimedOffset | None = None

    def check(self) -> None:
        if (self.lease_epoch is None) is (self.lease_in_force is None):
            raise MalformedMessage(
                "exactly one of lease_epoch and lease_in_force must be present", operation="AcquireLease"
            )


# -------------------------------------------------------------------------------------------------------- latest values

SUBJECTS_MAX = 1000
VALUES_MAX, VALUES_DEFAULT = 10_000, 1_000
VALUES_BYTES_MAX = 768 * 1024
"""The values are part of an answer's header, which has at most 1 MiB."""
FRESH_MS_MAX, FRESH_MS_DEFAULT = 30 * 86_400_000, 60_000
DEPTH_FACTS_MAX, DEPTH_FACTS_DEFAULT = 20_000_000, 2_000_000
"""Facts searched from the end of the stream: tenths of a second by default, some seconds at most, if a tag is not
found."""


class TagKey(Part, frozen=True):
    """The key of a latest value: zone, subject and predicate; ordered by these."""

    zone: Zone
    subject: Text
    predicate: Text

    @property
    def order(self) -> tuple[str, str, str]:
        """The sort key."""
        return self.zone, self.subject, self.predicate


class GetLatest(RequestBody, frozen=True, tag="GetLatest", tag_field="operation"):
    """The latest value of each tag of a stream, ordered by key, starting after the key `after`."""

    stream: Name
    subjects: Annotated[list[Text], msgspec.Meta(max_length=SUBJECTS_MAX)] = []
    prefix: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    after: TagKey | None = None
    limit: int = VALUES_DEFAULT
    bytes_max: int = BYTES_MAX_DEFAULT
    fresh_ms: int = FRESH_MS_DEFAULT
    depth_facts: int = DEPTH_FACTS_DEFAULT

    def check(self) -> None:
        check_range("limit", self.limit, 1, VALUES_MAX, "GetLatest")
        check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, VALUES_BYTES_MAX, "GetLatest")
        check_range("depth_facts", self.depth_facts, 1, DEPTH_FACTS_MAX, "GetLatest")
        check_range("fresh_ms", self.fresh_ms, 0, FRESH_MS_MAX, "GetLatest")


class LatestEntry(Part, frozen=True):
    """The latest value of a tag that the answering node has, and the staleness of its source there."""

    zone: Zone
    subject: Text
    predicate: Text
    source: str
    value: msgspec.Raw
    value_type: Word
    quality: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    source_time: TimeText
    as_of: TimeText
    staleness_ms: ClaimedOffset
    mode: Word
    unit: str | None = None
    offset: ClaimedPosition | None = None
    via: Zone | None = None
    ahead_ms: ClaimedOffset = 0

    def check(self) -> None:
        """Raise MalformedMessage unless the value can be parsed. The decoder of an answer does not parse it."""
        try:
            check_depth("value", bytes(self.value))
            msgspec.json.decode(self.value)
        except (MessageError, ValueError, RecursionError) as error:  # every msgspec error is a ValueError
            why = f"the value of {self.subject!r} of zone {self.zone} is not JSON: {error}"
            raise MalformedMessage(why, operation="GetLatest") from error

    @property
    def key(self) -> TagKey:
        """The key of the value."""
        return TagKey(zone=self.zone, subject=self.subject, predicate=self.predicate)


class LatestAnswer(AnswerBody, frozen=True, tag="GetLatest", tag_field="operation"):
    """Latest values in order of their keys; `more`: others follow after the last. A tag without a value within the last
    `depth_facts` facts is left out."""

    stream: Name
    end_offset: ClaimedOffset
    queue_depth: ClaimedOffset
    depth_facts: ClaimedOffset
    values: Annotated[list[LatestEntry], msgspec.Meta(max_length=VALUES_MAX)] = []
    more: bool = False

    def last_after(self, before: TagKey | None) -> TagKey:
        """The last key, for the next request. Raises MalformedMessage if the page is not after `before`."""
        last = self.values[-1].key if self.values else None
        if last is None or (before is not None and last.order <= before.order):
            raise MalformedMessage("a page of values that does not follow the page before", operation="GetLatest")
        return last


def readable(values: Iterable[LatestEntry]) -> tuple[list[LatestEntry], list[str]]:
    """The values of an answer that can be parsed, and why each of the others cannot."""
    found, refused = list[LatestEntry](), list[str]()
    for value in values:
        try:
            value.check()
        except MalformedMessage as error:
            refused.append(error.why)
        else:
            found.append(value)
    return found, refused


@dataclass(frozen=True, slots=True)
class PeerLatest:
    """The latest values of a stream in a peer's store, and when the peer was asked for them. `left_out` names the zones
    that the peer may not relay."""

    peer: str
    stream: str
    asked_unix_ms: int
    values: Sequence[LatestEntry]
    left_out: Sequence[str] = ()


# ------------------------------------------------------------------------------------------- two nodes of one zone

FITNESS_MAX = 1_000_000
LEASE_MS_MAX = 60_000
Fitness = Annotated[int, msgspec.Meta(ge=0, le=FITNESS_MAX)]
Term = Annotated[int, msgspec.Meta(ge=1, le=CLAIM_MAX)]
LeadState = Literal["leads", "follows", "releases"]
NodeOrNone = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{0,32}\Z")]


class ClaimEntry(Part, frozen=True):
    """What a node of a zone says of itself. `instance`: its process. `term`: with which it records if it leads, else
    the least one that it can take; `highest`: no leader it knows of had a higher one. `fitness`: 0 if its store
    refuses facts, else one more than the number of sources that it reaches. `gaps_stored`: it leads, and the facts of
    what was missing until now are stored."""

    node: Zone
    instance: Life
    state: LeadState
    term: Term
    highest: ClaimedOffset = 0
    fitness: Fitness = 1
    gaps_stored: bool = False


class ClaimLead(RequestBody, frozen=True, tag="ClaimLead", tag_field="operation"):
    """Tell the other node of `zone`, or their witness, what the requester claims, and ask who leads. `witness_says`:
    whom the witness names as leader; none if it is not heard."""

    zone: Zone
    claim: ClaimEntry
    witness_says: NodeOrNone | None = None


class LeadAnswer(AnswerBody, frozen=True, tag="ClaimLead", tag_field="operation"):
    """The witness names the leader (empty: none leads), its term and for how long it is lent, and what the other node
    last told it. The other node answers with its own claim alone, whom the witness names to it, and its clock,
    `unix_ms`."""

    leader: NodeOrNone = ""
    term: ClaimedOffset = 0
    highest: ClaimedOffset = 0
    remaining_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)] = 0
    other: ClaimEntry | None = None
    witness_says: NodeOrNone | None = None
    unix_ms: ClaimedOffset | None = None


# ---------------------------------------------------------------------------------------------------------- all of them

Request = (
    FetchFacts
    | FetchRange
    | FetchSequences
    | GetDigests
    | GetDefinitions
    | ConfirmReceipt
    | GetCursor
    | UnregisterConsumer
    | GetBounds
    | ListStreams
    | AppendFact
    | AcquireLease
    | GetLatest
    | GetObject
    | PutObject
    | ClaimLead
)
REQUESTS: tuple[type[Request], ...] = get_args(Request)
WRITING = frozenset((AppendFact, AcquireLease, PutObject))
"""Requests that add to what the serving node stores."""
CHANGING = frozenset((FetchFacts, ConfirmReceipt, UnregisterConsumer, ClaimLead, *WRITING))
"""Requests that change something at the serving node, and that the requester signs if it has a key."""


class ErrorBody(Part, frozen=True):
    """A code of the error table with a message about this request."""

    code: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    message: Annotated[str, msgspec.Meta(max_length=1000)]
    retryable: bool
    hint: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ErrorAnswer(AnswerBody, frozen=True):
    """The request was not carried out. `operation` repeats the requested operation, as far as it could be read."""

    operation: Annotated[str, msgspec.Meta(max_length=64)]
    error: ErrorBody


Answer = (
    FetchAnswer
    | RangeAnswer
    | SequencesAnswer
    | DigestsAnswer
    | DefinitionsAnswer
    | ConfirmAnswer
    | CursorAnswer
    | UnregisterAnswer
    | BoundsAnswer
    | StreamsAnswer
    | AppendAnswer
    | LeaseAnswer
    | LatestAnswer
    | ObjectAnswer
    | PutAnswer
    | LeadAnswer
)
ANSWERS: tuple[type[Answer], ...] = get_args(Answer)
