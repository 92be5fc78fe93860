"""What two nodes of one zone tell each other and their witness, and the numbers of terms. Core: no IO.

A term is the number of the life with which a leader records. Its remainder by three names who granted it: the witness,
or one of the two nodes by itself. So no two lives with a fact have one term, though the granters do not hear each
other: each granter only has to remember its own highest term, the witness in its file, a node as the number of its
newest life with a fact. A node that is put back to a copy, hears nobody and whose clock is behind may forget it and
grant a term again: the rest of the two lives, which is random, still orders them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from agent.message import JSON_INTEGER_MAX

TERM_MAX = JSON_INTEGER_MAX
"""Above it nothing is granted. Only a node of the zone itself could ever bring a term there."""
GRANTERS = 3


class Granter(IntEnum):
    """Who grants a term: the witness, or the first or second of the two nodes by name."""

    WITNESS = 0
    FIRST = 1
    SECOND = 2


class ClaimState(Enum):
    """What a node says of itself. RELEASES: it does not record, and leaves the lead to the other one."""

    LEADS = "leads"
    FOLLOWS = "follows"
    RELEASES = "releases"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a node says of itself. `term`: with which it records, if it leads, else the least one that it can take.
    `highest`: no leader that it knows of had a higher term. `fitness`: how many sources are connected, -1 if its store
    refuses. `instance`: its process. `gaps_stored`: it leads, and what was missing until now is stored."""

    node: str
    instance: str
    state: ClaimState
    term: int
    highest: int = 0
    fitness: int = 0
    gaps_stored: bool = False


def next_term(least: int, granter: Granter) -> int:
    """The first term of a granter that is not below `least`."""
    return least + (granter - least) % GRANTERS
