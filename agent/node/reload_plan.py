"""Decides, without IO, how a running node applies a changed node.toml.

Each field of the settings is in one class. APPLY: taken over while the node runs; a source, or everything that goes
over one broker, is ended and restarted, and nothing else is touched. RESTART: the old value stays in force until a
restart. REFUSE: the whole file is refused, because it describes another node. OTHER: only another program reads it, so
nothing is told. A field without a class fails here, and
in a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from agent.settings.node import IdentitySettings, NodeSettings, PageSettings
from agent.settings.notify import NotifySettings
from agent.settings.pair import PairSettings
from agent.settings.peers import BrokerSettings, PeerSettings
from agent.settings.signing import OriginSettings, SigningSettings
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings
from agent.settings.store import StoreSettings, StreamSettings


class Reach(Enum):
    """How far a change of a setting reaches without a restart."""

    APPLY = "apply"
    RESTART = "restart"
    REFUSE = "refuse"
    OTHER = "other"


REACH: Mapping[type, Reach | Mapping[str, Reach]] = {
    IdentitySettings: {"zone": Reach.REFUSE, "name": Reach.REFUSE, "state_dir": Reach.RESTART},
    StoreSettings: {
        "bytes_max": Reach.APPLY,
        # The writer's queue and pace, the ballast and the limits of artifacts are made with the store.
        "commit_interval_ms": Reach.RESTART,
        "batch_facts_target": Reach.RESTART,
        "queue_facts_max": Reach.RESTART,
        "queue_bytes_max": Reach.RESTART,
        "disk_free_bytes_min": Reach.RESTART,
        "ballast_bytes": Reach.RESTART,
        "artifact_bytes_max": Reach.RESTART,
        "artifacts_total_bytes_max": Reach.RESTART,
        "artifact_disk_spare_bytes": Reach.RESTART,
        "artifact_unreferenced_bytes_max": Reach.RESTART,
        "artifact_orphan_hours": Reach.RESTART,
        "artifact_released_hours": Reach.RESTART,
    },
    # These are replaced as a whole, so that a new field of theirs is taken over without a line here.
    StreamSettings: Reach.APPLY,
    BrokerSettings: Reach.APPLY,
    PeerSettings: Reach.APPLY,
    OpcuaSourceSettings: Reach.APPLY,
    ModbusSourceSettings: Reach.APPLY,
    SigningSettings: Reach.APPLY,
    OriginSettings: Reach.APPLY,
    PairSettings: Reach.RESTART,
    PageSettings: Reach.OTHER,
    NotifySettings: Reach.OTHER,
}

_KEYS = {
    "stream": "name",
    "broker": "name",
    "peer": "node",
    "origin": "zone",
    "opcua": "name",
    "modbus": "name",
    "notify": "name",
}


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """How to apply new settings. Names are in the operator's form: `peer plant-a`, `store.bytes_max`."""

    settings: NodeSettings
    """In force when the plan is carried out."""
    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """If not empty, nothing is done."""
    brokers: frozenset[str] = frozenset()
    """Brokers over which everything ends, and restarts where they are still configured."""
    sources: frozenset[str] = frozenset()
    """Sources that end, and restart where they are still configured."""
    has_new_limits: bool = False
    """Limits of the store, settings of streams, or limits of what peers may hold back have changed."""
    has_new_trust: bool = False
    """[signing] or [[origin]] has changed."""


def reach_of(section: type, name: str) -> Reach:
    """The class of one field of a section."""
    found = REACH[section]
    return found if isinstance(found, Reach) else found[name]


def plan_reload(old: NodeSettings, new: NodeSettings) -> ReloadPlan:
    """Compare the settings in force with those of the file; both are free of problems."""
    by_reach: dict[Reach, list[str]] = {reach: [] for reach in Reach}
    in_force: dict[str, Any] = {}
    for field in fields(NodeSettings):
        before, after = getattr(old, field.name), getattr(new, field.name)
        merge = _merged_list if isinstance(after, tuple) else _merged_section
        in_force[field.name] = merge(field.name, before, after, by_reach)
    if by_reach[Reach.REFUSE]:
        return ReloadPlan(old, refused=tuple(by_reach[Reach.REFUSE]))
    settings = NodeSettings(**in_force)
    return ReloadPlan(
        settings,
        applied=tuple(by_reach[Reach.APPLY]),
        needs_restart=tuple(by_reach[Reach.RESTART]),
        brokers=frozenset(_changed(_brokers(old), _brokers(settings))),
        sources=frozenset(_changed(_named(old.sources, "name"), _named(settings.sources, "name"))),
        has_new_limits=_limits(old) != _limits(settings),
        has_new_trust=(old.signing, old.origin) != (settings.signing, settings.origin),
    )


def _merged_section(section: str, before: Any, after: Any, by_reach: dict[Reach, list[str]]) -> Any:
    """The section as it will be in force; notes each field that differs."""
    applied: dict[str, Any] = {}
    for field in fields(after):
        if getattr(before, field.name) == getattr(after, field.name):
            continue
        reach = reach_of(type(after), field.name)
        by_reach[reach].append(f"{section}.{field.name}")
        if reach in {Reach.APPLY, Reach.OTHER}:
            applied[field.name] = getattr(after, field.name)
    return replace(before, **applied)


def _merged_list(
    section: str, before: tuple[Any, ...], after: tuple[Any, ...], by_reach: dict[Reach, list[str]]
) -> Any:
    """The list as it will be in force; notes each entry that was added, removed or changed."""
    if before == after:
        return after
    reach = REACH[type((*before, *after)[0])]
    assert isinstance(reach, Reach), "entries of a list are replaced as a whole"
    key = _KEYS[section]
    by_reach[reach] += [f"{section} {name}" for name in _changed(_named(before, key), _named(after, key))]
    return after if reach in {Reach.APPLY, Reach.OTHER} else before


def _named(entries: Iterable[Any], key: str) -> dict[str, Any]:
    return {getattr(entry, key): entry for entry in entries}


def _brokers(settings: NodeSettings) -> dict[str, object]:
    """By broker: its settings, those of its peers, and what follows for these from other peers of their zones."""
    return {
        broker.name: (
            broker,
            {peer.node: _of_peer(settings, peer) for peer in settings.peer if peer.broker == broker.name},
        )
        for broker in settings.broker
    }


def _of_peer(settings: NodeSettings, peer: PeerSettings) -> object:
    claims_lead = peer.node in settings.lead_claimants
    return peer, settings.origins_of(peer), settings.shared_zones(peer), claims_lead, settings.pair_zones & peer.origins


def _limits(settings: NodeSettings) -> object:
    holds = {peer.node: peer.zone_limit for peer in settings.peer}
    return settings.store, _named(settings.stream, "name"), holds


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    """Names that were added, removed or changed, in the order of the file."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield name
