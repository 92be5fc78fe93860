"""What a comparison of one stream with one peer has found and repaired."""

from dataclasses import dataclass, field

from agent.batch import Definitions, Origin
from agent.pages import ComparedSums
from agent.pages import Span as Sequences

REFUSED_MAX = 100
"""Refusals that one comparison reports, of which the last says that there are others; and forks that it reports."""


@dataclass(slots=True)
class Comparison:
    """The result of comparing one stream with one peer: what was found, and what was repaired. `bytes` counts the
    answers."""

    stream: str
    compared_facts: int = 0
    exchanges: int = 0
    bytes: int = 0
    missing: list[tuple[Origin, Sequences]] = field(default_factory=list)
    damaged: list[tuple[Origin, Sequences]] = field(default_factory=list)
    forks: list[tuple[Origin, str]] = field(default_factory=list)
    sums: dict[str, ComparedSums] = field(default_factory=dict)
    """By zone, sums of lives that were listed because they differ."""
    damaged_definitions: list[tuple[str, Definitions]] = field(default_factory=list)
    """Zone, and the definitions of a batch of which some are damaged."""
    repaired_definitions: int = 0
    repaired_ranges: int = 0
    repaired_facts: int = 0
    unavailable_facts: int = 0
    refused: list[str] = field(default_factory=list)
    """Why something was not repaired: at most REFUSED_MAX reasons."""
    missing_artifacts: int = 0
    """Artifacts to which held facts refer and that are not here; after a repair, those that the peer lacks too."""
    repaired_artifacts: int = 0

    @property
    def divergent_ranges(self) -> int:
        """The number of differences."""
        return len(self.missing) + len(self.damaged) + len(self.damaged_definitions) + len(self.forks)

    def refuse(self, why: str) -> None:
        """Record why something was not repaired."""
        if len(self.refused) < REFUSED_MAX:
            self.refused.append(why if len(self.refused) < REFUSED_MAX - 1 else f"{why}; and others")


@dataclass(frozen=True, slots=True)
class ComparedZones:
    """The zones whose facts the peer may bring: `own` ones, which come home, and those of its pulls. The other node of
    this zone records for it as well: those facts are in its pages, and not `own`."""

    own: frozenset[str]
    allowed: frozenset[str]
    in_pair: frozenset[str]
    """Zones whose facts another peer brings, too."""
