"""The walk through the address space of a server: what to browse next, and what was found.

Breadth first and each node once, so that loops end and a variable has its shortest path. Limited by a depth and a
number of nodes. Core.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from agent.settings.opcua_address import STANDARD_URI, NodeAddress

OBJECTS = NodeAddress(STANDARD_URI, 85)  # the Objects folder, which contains the plant
SERVER = NodeAddress(STANDARD_URI, 2253)  # diagnostics, the same at every server
ENGINEERING_UNITS = "EngineeringUnits"
NAMES = ("EnumStrings", "EnumValues")  # properties with the names of numbers (OPC 10000-8, 5.3.3)
FAILURES_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class Reference:
    """One hierarchical reference from the browsed node to another."""

    node: NodeAddress
    browse_name: str
    is_variable: bool
    is_property: bool


@dataclass(frozen=True, slots=True)
class FoundVariable:
    """A variable with the browse names of its path, its EngineeringUnits property, and the property with the names of
    its numbers."""

    node: NodeAddress
    path: tuple[str, ...]
    units: NodeAddress | None = None
    names: NodeAddress | None = None

    @property
    def path_text(self) -> str:
        """The path as filters and people use it."""
        return "/".join(name.replace("/", "_") for name in self.path)


@dataclass(slots=True)
class ScanFailures:
    """Failures by reason: how many, and the first of them by name."""

    counts: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def add(self, what: str, why: str) -> None:
        """Count one."""
        self.counts[why] += 1
        if len(self.named) < FAILURES_NAMED_MAX:
            self.named.append(f"{what}: {why}")


class Walk:
    """One walk from `start`."""

    def __init__(
        self,
        start: NodeAddress,
        depth_max: int,
        nodes_max: int,
        skipped: Iterable[NodeAddress] = (),
        *,
        with_properties: bool = False,
    ) -> None:
        assert depth_max >= 1, "the depth is at least 1"
        self._depth_max, self._nodes_max, self._with_properties = depth_max, nodes_max, with_properties
        self._paths: dict[NodeAddress, tuple[str, ...]] = {start: ()}
        self._skipped = frozenset(skipped)
        self._pending: deque[NodeAddress] = deque([start])  # bounded by nodes_max
        self._variables: dict[NodeAddress, FoundVariable] = {}
        self.failures = ScanFailures()
        self.browsed_total = 0
        self.is_cut = False  # by nodes_max
        self.deeper_total = 0  # nodes at depth_max, whose children were not browsed

    def next_nodes(self, count: int) -> list[NodeAddress]:
        """Up to `count` nodes to browse; none if the walk is finished."""
        return [self._pending.popleft() for _ in range(min(count, len(self._pending)))]

    def give_back(self, nodes: Sequence[NodeAddress]) -> None:
        """Put nodes that were not browsed back to the front."""
        self._pending.extendleft(reversed(nodes))

    def found(self, node: NodeAddress, references: Iterable[Reference]) -> None:
        """What a node refers to."""
        self.browsed_total += 1
        path = self._paths[node]
        for reference in references:
            if reference.is_property:
                self._found_property(node, reference)
                if not self._with_properties:
                    continue
            if reference.node in self._paths or reference.node in self._skipped:
                continue
            if len(self._paths) >= self._nodes_max:
                self.is_cut = True
                return
            if len(path) >= self._depth_max:
                self.deeper_total += 1
                continue
            own = (*path, reference.browse_name)
            self._paths[reference.node] = own
            if reference.is_variable:
                self._variables[reference.node] = FoundVariable(reference.node, own)
            if len(own) < self._depth_max or reference.is_variable:
                # Variables at the last level are browsed for their unit only.
                self._pending.append(reference.node)
            else:
                self.deeper_total += 1

    def failed(self, node: NodeAddress, why: str) -> None:
        """A node that could not be browsed."""
        self.browsed_total += 1
        self.failures.add("/".join(self._paths[node]) or "the start node", why)

    def variables(self) -> list[FoundVariable]:
        """The variables found so far, sorted by path."""
        return sorted(self._variables.values(), key=lambda variable: variable.path)

    @property
    def nodes_total(self) -> int:
        """Nodes seen, browsed or not."""
        return len(self._paths)

    def _found_property(self, node: NodeAddress, reference: Reference) -> None:
        variable = self._variables.get(node)
        if variable is not None and reference.browse_name == ENGINEERING_UNITS:
            self._variables[node] = replace(variable, units=reference.node)
        elif variable is not None and reference.browse_name in NAMES:
            self._variables[node] = replace(variable, names=reference.node)


def is_excluded(variable: FoundVariable, tag: str, globs: Sequence[str]) -> bool:
    """Whether a glob matches the whole path of a variable, or the name of its tag."""
    return any(fnmatchcase(name, glob) for name in (variable.path_text, tag) for glob in globs)


def is_wanted(variable: FoundVariable, text: str, glob: str) -> bool:
    """Whether a variable passes the filters: a text in path or node id, ignoring case, and a glob for the whole path.
    Empty filters pass everything."""
    path = variable.path_text
    haystack = f"{path} {variable.node.identifier!s}".lower()
    return (not text or text.lower() in haystack) and (not glob or fnmatchcase(path, glob))
