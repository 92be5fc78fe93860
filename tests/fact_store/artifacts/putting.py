"""A process made to be killed or recorded: puts artifacts, chunk by chunk, and says on standard output what it was
answered.

    python -m tests.fact_store.artifacts.putting FOLDER SEED COUNT

Artifact number n of a seed is always the same bytes. It goes on where an earlier life ended, and ends after COUNT of
them.
"""

import hashlib
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.pages import ArtifactProgress

CHUNK = 70_000
PARTS_MAX = 6


def blob(seed: int, number: int) -> bytes:
    """The bytes of an artifact."""
    rng = random.Random(f"{seed}/{number}")
    return rng.randbytes(rng.randint(1, PARTS_MAX * CHUNK))


def name_of(content: bytes) -> str:
    """Its digest."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def put(
    store: ArtifactFiles,
    content: bytes,
    tell: Callable[[ArtifactProgress], object] = lambda _: None,
    chunk: int = CHUNK,
) -> ArtifactProgress:
    """Put bytes as a sender without state does: from 0, then from wherever the answer says."""
    digest = name_of(content)
    held = store.put_chunk("plant", digest, len(content), 0, b"")
    while not held.is_complete:
        part = content[held.received : held.received + chunk]
        held = store.put_chunk("plant", digest, len(content), held.received, part)
        tell(held)
    return held


def said(number: int, held: ArtifactProgress) -> bytes:
    """The line about a chunk of an artifact."""
    return f"{number} {held.received} {int(held.is_complete)}\n".encode()


def main() -> None:
    """Put all artifacts, one after the other."""
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = ArtifactFiles(folder)
    for number in range(count):
        put(store, blob(seed, number), lambda held: os.write(1, said(number, held)))  # noqa: B023 at once


if __name__ == "__main__":
    main()
