"""A process made to be killed or recorded: puts artifacts, chunk by chunk, and says on standard output what it was
answered.

    python -m tests.fact_store.putting FOLDER SEED COUNT

Artifact number n of a seed is always the same bytes. It goes on where an earlier life ended, and ends after COUNT of
them.
"""

import hashlib
import os
import random
import sys
from pathlib import Path

from agent.fact_store.artifacts.artifact_files import ArtifactFiles

CHUNK = 70_000
PARTS_MAX = 6


def blob(seed: int, number: int) -> bytes:
    """The bytes of an artifact."""
    rng = random.Random(f"{seed}/{number}")
    return rng.randbytes(rng.randint(1, PARTS_MAX * CHUNK))


def name_of(content: bytes) -> str:
    """Its digest."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def main() -> None:
    """Put all artifacts, one after the other."""
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = ArtifactFiles(folder)
    for number in range(count):
        content = blob(seed, number)
        digest = name_of(content)
        held = store.put_chunk("plant", digest, len(content), 0, b"")
        while not held.is_complete:
            start = held.received
            held = store.put_chunk("plant", digest, len(content), start, content[start : start + CHUNK])
            os.write(1, f"{number} {held.received} {int(held.is_complete)}\n".encode())


if __name__ == "__main__":
    main()
