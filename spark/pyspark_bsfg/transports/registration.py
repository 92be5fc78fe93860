"""Registers a consumer by a first fetch, whose page is dropped: the protocol has no other way. A core: values only."""

from __future__ import annotations

from typing import Any

from agent.lease import LeaseClaim
from agent.pages import Start
from agent.replication.protocol.messages import BYTES_MAX_MIN, FetchAnswer, FetchFacts
from pyspark_bsfg.transports.ports import Registration


def first_fetch(consumer: str, stream: str, start: Start, claim: LeaseClaim) -> FetchFacts:
    """The request. The instance that sends it becomes the holder of the lease."""
    return FetchFacts(
        consumer_name=consumer,
        stream=stream,
        start=start,
        limit=1,
        bytes_max=BYTES_MAX_MIN,
        lease=claim.epoch,
        lease_after=claim.after,
    )


def registration_of(answer: Any) -> Registration:
    """What the answer grants."""
    assert isinstance(answer, FetchAnswer), answer
    granted = answer.lease or 0
    return Registration(answer.frontier, granted, granted or answer.lease_in_force or 0)
