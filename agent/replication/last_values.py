"""Which last values a page holds: those asked for, in the order of their tags, within limits. A core: values in, values out.

Where values come from is not known here: whoever puts the node together hands in a way to look them up (`LookUp`). Only tags with a
value are told: what a store has heard of besides may belong to streams that the asker may not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from agent.replication.messages import GetLatest, LatestEntry


@dataclass(frozen=True, slots=True)
class Found:
    """Every value that was found, by tag; how deep was looked, and how many facts of the stream are known to be on their way."""

    values: Sequence[LatestEntry]
    depth_facts: int
    queue_depth: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a peer's store (zone, epoch) knew last of a stream, and when it was asked."""

    peer: str
    epoch: str
    stream: str
    asked_unix_ms: int
    values: Sequence[LatestEntry]


Wanted = Callable[[tuple[str, str, str]], bool]
LookUp = Callable[[str, Wanted, int, int], Found]
"""(stream, which tags, fresh_ms, depth_facts) to what is known; touches the disk. Raises the store's errors."""


def wanted_by(request: GetLatest) -> Wanted:
    """Whether a tag (zone, subject, predicate) is asked for and was not told before."""
    subjects = frozenset(request.subjects)
    after = None if request.after is None else request.after.order

    def is_wanted(tag: tuple[str, str, str]) -> bool:
        subject = tag[1]
        return (
            (not subjects or subject in subjects)
            and subject.startswith(request.prefix)
            and (after is None or tag > after)
        )

    return is_wanted


def page_of(values: Sequence[LatestEntry], limit: int, bytes_max: int) -> tuple[list[LatestEntry], bool]:
    """As many as the limits allow, at least one if there is one; and whether that leaves some."""
    page, size = list[LatestEntry](), 0
    for value in values[:limit]:
        size += len(msgspec.json.encode(value)) + 1
        if page and size > bytes_max:
            break
        page.append(value)
    return page, len(page) < len(values)
