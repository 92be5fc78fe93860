"""The parts that a node makes from its settings: rights to read and append, and accepted origins."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.concurrency import TaskGroup
from agent.config import ConfigFile
from agent.config.in_force import load_kept
from agent.fact_store import FactStore
from agent.fact_store.core import errors
from agent.local_socket import ComparePeer
from agent.node import compare
from agent.node.latest import save_peer_latest
from agent.node.node import Node, _first_reason
from agent.node.reload_plan import plan_reload
from agent.node.start import Start
from agent.node.trust import TrustFiles
from agent.replication.pki import IdentityWatcher
from agent.replication.protocol.messages import PeerLatest
from agent.replication.protocol.token_bucket import Priority
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings, PullStart
from agent.settings.signing import OriginSettings
from agent.settings.store import StreamSettings
from tests.support.relay_store import FRONTIERS, opened, relay_store
from tests.waiting import wait_until_async

TELEMETRY, OPERATIONAL = "facts.telemetry", "facts.operational"


def peer_of(zone: str, broker: str, **settings: Any) -> PeerSettings:
    """A peer without the stream `health`, so that the streams are those that a test names."""
    return PeerSettings(zone, broker, health=False, **settings)


@pytest.fixture(name="store")
def store_of_idmz(tmp_path: Path) -> Iterator[FactStore]:
    """The store of the second of two nodes of idmz, so that its name is not that of its zone."""
    with FactStore.open(tmp_path / "facts.db", "idmz", node="idmz-2") as store:
        yield store


def broker_of(name: str, **settings: Any) -> BrokerSettings:
    """A broker whose files are not there."""
    return BrokerSettings(name, "host", Path("/ca"), Path(f"/{name}.pem"), Path(f"/{name}.key"), **settings)


def made(store: FactStore, *peers: PeerSettings, brokers: Sequence[BrokerSettings] = (broker_of("site"),)) -> Node:
    """The node of this store with these peers and brokers, not running."""
    folder = store.path.parent
    settings = NodeSettings(IdentitySettings("idmz", folder, store.node), broker=tuple(brokers), peer=peers)
    return Node(store, Start(settings), ConfigFile(folder / "node.toml"), asyncio.Event())


async def test_each_peer_has_its_own_rights(store: FactStore) -> None:
    """A stream exported to one peer is not exported to another, and a peer that may read a stream may not append to
    it."""
    peers = (
        peer_of("plant-a", "site", exports=(TELEMETRY,)),
        peer_of("plant-b", "site", exports=(OPERATIONAL,), appends=("orders",)),
        peer_of("plant-c", "site", pulls=(TELEMETRY,)),
    )
    server = made(store, *peers)._runtimes["site"].server
    assert {node: (rights.exports, rights.appends) for node, rights in server._context.peers.items()} == {
        "plant-a": ({TELEMETRY}, frozenset()),
        "plant-b": ({OPERATIONAL}, {"orders"}),
    }


async def test_two_nodes_of_one_zone_are_two_peers(store: FactStore) -> None:
    """Each is asked, served and compared with under its own name. Both may bring the facts of the zone and what either
    says about itself; requests name what is held of these. Nothing of the kind is asked of another peer. The status
    names every zone that any of them may bring."""
    pair = [peer_of("plant-a", "site", node=node, pulls=(TELEMETRY,)) for node in ("plant-a", "plant-a-2")]
    other = peer_of("plant-b", "site", pulls=(TELEMETRY,), relays=("cell",))
    reader = peer_of("reader", "site", exports=(TELEMETRY,))
    assert made(store, reader)._collector.snapshot().zones_accepted is None
    node_made = made(store, *pair, other, reader)
    assert node_made._collector.snapshot().zones_accepted == ("cell", "plant-a", "plant-a-2", "plant-b")
    runtime = node_made._runtimes["site"]
    found = {puller._runner.settings.peer_node: puller._runner.settings for puller in runtime.pullers}
    assert [*found] == [*runtime.comparers] == [*runtime.nodes[:-1]] == ["plant-a", "plant-a-2", "plant-b"]
    for puller in runtime.pullers:
        node = puller._runner.settings.peer_node
        assert puller._requester is runtime.comparers[node]._requester._requester
        assert puller._requester.peer_node == node
    both = frozenset({"plant-a", "plant-a-2"})
    for node in both:
        assert (found[node].origins, {*found[node].shared_zones}) == (both, both)
        assert found[node].receiver.repeated_ms > 0
        assert runtime.comparers[node].settings.pair_zones == {"plant-a"}
    assert found["plant-b"].origins == {"plant-b", "cell"}
    assert (found["plant-b"].shared_zones, found["plant-b"].receiver.repeated_ms) == ((), 0)
    assert {comparer.consumer_name for comparer in found.values()} == {f"idmz-2.{TELEMETRY}"}
    assert dict(runtime.server._context.peers)["plant-a-2"].zones == both


async def test_each_of_two_brokers_has_its_own_peers_and_the_status_all(tmp_path: Path) -> None:
    """A peer is served, pulled from and compared with at its broker alone. The status and the facts
    known to be at peers count all brokers, and the status has each consumer of each stream. Reading for the peers of
    one takes time from all, so they share their turns."""
    peers = (
        peer_of("plant-a", "first", exports=(OPERATIONAL,), pulls=(TELEMETRY,)),
        peer_of("plant-b", "second", exports=(TELEMETRY,), pulls=(TELEMETRY, OPERATIONAL)),
    )
    with opened(relay_store(tmp_path)) as store:
        node = made(store, *peers, brokers=(broker_of("first"), broker_of("second")))
        first, second = (runtime.server._context.turns for runtime in node._runtimes.values())
        assert first is second
        for peer in peers:
            runtime = node._runtimes[peer.broker]
            assert runtime.nodes == (peer.zone,)
            assert {node: rights.exports for node, rights in runtime.server._context.peers.items()} == {
                peer.zone: {*peer.exports}
            }
            assert [
                (puller._runner.settings.peer_node, puller._runner.settings.stream) for puller in runtime.pullers
            ] == [(peer.zone, stream) for stream in peer.pulls]
            assert [*runtime.comparers] == [peer.zone]
            for number, puller in enumerate(runtime.pullers, 1):
                puller._runner.peer_end_offset = puller.statistics().offset + 10 * number
            counted = runtime.comparers[peer.zone]._counted
            counted |= {stream: replace(counts, repaired_facts=len(counted)) for stream, counts in counted.items()}
        assert [(depth, node._queue_depth(depth)) for depth in (TELEMETRY, OPERATIONAL)] == [
            (TELEMETRY, 20),
            (OPERATIONAL, 20),
        ]
        refreshing = asyncio.create_task(node._collector.run())
        await wait_until_async(lambda: node._collector._turns, "a refresh")
        refreshing.cancel()
        shown = node._collector.snapshot()
        assert [*node._collector._lags] == [(peer.zone, stream) for peer in peers for stream in peer.pulls]
        ends = {stream.name: stream.end_offset for stream in store.streams()}
        assert {
            consumer.name: (consumer.zone, consumer.stream, ends[consumer.stream] - consumer.behind_facts)
            for consumer in shown.consumers
        } == (FRONTIERS)
        assert [
            (peer.zone, peer.stream, peer.compared and peer.compared.repaired_facts_total) for peer in shown.peers
        ] == [
            ("plant-a", TELEMETRY, 1),
            ("plant-b", TELEMETRY, 2),
            ("plant-b", OPERATIONAL, 2),
        ]
        assert [(broker.name, broker.connected) for broker in shown.brokers] == [("first", False), ("second", False)]


async def test_each_part_goes_by_the_settings_of_its_peer(store: FactStore) -> None:
    """Requests, answers and pages are judged by the signers that this node trusts, and a peer has the limits
    that are set for it, on both sides, which all its requests share, also one that only appends. It is known by its
    name, not by its zone."""
    limits = {"consumers_max": 3, "bytes_per_second_max": 100_000}
    peer = peer_of("plant-a", "site", node="plant-a-2", exports=(TELEMETRY,), pulls=(TELEMETRY,), **limits)
    slower = {"requests_per_second_max": 7, "bytes_per_second_max": 20_000}
    node = made(store, peer, peer_of("plant-b", "site", appends=("orders",), **slower), peer_of("plant-c", "site"))
    runtime, judge = node._runtimes["site"], node._trust.judge
    server, (puller,), comparer = runtime.server, runtime.pullers, runtime.comparers["plant-a-2"]
    assert server._refuses_request == judge.messages.refuses_request
    assert server._context.limits_of("plant-a-2").consumers_max == 3
    assert server._context.limits_of("plant-b").requests_per_second_max == 7
    assert puller._requester._refuses_answer == judge.messages.refuses_answer
    assert puller._runner._judge is comparer._tools.judge is judge
    rates = {name: bucket.bytes_per_second_max for name, bucket in runtime.bandwidths.items()}
    assert rates == {"plant-a-2": 100_000, "plant-b": 20_000}
    bandwidth = runtime.bandwidths["plant-a-2"]
    throttled = [comparer._requester, puller._runner.artifacts._requester]
    assert all(throttle._bandwidth is bandwidth for throttle in (puller, *throttled))
    assert [throttle._priority for throttle in throttled] == [Priority.REPAIR, Priority.BACKLOG]


def test_a_comparison_without_a_node_judges_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a running node does. A repair stores what the answers bring."""
    seen = list[tuple[object, ...]]()

    class SeenEnough(Exception):
        """Nothing is to be asked."""

    def comparers(*given: Any) -> None:
        _, _, requesters, limits, judge = given
        seen.append((requesters["plant-a"]._refuses_answer == judge.messages.refuses_answer, *limits))
        raise SeenEnough

    monkeypatch.setattr(compare, "comparers", comparers)
    peer = peer_of("plant-a", "site", pulls=(TELEMETRY,), bytes_per_second_max=100_000)
    settings = NodeSettings(IdentitySettings("idmz", tmp_path), broker=(broker_of("site"),), peer=(peer,))
    FactStore.open(tmp_path / "facts.db", "idmz").close()
    with pytest.raises(SeenEnough):
        asyncio.run(compare.compare_alone(settings, ComparePeer("plant-a", repair=True)))
    assert seen == [(True, "plant-a")]


async def test_a_pull_begins_where_its_peer_says(tmp_path: Path, store: FactStore) -> None:
    """Each stream of a peer by its own start: at the oldest fact or at the end of the log; a comparison does not count
    what is before the end as missing. The latest values are asked for once: not where those of an earlier start are
    kept."""
    telemetry, operational = ("oldest", "end", "latest"), ("end", "latest", "oldest")
    peers = [
        peer_of(
            f"plant-{first}",
            "site",
            pulls=(TELEMETRY, OPERATIONAL),
            relays=(f"mill-{first}",),
            start=(PullStart(TELEMETRY, first), PullStart(OPERATIONAL, second)),
        )
        for first, second in zip(telemetry, operational, strict=True)
    ]
    asked = [("plant-end", OPERATIONAL), ("plant-latest", TELEMETRY)]
    for kept in ([], asked[:1], asked):
        for node, stream in kept:
            save_peer_latest(tmp_path, PeerLatest(node, stream, 1, []))
        runtime = made(store, *peers)._runtimes["site"]
        starts = [
            (puller._runner.settings.stream, puller._runner.settings.receiver.start) for puller in runtime.pullers
        ]
        assert starts[::2] == [(TELEMETRY, "oldest"), (TELEMETRY, "end"), (TELEMETRY, "end")]
        assert starts[1::2] == [(OPERATIONAL, "end"), (OPERATIONAL, "end"), (OPERATIONAL, "oldest")]
        compared = [comparer.settings for comparer in runtime.comparers.values()]
        assert [comparer.begun_late for comparer in compared] == [{OPERATIONAL}, {TELEMETRY, OPERATIONAL}, {TELEMETRY}]
        assert [comparer.origins for comparer in compared] == [frozenset({peer.zone, *peer.relays}) for peer in peers]
        assert [(seed._requester.peer_node, seed._stream) for seed in runtime._latest_seeds] == [
            place for place in asked if place not in kept
        ]


async def test_ready_waits_for_the_socket_and_each_broker_that_is_not_optional(store: FactStore) -> None:
    """systemd starts what depends on this node once programs can connect and its brokers are reached; an optional one
    does not count."""
    brokers = [broker_of(name, optional=name == "may") for name in ("first", "may", "last")]
    seen: list[str] = []

    class Reached:
        def __init__(self, name: str) -> None:
            self.name = name

        async def wait_up(self) -> None:
            seen.append(self.name)

    node = made(store, brokers=brokers)
    for name, runtime in node._runtimes.items():
        runtime.link = Reached(name)  # type: ignore[assignment]
    node._notifier.ready = lambda: not seen.append("ready")  # type: ignore[method-assign, func-returns-value]
    reporting = asyncio.create_task(node._report_ready())
    await asyncio.sleep(0)
    assert seen == []
    node._is_served.set()
    await reporting
    assert seen == ["first", "last", "ready"]


async def test_the_certificates_of_each_broker_are_watched_after_each_reload(tmp_path: Path, store: FactStore) -> None:
    """A reload adds a broker, the next one removes the first: the watcher has the identities of the brokers that are
    there, whatever was there when it began, and these brokers are kept for the next start. Its nodes of one zone may
    then ask who leads, and the limits of streams are those of the file."""
    brokers = [broker_of("first"), broker_of("second")]
    node = made(store, brokers=brokers[:1])
    first = node._reloader.settings
    pair = tuple(peer_of("plant-a", "second", node=f"plant-a-{n}", asks=True) for n in (1, 2))
    limits = [(StreamSettings(TELEMETRY, ttl_hours=hours),) for hours in (100, 200)]
    steps = zip((brokers, brokers[1:]), limits, strict=True)
    lists = [first, *(replace(first, broker=tuple(some), peer=pair, stream=limit) for some, limit in steps)]
    watcher = IdentityWatcher(node._identities)
    async with TaskGroup() as group:
        node._group = group
        ingest = group.create_task(node._ingest.run(), name="ingest")
        node._runtimes["first"].start(group)
        await asyncio.sleep(0)  # the sources run
        for before, after in pairwise(lists):
            await node._carry_out(plan_reload(before, after), {})
            assert [identity.files[1] for identity in watcher._identities] == [
                broker.cert_file for broker in after.broker
            ]
            assert watcher._identities == [runtime.identity for runtime in node._runtimes.values()]
            kept = load_kept(tmp_path)
            assert kept is not None
            assert kept.settings.broker == after.broker
            assert store.policy(TELEMETRY) == after.stream[0]
            assert node._shared.lead_desk.claimants == {"plant-a-1": "plant-a", "plant-a-2": "plant-a"}
        assert node._readiness is not None
        node._readiness.cancel()
        node._runtimes["second"].stop()
        node._ingest.stop()
        await ingest


async def test_a_wait_for_brokers_that_are_gone_ends(store: FactStore) -> None:
    """A reload has replaced a broker that was not reached: nothing reaches the old one any more, and a stop would wait
    for that without end."""

    class Unreached:
        async def wait_up(self) -> None:
            await asyncio.Event().wait()

    node = made(store)
    node._runtimes["site"].link = Unreached()  # type: ignore[assignment]
    async with asyncio.TaskGroup() as group:
        node._is_served.set()
        node._wait_for_readiness(group)
        before = node._readiness
        await asyncio.sleep(0)
        node._runtimes.clear()
        node._wait_for_readiness(group)
        assert before is not None
        assert node._readiness is not None
        await node._readiness
        assert before.cancelled()


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


def test_each_zone_has_the_rule_of_its_own_origin(tmp_path: Path, store: FactStore) -> None:
    """Two zones with different rules, and one without."""
    origins = (OriginSettings("plant-a", "required"), OriginSettings("plant-b", "off"))
    settings = NodeSettings(IdentitySettings("idmz", tmp_path), origin=origins)
    policy = TrustFiles.opened(settings, store).judge.messages.policy
    assert [policy.rule_of(f"plant-{name}") for name in "abc"] == ["required", "off", "if_present"]
