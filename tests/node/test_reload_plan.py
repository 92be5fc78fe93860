"""The plan for a changed node.toml: every field is in one class, and the plan names each change once."""

import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import read
from agent.node.reload_plan import REACH, Reach, ReloadPlan, plan_reload, reach_of
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.notify import NotifySettings
from agent.settings.peers import BrokerSettings, PeerSettings
from agent.settings.signing import OriginSettings
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings
from agent.settings.store import StreamSettings

FILE = Path("/etc/bsfg/plant-a.toml")
FILES = {"ca_file": Path("/ca"), "cert_file": Path("/cert"), "key_file": Path("/key")}


def broker(name: str, port: int = 8883) -> BrokerSettings:
    """A broker by name."""
    return BrokerSettings(name, "host", port=port, **FILES)


def modbus(name: str, unit_id: int = 1) -> ModbusSourceSettings:
    """A Modbus source by name."""
    return ModbusSourceSettings(name, Path("/tags"), 0, host="device", unit_id=unit_id)


FULL = NodeSettings(
    IdentitySettings("plant-a", Path("/state")),
    stream=(StreamSettings("facts.telemetry"),),
    broker=(broker("b1"), broker("b2")),
    peer=(PeerSettings("idmz", "b1", exports=("facts.telemetry",)), PeerSettings("lab", "b2", asks=True)),
    origin=(OriginSettings("plant-b"),),
    notify=(NotifySettings("ops", webhook_url="https://x"),),
    opcua=(OpcuaSourceSettings("plc", "opc.tcp://plc:4840", Path("/tags")),),
    modbus=(modbus("meter"),),
)
"""One entry of every section."""


def leaves() -> list[tuple[str, type, str, int | None]]:
    """Every setting: the section's name, its type, the field, and the entry's index in a list."""
    found: list[tuple[str, type, str, int | None]] = []
    for section, kind in typing.get_type_hints(NodeSettings).items():
        entry = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
        assert is_dataclass(entry), f"{section}: a section is a dataclass, or a tuple of them"
        index = 0 if entry is not kind else None
        found += [(section, typing.cast(type, entry), field.name, index) for field in fields(entry)]
    return found


def other(value: Any) -> Any:
    """A different value of the same type. It is only compared, never used, so it need not make sense."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case Path():
            return value / "x"
        case tuple():
            return (*value, "x")
        case None:
            return Path("/x")
    raise AssertionError(f"no other value of {value!r}")


def changed(section: str, field: str, index: int | None) -> NodeSettings:
    """FULL with one field changed."""
    before = getattr(FULL, section)
    if index is None:
        return replace(FULL, **{section: replace(before, **{field: other(getattr(before, field))})})
    entry = replace(before[index], **{field: other(getattr(before[index], field))})
    return replace(FULL, **{section: (entry, *before[1:])})


def test_every_setting_is_in_exactly_one_class() -> None:
    """A new section, or a new field of a section that is not replaced as a whole, needs a class. No class is for a
    field that does not exist."""
    of_type: dict[type, set[str]] = {}
    for _, kind, field, _ in leaves():
        assert isinstance(reach_of(kind, field), Reach)
        of_type.setdefault(kind, set()).add(field)
    assert REACH.keys() == of_type.keys()
    for kind, classes in REACH.items():
        assert isinstance(classes, Reach) or classes.keys() == of_type[kind]


@pytest.mark.parametrize("section, kind, field, index", leaves())
def test_each_setting_alone(section: str, kind: type, field: str, index: int | None) -> None:
    """A change of one field is named once, under its class, and afterwards only fields of class APPLY are in force."""
    new = changed(section, field, index)
    plan = plan_reload(FULL, new)
    named = {Reach.APPLY: plan.applied, Reach.RESTART: plan.needs_restart, Reach.REFUSE: plan.refused}
    reach = reach_of(kind, field)
    if reach is Reach.OTHER:
        assert plan == ReloadPlan(new), "another program reads it, and nothing is told"
        return
    assert {named_reach for named_reach, names in named.items() if names} == {reach}
    assert all(name.startswith(section) for name in named[reach])
    assert plan.settings == (new if reach is Reach.APPLY else FULL)
    if reach is not Reach.APPLY:
        assert (plan.brokers, plan.sources, plan.has_new_limits) == (frozenset(), frozenset(), False)


def test_a_changed_part_takes_no_other_with_it() -> None:
    """A peer's limit affects only what uses its broker, a source only itself, a stream's limit nothing else; a peer
    that moves to another broker affects both brokers."""
    limited = replace(FULL.peer[1], bytes_per_second_max=100_000)
    assert plan_reload(FULL, replace(FULL, peer=(FULL.peer[0], limited))).brokers == {"b2"}
    moved = replace(FULL.peer[1], broker="b1")
    assert plan_reload(FULL, replace(FULL, peer=(FULL.peer[0], moved))).brokers == {"b1", "b2"}
    plan = plan_reload(FULL, replace(FULL, modbus=(modbus("meter", 2), modbus("new"))))
    assert (plan.sources, plan.brokers) == ({"meter", "new"}, frozenset())
    plan = plan_reload(FULL, replace(FULL, stream=(StreamSettings("facts.telemetry", keep_hours=1.0),)))
    assert (plan.sources, plan.brokers, plan.has_new_limits) == (frozenset(), frozenset(), True)
    for holding in (replace(FULL.peer[1], hold_bytes_max=10**9), replace(FULL.peer[1], hold_hours_max=2.0)):
        assert plan_reload(FULL, replace(FULL, peer=(FULL.peer[0], holding))).has_new_limits
    assert not plan_reload(FULL, replace(FULL, peer=(FULL.peer[0], limited))).has_new_limits
    plan = plan_reload(FULL, replace(FULL, origin=(OriginSettings("plant-b", "off"),)))
    assert (plan.sources, plan.brokers, plan.has_new_trust) == (frozenset(), frozenset(), True)
    assert not plan_reload(FULL, replace(FULL, peer=(FULL.peer[0], limited))).has_new_trust
    plan = plan_reload(FULL, replace(FULL, peer=(), broker=FULL.broker[:1], modbus=()))
    assert (plan.brokers, plan.sources) == ({"b1", "b2"}, {"meter"})


def test_a_second_node_of_a_zone_restarts_what_the_first_one_is_reached_by() -> None:
    """Although it is reached by another broker: from then on the first one brings facts of both, may ask who leads, and
    is asked only for what is not here yet."""
    first, second = (PeerSettings("lab", "b2", asks=True, node=node) for node in ("lab", "lab-2"))
    one, two = (replace(FULL, peer=(FULL.peer[0], *labs)) for labs in ((first,), (first, replace(second, broker="b1"))))
    assert [plan_reload(*change).brokers for change in ((one, two), (two, one))] == [{"b1", "b2"}] * 2


def test_the_order_of_entries_does_not_count() -> None:
    """An operator who sorts the file changes nothing."""
    assert plan_reload(FULL, replace(FULL, broker=FULL.broker[::-1], peer=FULL.peer[::-1])).applied == ()


def settings() -> st.SearchStrategy[NodeSettings]:
    """Files of one zone with a few entries each, free of problems."""
    tables = st.fixed_dictionaries(
        {
            "node": st.fixed_dictionaries({"zone": st.just("plant-a"), "state_dir": st.sampled_from(["a", "b"])}),
            "store": st.fixed_dictionaries({"bytes_max": st.sampled_from([0, 2**20, 2**21])}),
            "page": st.fixed_dictionaries({"listen_port": st.sampled_from([0, 1])}),
            "broker": st.lists(st.sampled_from(["b1", "b2"]), unique=True).map(
                lambda names: [
                    {"name": n, "host": "h", **{k: str(v) for k, v in FILES.items()}} for n in ["b0", *names]
                ]
            ),
            "peer": st.lists(
                st.fixed_dictionaries({"zone": st.sampled_from(["x", "y", "z"]), "consumers_max": st.integers(0, 2)}),
                unique_by=lambda origin: origin["zone"],
            ).map(lambda some: [{**peer, "broker": "b0", "asks": True} for peer in some]),
            "stream": st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["s", "t"]), "keep_hours": st.sampled_from([1, 2])}),
                unique_by=lambda source: source["name"],
            ),
            "modbus": st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["m", "n"]), "unit_id": st.integers(1, 2)}),
                unique_by=lambda source: source["name"],
            ).map(lambda some: [{**source, "host": "h", "tags_file": "t", "address_base": 0} for source in some]),
            "origin": st.lists(st.sampled_from(["p", "q"]), unique=True).map(lambda some: [{"zone": z} for z in some]),
        }
    )
    return tables.map(lambda table: read(table, FILE))


@given(settings(), settings())
def test_any_two_files(old: NodeSettings, new: NodeSettings) -> None:
    """After a plan was carried out, only what needs a restart differs from the file; after a restart nothing does. The
    settings in force are free of problems, and going back restores the settings before."""
    plan = plan_reload(old, new)
    assert not list(plan.settings.problems())
    again = plan_reload(plan.settings, new)
    assert (again.applied, again.needs_restart, again.settings) == ((), plan.needs_restart, plan.settings)
    assert plan_reload(new, new) == type(plan)(new)
    back = plan_reload(plan.settings, old)
    assert (back.brokers, back.sources, back.needs_restart) == (plan.brokers, plan.sources, ())
    assert back.settings == old
