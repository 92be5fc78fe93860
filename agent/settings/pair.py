"""[pair] of node.toml: the other node of this zone, and the node above both that says which of them leads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.message import ZONE


@dataclass(frozen=True, slots=True)
class PairSettings:
    """[pair]: `partner` is the other node that records for our zone, `witness` the node that lends the lead to one of
    the two; both are [[peer]]s. Without `partner` this node records alone; without `witness` the two decide by
    themselves."""

    partner: str = ""
    witness: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are asked who leads."""
        return tuple(name for name in (self.partner, self.witness) if name)

    def problems(self) -> Iterator[tuple[str, str]]:
        for name in ("partner", "witness"):
            value = getattr(self, name)
            if value and not ZONE.fullmatch(value):
                yield name, f"{value!r} is not the name of a node (1 to 32 of a-z, 0-9 and -)"
        if self.witness and not self.partner:
            yield "witness", "has no effect without partner, the other node of this zone"
        if self.witness and self.witness == self.partner:
            yield "witness", "must be a third node: the partner cannot judge while it is cut off"
