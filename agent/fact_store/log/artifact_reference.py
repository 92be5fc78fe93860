"""Artifacts: what is too large for a fact is stored beside the log, by digest, and the fact refers to it. Core: no IO.

A drawing, a batch report, an image: its bytes are kept once under their SHA-256, and a fact carries the claim check, an object
with `digest` ("sha256:" and 64 hex digits) and `size` somewhere inside its `object_json`, in a message that names an
`object_media_type`. The bytes come in chunks, each at the offset where the last one ended, so a transfer that broke goes on
where it stood; what is not where it should be is answered with the offset that is. Bytes count as an artifact only when all of
them are there and their digest is the one they were announced under.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent.batch import Batch, Kind, open_messages
from agent.fact_store.log.errors import ArtifactRefused, ArtifactsFull, ArtifactTooLarge, StoreFull
from agent.message import JSON_INTEGER_MAX, Message, parse_json

DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
CHUNK_BYTES_MAX = 256 * 1024  # as much as a page: larger ones would delay the facts behind them
SIZE_MAX = 4 * 1024**3  # a day's camera, no disk image
REFERENCES_MAX = 64  # of one fact; it names its evidence, it does not list an archive
DEPTH_MAX = 32


@dataclass(frozen=True, slots=True)
class ArtifactReference:
    """What a fact claims: these bytes exist."""

    digest: str
    size: int

    @property
    def raw(self) -> bytes:
        """The 32 bytes of the digest."""
        return bytes.fromhex(check_digest(self.digest))


@dataclass(frozen=True, slots=True)
class ArtifactProgress:
    """What is here of an artifact: `received` of `size` bytes, complete only when they have been checked."""

    size: int
    received: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """What a node takes, in bytes: of one artifact, of all together (0: as the disk allows), and what stays free on the disk."""

    size_max: int = SIZE_MAX
    total_max: int = 0
    free_min: int = 0


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Write the chunk at its offset; with the last one, compare the whole and make it an artifact."""


@dataclass(frozen=True, slots=True)
class FinishArtifact:
    """All bytes came before, in a life that ended before they were compared: do that."""


@dataclass(frozen=True, slots=True)
class SkipChunk:
    """Nothing to write: the sender goes on at `offset`, or is done."""

    offset: int
    is_complete: bool


def check_digest(digest: str) -> str:
    """The hex digits of a digest; raises ArtifactRefused."""
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise ArtifactRefused(f"{digest!r} is no digest", "write sha256: and 64 hex digits, in lower case")
    return found[1]


def decide_chunk(
    held: ArtifactProgress | None, size: int, offset: int, length: int, size_max: int
) -> WriteChunk | FinishArtifact | SkipChunk:
    """What to do with a chunk of an artifact announced as `size` bytes. Raises ArtifactRefused, ArtifactTooLarge.

    A chunk that is not at the end of what was received is not an error: the answer names the offset to go on from, which is how a
    sender that knows nothing of an earlier attempt finds out.
    """
    if size > size_max:
        raise ArtifactTooLarge(f"an artifact of {size:,} bytes, this node takes {size_max:,}")
    if min(size - 1, offset, length) < 0 or length > CHUNK_BYTES_MAX or offset + length > size:
        raise ArtifactRefused(
            f"bytes {offset} to {offset + length} of {size} are no chunk of it", f"send 1 to {CHUNK_BYTES_MAX} at once"
        )
    if held is not None and held.is_complete and held.size != size:
        raise ArtifactRefused(f"announced with {size} bytes, here it has {held.size}", "correct the size")
    if held is not None and held.is_complete:
        return SkipChunk(size, is_complete=True)
    received = 0 if held is None else held.received
    if received >= size:
        return FinishArtifact()
    if offset != received or length == 0:
        return SkipChunk(received, is_complete=False)
    return WriteChunk()


def check_artifact_room(limits: ArtifactLimits, size: int, received: int, used: int, free: int | None) -> None:
    """Raise unless the rest of an artifact has room beside all that is `used` already, and on a disk with `free` bytes left.

    ArtifactTooLarge where it never will have, ArtifactsFull or StoreFull where others may make room: facts that are released let theirs
    go.
    """
    coming, more = size - received, "raise [store] artifacts_total_bytes_max"
    if limits.total_max and size > limits.total_max:
        raise ArtifactTooLarge(f"an artifact of {size:,} bytes, this node keeps {limits.total_max:,} in all", more)
    if limits.total_max and used + coming > limits.total_max:
        why = f"artifacts_total_bytes_max reached: artifacts take {used:,} of {limits.total_max:,} bytes, {coming:,} more have no room"
        raise ArtifactsFull(why)
    if free is not None and limits.free_min and free - coming < limits.free_min:
        why = f"the disk is full: {free:,} bytes are left, {coming:,} come, {limits.free_min:,} stay free"
        raise StoreFull(why, "free space, then put it again: it goes on")


def references_in(message: Message) -> tuple[ArtifactReference, ...]:
    """The artifacts a fact refers to, each once, in order; () where its envelope names no media type."""
    content = message.fact.object_json
    if message.envelope.object_media_type is None or b'"sha256:' not in content:
        return ()
    return tuple(dict.fromkeys(_claims(parse_json("object_json", content), 0)))


def checked_references(message: Message) -> tuple[ArtifactReference, ...]:
    """As `references_in`, of a message that is to be appended. Raises ArtifactRefused for too many; one that stands in another zone's log
    already is taken as it is."""
    found = references_in(message)
    if len(found) > REFERENCES_MAX:
        why = f"the fact refers to {len(found)} artifacts, {REFERENCES_MAX} at most"
        raise ArtifactRefused(why, "put their list as an artifact of its own")
    return found


def digests_in(messages: Iterable[Message]) -> set[bytes]:
    """The digests of all artifacts that messages refer to."""
    return {one.raw for message in messages for one in references_in(message)}


def messages_in(batches: Iterable[Batch]) -> Iterator[Message]:
    """The messages of batches of any kind. Raises BatchError where they cannot be opened."""
    for batch in batches:
        if batch.header.kind is Kind.MESSAGES:
            yield from open_messages(batch)


def _claims(value: object, depth: int) -> Iterator[ArtifactReference]:
    """Claim checks anywhere inside a JSON value."""
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        digest, size = value.get("digest"), value.get("size")
        if isinstance(digest, str) and DIGEST.fullmatch(digest) and type(size) is int and 0 < size <= JSON_INTEGER_MAX:
            yield ArtifactReference(digest, size)
        for one in value.values():
            yield from _claims(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _claims(one, depth + 1)


def is_orphan(age_s: float, *, is_referenced: bool, orphan_after_s: float) -> bool:
    """Whether an artifact, or what came of one, may go: nobody refers to it, and whoever sent it has had time to say what it is
    for. Referenced bytes stay as long as a retained fact names them."""
    return not is_referenced and age_s >= orphan_after_s
