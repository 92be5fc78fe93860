"""A registered consumer as a plain value, for cores that are tested without a store."""

from dataclasses import dataclass

from agent.lease import NO_LEASE, Lease


@dataclass(frozen=True)
class Registered:
    """The protocol's port `Consumer`."""

    zone: str
    stream: str
    frontier: int
    lease: Lease = NO_LEASE
