"""A peer's page on its way into the store: what arrived, and what storing it writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agent.batch import Batch, Definitions, Origin
from agent.fact_store.append.renamed import Search, Shift
from agent.pages import (
    Declined,
    HeldRange,
    OriginRange,
    SignerCertificate,
)
from agent.positions import Position


@dataclass(frozen=True, slots=True)
class ReceivedPage:
    """A page whose batches have been checked one by one."""

    peer: str
    stream: str
    batches: Sequence[Batch]
    epoch: bytes
    """The peer's present epoch."""
    read: Sequence[Position] = ()
    """Up to where each life of the peer's log is stored with this page, in order; none for batches from before, which
    a comparison found missing."""
    holes: Sequence[tuple[int, int, str]] = ()
    is_backlog: bool = False
    verified: Collection[int] = ()
    """Positions of batches whose record is that of a trusted signer of their zone."""
    signers: Sequence[SignerCertificate] = ()
    declined: Sequence[Declined] = ()
    after: Position | None = None
    """The position after which the page begins; None: where the pages before it end."""

    @property
    def present(self) -> Origin:
        """The peer's own facts in its present epoch."""
        return Origin(self.peer, self.epoch)


@dataclass(slots=True)
class PagePlan:
    """What storing a page writes, worked out before anything is written."""

    search: Search
    fresh: dict[tuple[Origin, int], HeldRange]
    ranges: dict[Origin, tuple[HeldRange, ...]] = field(default_factory=dict)
    inserts: list[Batch] = field(default_factory=list)
    verified: set[int] = field(default_factory=set)  # positions in `inserts`
    gaps: list[OriginRange] = field(default_factory=list)
    refused: list[OriginRange] = field(default_factory=list)
    uncompared: dict[OriginRange, str] = field(default_factory=dict)  # why the facts may be others
    unproven: set[int] = field(default_factory=set)  # numbers of origins
    renamed: set[Shift] = field(default_factory=set)
    definitions: dict[tuple[str, Definitions], bool] = field(default_factory=dict)  # that are needed: are they held
    duplicate_facts: int = 0
    left_out: Mapping[str, list[OriginRange]] = field(default_factory=dict)  # by reason
