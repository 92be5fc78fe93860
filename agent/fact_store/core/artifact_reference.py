"""References to artifacts, and the decisions about chunks and room for them. Core: no IO.

An artifact is too large for a fact (a drawing, a batch report, an image): its bytes are stored once as a file beside
the log, under their SHA-256. A fact refers to them with an object that has `digest` ("sha256:" and 64 hex digits) and
`size`, anywhere inside its `object_json`, in a message with an `object_media_type`. The bytes come in chunks, each at
the offset where the last one ended. A chunk at another offset is answered with the right offset, so an interrupted
transfer resumes. The artifact exists when all bytes are stored and have the digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent.batch import Batch, Kind, open_messages
from agent.fact_store.core.errors import ArtifactQuota, ArtifactRefused, ArtifactsFull, ArtifactTooLarge
from agent.message import JSON_INTEGER_MAX, Message, parse_json
from agent.pages import ArtifactProgress, ArtifactReference

DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
CHUNK_BYTES_MAX = 256 * 1024  # as much as a page: larger chunks would delay facts
SIZE_MAX = 4 * 1024**3  # a day of camera images; not a disk image
REFERENCES_MAX = 64  # of one fact; a longer list belongs in an artifact of its own
DEPTH_MAX = 32
CHARGE_BYTES_MIN = 64 * 1024
"""The least that a file is charged: it costs the disk a block and an entry, and the store a look-up. With 512 MiB a
zone has at most 8,192 files."""


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """Limits of artifacts in bytes: of one artifact, of all together (0: only the disk limits them), the space that
    must stay free on the disk, and the artifacts of one zone to which no fact refers yet (0: no limit)."""

    size_max: int = SIZE_MAX
    total_max: int = 0
    free_min: int = 0
    unreferenced_max: int = 0


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Write the chunk at its offset; after the last chunk, check the digest and complete the artifact."""


@dataclass(frozen=True, slots=True)
class FinishArtifact:
    """All bytes are stored, but an earlier life ended before it checked them: check the digest and complete the
    artifact."""


@dataclass(frozen=True, slots=True)
class SkipChunk:
    """Write nothing: the sender must continue at `offset`, or the artifact is complete."""

    offset: int
    is_complete: bool


def check_digest(digest: str) -> str:
    """The hex digits of a digest; raises ArtifactRefused."""
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise ArtifactRefused(f"{digest!r} is not a digest", "write sha256: and 64 hex digits, in lower case")
    return found[1]


def decide_chunk(
    held: ArtifactProgress | None, size: int, offset: int, length: int, size_max: int
) -> WriteChunk | FinishArtifact | SkipChunk:
    """Decide about a chunk of an artifact announced as `size` bytes. Raises ArtifactRefused, ArtifactTooLarge.

    A chunk at another offset than the end of the received bytes is not an error: the answer names the offset to
    continue from, so a sender resumes an earlier transfer even if it does not know of it.
    """
    if size > size_max:
        raise ArtifactTooLarge(f"the artifact has {size:,} bytes, this node accepts at most {size_max:,}")
    if min(size - 1, offset, length) < 0 or length > CHUNK_BYTES_MAX or offset + length > size:
        raise ArtifactRefused(
            f"bytes {offset} to {offset + length} are not a chunk of {size} bytes",
            f"send 1 to {CHUNK_BYTES_MAX} at once",
        )
    if held is not None and held.is_complete and held.size != size:
        raise ArtifactRefused(
            f"the artifact was announced with {size} bytes, here it has {held.size}", "correct the size"
        )
    if held is not None and held.is_complete:
        return SkipChunk(size, is_complete=True)
    received = 0 if held is None else held.received
    if received >= size:
        return FinishArtifact()
    if offset != received or length == 0:
        return SkipChunk(received, is_complete=False)
    return WriteChunk()


def quota_charge(size: int) -> int:
    """The bytes that an artifact to which no fact refers counts against its zone's quota. It counts as a whole from its
    first chunk on, so that a zone's transfers do not block each other halfway."""
    return max(size, CHARGE_BYTES_MIN)


def check_artifact_quota(limits: ArtifactLimits, zone: str, charged: int, coming: int) -> None:
    """Raise ArtifactQuota unless a zone may bring `coming` more bytes to which no fact refers yet."""
    if limits.unreferenced_max and charged + coming > limits.unreferenced_max:
        taken = f"{charged:,} of {limits.unreferenced_max:,} bytes wait for a fact, {coming:,} more do not fit"
        raise ArtifactQuota(f"artifact_unreferenced_bytes_max reached by zone {zone}: {taken}")


def artifact_room_lacking(limits: ArtifactLimits, coming: int, used: int, free: int | None) -> tuple[str, int]:
    """The setting that refuses `coming` more bytes in addition to the `used` bytes of all artifacts, on a disk with
    `free` bytes left, and by how many bytes they exceed it; ("", 0) if they fit."""
    if limits.total_max and used + coming > limits.total_max:
        return "artifacts_total_bytes_max", used + coming - limits.total_max
    if free is not None and limits.free_min and free - coming < limits.free_min:
        return "artifact_disk_spare_bytes", limits.free_min + coming - free
    return "", 0


def check_artifact_room(limits: ArtifactLimits, size: int, received: int, used: int, free: int | None) -> None:
    """Raise unless the rest of an artifact fits in addition to the `used` bytes of all artifacts, on a disk with `free`
    bytes left.

    ArtifactTooLarge if it can never fit; ArtifactsFull if it may fit once released facts let other artifacts be
    removed.
    """
    more = "raise [store] artifacts_total_bytes_max"
    if limits.total_max and size > limits.total_max:
        raise ArtifactTooLarge(
            f"the artifact has {size:,} bytes, this node keeps at most {limits.total_max:,} in all", more
        )
    coming = size - received
    setting, lacking = artifact_room_lacking(limits, coming, used, free)
    if setting == "artifacts_total_bytes_max":
        taken = f"artifacts take {used:,} of {limits.total_max:,} bytes, {coming:,} more do not fit"
        raise ArtifactsFull(f"{setting} reached: {taken}")
    if lacking:
        why = f"{free:,} bytes of the disk are free, {coming:,} are needed, {limits.free_min:,} must stay free"
        raise ArtifactsFull(f"{setting} reached: {why}", "free disk space, then put it again: the transfer resumes")


def references_in(message: Message) -> tuple[ArtifactReference, ...]:
    """The artifacts that a message refers to, each once, in order; empty if its envelope has no media type."""
    content = message.fact.object_json
    if message.envelope.object_media_type is None or b'"sha256:' not in content:
        return ()
    return tuple(dict.fromkeys(_claims(parse_json("object_json", content), 0)))


def checked_references(message: Message) -> tuple[ArtifactReference, ...]:
    """As `references_in`, for a message to be appended. Raises ArtifactRefused for more than REFERENCES_MAX of them;
    messages from other zones' logs are not limited."""
    found = references_in(message)
    if len(found) > REFERENCES_MAX:
        why = f"the fact refers to {len(found)} artifacts, at most {REFERENCES_MAX} are allowed"
        raise ArtifactRefused(why, "put their list as an artifact of its own")
    return found


def digests_in(messages: Iterable[Message]) -> set[bytes]:
    """The raw digests of all artifacts that messages refer to."""
    return {
        bytes.fromhex(check_digest(reference.digest)) for message in messages for reference in references_in(message)
    }


def messages_in(batches: Iterable[Batch]) -> Iterator[Message]:
    """The messages in batches; batches of samples are skipped. Raises BatchError if one cannot be opened."""
    for batch in batches:
        if batch.header.kind is Kind.MESSAGES:
            yield from open_messages(batch)


def _claims(value: object, depth: int) -> Iterator[ArtifactReference]:
    """References anywhere inside a JSON value, down to DEPTH_MAX."""
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        digest, size = value.get("digest"), value.get("size")
        if isinstance(digest, str) and DIGEST.fullmatch(digest) and type(size) is int and 0 < size <= JSON_INTEGER_MAX:
            yield ArtifactReference(digest, size)
        for member in value.values():
            yield from _claims(member, depth + 1)
    elif isinstance(value, list):
        for element in value:
            yield from _claims(element, depth + 1)
