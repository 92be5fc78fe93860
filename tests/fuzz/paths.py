"""The whole path under forged answers and requests, from the command line; and what holds after each run.

python -m tests.fuzz.paths [CASES] [SEED]
"""

import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.fact_store.integrity.verify import VerifyCounts
from tests.fact_store.making import damages
from tests.support.memory import memory_folder, rss_bytes

MIB = 1024 * 1024
GROWN_MAX = 300 * MIB
"""A catalog of all origins and consumers of a run, caches of the store, and what the allocator keeps."""


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Fails if the block makes this process grow by more than GROWN_MAX."""
    before = rss_bytes()
    yield
    grown = rss_bytes() - before
    print(f"grown by {grown / MIB:.0f} MiB")
    assert grown < GROWN_MAX


def verified(folder: Path) -> None:
    """Every batch of the store in `folder` has its digest, its predecessor and readable content."""
    counts = VerifyCounts()
    assert damages(folder / "facts.db", counts) == []
    print(f"verified {counts}")


def main() -> None:
    """Half of the cases into a puller, half into a server."""
    from tests.fuzz.forged_pages import pull_forged
    from tests.fuzz.forged_requests import serve_forged

    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    print(f"SEED={seed}")
    logging.disable(logging.CRITICAL)
    for run in (pull_forged, serve_forged):
        with memory_folder() as folder, bounded_memory():
            print(run.__name__, dict(asyncio.run(run(folder, cases // 2, seed))))


if __name__ == "__main__":
    main()
