"""The parts that a node makes from its settings: rights to read and append, accepted origins, and errors on which a
source waits."""

import asyncio
from pathlib import Path

import pytest

from agent.config import ConfigFile
from agent.fact_store import FactStore
from agent.fact_store.log import errors
from agent.fact_store.log.errors import StoreBusy, StoreFull
from agent.node.node import _SOURCE_RETRIES, Node, _first_reason
from agent.settings.node import HealthSettings, IdentitySettings, NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings

TELEMETRY, OPERATIONAL = "facts.telemetry", "facts.operational"


def made(folder: Path, store: FactStore, *peers: PeerSettings) -> Node:
    """The node of idmz with these peers, not running."""
    broker = BrokerSettings("site", "host", folder / "ca.pem", folder / "idmz.pem", folder / "idmz.key")
    settings = NodeSettings(
        IdentitySettings("idmz", folder), broker=(broker,), peer=peers, health=HealthSettings(listen_port=0)
    )

    async def make() -> Node:
        return Node(settings, store, {}, ConfigFile(folder / "node.toml"), asyncio.Event())

    return asyncio.run(make())


def test_each_peer_has_its_own_rights(tmp_path: Path) -> None:
    """A stream exported to one peer is not exported to another, and a peer that may read a stream may not append to
    it."""
    peers = (
        PeerSettings("plant-a", "site", exports=(TELEMETRY,)),
        PeerSettings("plant-b", "site", exports=(OPERATIONAL,), appends=("orders",)),
        PeerSettings("plant-c", "site", pulls=(TELEMETRY,)),
    )
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        server = made(tmp_path, store, *peers)._runtimes["site"].server
        exports = dict(server._context.exports)
        assert exports == {"plant-a": frozenset({TELEMETRY}), "plant-b": frozenset({OPERATIONAL})}
        assert dict(server._context.appends) == {"plant-b": frozenset({"orders"})}


def test_the_peers_of_all_brokers_share_their_turns(tmp_path: Path) -> None:
    """Each pair of zones may have a broker of its own, and reading for one zone takes time from all."""
    files = (tmp_path / "ca.pem", tmp_path / "idmz.pem", tmp_path / "idmz.key")
    brokers = tuple(BrokerSettings(name, "host", *files) for name in ("first", "second"))

    async def scenario(store: FactStore) -> None:
        settings = NodeSettings(IdentitySettings("idmz", tmp_path), broker=brokers)
        node = Node(settings, store, {}, ConfigFile(tmp_path / "node.toml"), asyncio.Event())
        first, second = (runtime.server._context.turns for runtime in node._runtimes.values())
        assert first is second

    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        asyncio.run(scenario(store))


def test_each_pull_takes_what_its_peer_may_bring(tmp_path: Path) -> None:
    """A pull accepts facts of the peer itself and of the zones that it relays, and reads as a consumer with our zone's
    name."""
    peers = (
        PeerSettings("plant-a", "site", pulls=(TELEMETRY,)),
        PeerSettings("relay", "site", pulls=(TELEMETRY,), relays=("plant-b",)),
    )
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        pulls = {
            pull._settings.peer_zone: pull._settings for pull in made(tmp_path, store, *peers)._runtimes["site"].pullers
        }
        assert {zone: one.origins for zone, one in pulls.items()} == {
            "plant-a": frozenset({"plant-a"}),
            "relay": frozenset({"relay", "plant-b"}),
        }
        assert {one.consumer_name for one in pulls.values()} == {f"idmz.{TELEMETRY}"}


def test_ready_waits_for_each_broker_that_is_not_optional(tmp_path: Path) -> None:
    """systemd starts what depends on this node once its brokers are reached; an optional one does not count."""
    files = (tmp_path / "ca.pem", tmp_path / "idmz.pem", tmp_path / "idmz.key")
    brokers = tuple(BrokerSettings(name, "host", *files, optional=name == "may") for name in ("first", "may", "last"))
    seen: list[str] = []

    class Reached:
        def __init__(self, name: str) -> None:
            self.name = name

        async def wait_up(self) -> None:
            seen.append(self.name)

    async def scenario(store: FactStore) -> None:
        settings = NodeSettings(IdentitySettings("idmz", tmp_path), broker=brokers)
        node = Node(settings, store, {}, ConfigFile(tmp_path / "node.toml"), asyncio.Event())
        for name, runtime in node._runtimes.items():
            runtime.link = Reached(name)  # type: ignore[assignment]
        node._notifier.ready = lambda: not seen.append("ready")  # type: ignore[method-assign, func-returns-value]
        await node._report_ready()

    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        asyncio.run(scenario(store))
    assert seen == ["first", "last", "ready"]


def test_a_source_retries_only_passing_errors() -> None:
    """A source retries if the store is full or busy; any other error of the store ends the source."""
    assert set(_SOURCE_RETRIES) == {StoreBusy, StoreFull}
    assert all(one("", "").retryable for one in _SOURCE_RETRIES)


@pytest.mark.parametrize(
    "raised, shown",
    [
        ([errors.StoreFailed("disk", "hint")], errors.StoreFailed),
        ([ValueError("x"), ExceptionGroup("in", [errors.StoreFailed("disk", "hint")])], errors.StoreFailed),
        ([errors.StoreFailed("disk", "hint"), AssertionError("ours")], ExceptionGroup),
        ([ValueError("x")], ExceptionGroup),
    ],
)
def test_the_operator_sees_the_first_bsfg_error(raised: list[Exception], shown: type[Exception]) -> None:
    """The first BsfgError of a group is raised; with an AssertionError or an unexpected error in it, the whole
    group."""
    assert isinstance(_first_reason(ExceptionGroup("node", raised)), shown)
