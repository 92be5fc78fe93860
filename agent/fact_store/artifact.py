"""Artifacts: what is too large for a fact is stored beside the log, by digest, and the fact refers to it. Core: no IO.

A drawing, a batch report, an image: its bytes are kept once under their SHA-256, and a fact carries the claim check, an object
with `digest` ("sha256:" and 64 hex digits) and `size` somewhere inside its `object_json`, in a message that names an
`object_media_type`. The bytes come in chunks, each at the offset where the last one ended, so a transfer that broke goes on
where it stood; what is not where it should be is answered with the offset that is. Bytes count as an artifact only when all of
them are there and their digest is the one they were announced under.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agent.errors import BsfgError
from agent.message import JSON_INTEGER_MAX, Message, parse_json

DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
CHUNK_BYTES_MAX = 256 * 1024  # as much as a page: larger ones would delay the facts behind them
REFERENCES_MAX = 64  # of one fact; it names its evidence, it does not list an archive
DEPTH_MAX = 32


class ArtifactError(BsfgError):
    """Something about an artifact breaks a rule. `code` is that of replication's error table; nothing was changed."""

    def __init__(self, code: str, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Reference:
    """What a fact claims: these bytes exist."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Held:
    """What is here of an artifact: `received` of `size` bytes, complete only when they have been checked."""

    size: int
    received: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Write the chunk at its offset; with `is_last`, check the whole and make it an artifact."""

    is_last: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to write: the sender goes on at `offset`, or is done."""

    offset: int
    is_complete: bool


def check_digest(digest: str) -> str:
    """The hex digits of a digest; raises ArtifactError."""
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise ArtifactError("bad_request", f"{digest!r} is no digest", "write sha256: and 64 hex digits")
    return found[1]


def decide_chunk(held: Held | None, size: int, offset: int, length: int, size_max: int) -> Write | Skip:
    """What to do with a chunk of an artifact announced as `size` bytes. Raises ArtifactError.

    A chunk that is not at the end of what was received is not an error: the answer names the offset to go on from, which is how a
    sender that knows nothing of an earlier attempt finds out.
    """
    if not 0 < size <= size_max:
        raise ArtifactError("artifact_too_large", f"{size} bytes, the limit is {size_max}", "raise artifact_bytes_max")
    if offset < 0 or length < 0 or length > CHUNK_BYTES_MAX or offset + length > size:
        raise ArtifactError(
            "bad_request", f"bytes {offset} to {offset + length} of {size}, a chunk has {CHUNK_BYTES_MAX}"
        )
    if held is not None and held.size != size:
        raise ArtifactError("bad_request", f"announced as {size} bytes, before as {held.size}", "one of them is wrong")
    if held is not None and held.is_complete:
        return Skip(size, is_complete=True)
    received = 0 if held is None else held.received
    if offset != received or length == 0:
        return Skip(received, is_complete=False)
    return Write(is_last=offset + length == size)


def references(message: Message) -> tuple[Reference, ...]:
    """The artifacts a fact refers to, each once, in order; () where its envelope names no media type."""
    if message.envelope.object_media_type is None:
        return ()
    found: dict[Reference, None] = {}
    for one in _claims(parse_json("object_json", message.fact.object_json), 0):
        found[one] = None
        if len(found) > REFERENCES_MAX:
            raise ArtifactError("bad_request", f"the fact refers to more than {REFERENCES_MAX} artifacts")
    return tuple(found)


def _claims(value: object, depth: int) -> Iterator[Reference]:
    """Claim checks anywhere inside a JSON value."""
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        digest, size = value.get("digest"), value.get("size")
        if isinstance(digest, str) and DIGEST.fullmatch(digest) and type(size) is int and 0 < size <= JSON_INTEGER_MAX:
            yield Reference(digest, size)
        for one in value.values():
            yield from _claims(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _claims(one, depth + 1)


def is_orphan(age_s: float, *, is_referenced: bool, orphan_after_s: float) -> bool:
    """Whether an artifact, or what came of one, may go: nobody refers to it, and whoever sent it has had time to say what it is
    for. Referenced bytes stay as long as a retained fact names them."""
    return not is_referenced and age_s >= orphan_after_s
