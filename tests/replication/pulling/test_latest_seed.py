"""A new zone that begins at the latest values: it has them at once, no older facts, and all facts that follow."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.config import load
from agent.local_socket.serving import open_store
from agent.message import Sample, TagDefinition
from agent.node.latest import FOLDER, has_peer_latest, peer_latest, save_peer_latest
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.codec import HEADER_BYTES_MAX
from agent.replication.protocol.errors import MalformedMessage, PeerRefused
from agent.replication.protocol.messages import GetLatest, LatestAnswer, LatestEntry, PeerLatest
from agent.replication.pulling import latest_seed
from agent.replication.pulling.latest_seed import ANSWERS_BYTES_MAX, LatestSeed
from agent.replication.pulling.throttled_requester import ThrottledRequester
from tests.replication.nodes import STREAM, Node, whole_node
from tests.replication.serving.test_latest import value
from tests.support.mosquitto import Mosquitto
from tests.waiting import LIMIT_S, wait_until_async

BASE_NS = 1_700_000_000_000_000_000
TAGS = 5


async def plant_with_history(broker: Mosquitto, folder: Path) -> Node:
    """plant-a with a few hundred facts of five tags."""
    plant = Node.open(broker, "plant-a", folder)
    tags = [TagDefinition(f"tag:line1/t{number}", source="press") for number in range(TAGS)]
    await asyncio.wrap_future(plant.store.appends.define(tags))
    await append_rounds(plant, range(100), range(1, TAGS + 1))
    return plant


async def append_rounds(plant: Node, rounds: range, tags: range) -> None:
    """One fact of each tag in each round."""
    rows = [Sample(tag, BASE_NS + n * 1_000_000_000, float(100 * n + tag)) for n in rounds for tag in tags]
    await asyncio.wrap_future(plant.store.appends.append_samples(STREAM, rows))


PULL = f'zone = "plant-a"\nhealth = false\npulls = ["{STREAM}"]\nstart = [{{ stream = "{STREAM}", at = "latest" }}]'


async def shown(file: Path) -> dict[str, tuple[float, str | None]]:
    """What `bsfg latest` shows of each tag, and the peer from which the value came."""
    done = await asyncio.to_thread(CliRunner().invoke, bsfg, ["latest", "--config", str(file), "--json"])
    rows = [json.loads(line) for line in done.output.splitlines()]
    return {row["subject"].removeprefix("tag:line1/"): (row["value"], row["via"]) for row in rows}


@pytest.mark.system
async def test_a_new_zone_begins_at_the_latest_values(broker: Mosquitto, tmp_path: Path) -> None:
    """The receiver's log begins after the history. `bsfg latest` has every tag at once, with the peer it came from,
    until the log has a newer value; after a restart nothing is requested twice and nothing is missing."""
    folder = tmp_path / "idmz"
    file = folder / "node.toml"
    plant = await plant_with_history(broker, tmp_path / "plant")
    plant.serve({"idmz": [STREAM]})
    history = plant.store.end_offset(STREAM)
    server = plant.server
    assert server is not None
    async with plant.running():
        async with whole_node(folder, broker, "idmz", PULL):
            await wait_until_async(lambda: has_peer_latest(folder / "state", "plant-a", STREAM), "the values")
            assert await shown(file) == {f"t{tag}": (9901.0 + tag, "plant-a") for tag in range(TAGS)}
            assert plant.store.consumers.all()[0].frontier == history
            await append_rounds(plant, range(200, 201), range(1, 3))
            await wait_until_async(lambda: plant.store.consumers.all()[0].frontier == history + 2, "what is new")
        asked = server.statistics().requests["GetLatest"]
        async with whole_node(folder, broker, "idmz", PULL):
            await append_rounds(plant, range(300, 301), range(2, 3))
            await wait_until_async(lambda: plant.store.consumers.all()[0].frontier == history + 3, "what came after")
            found = await shown(file)
        assert server.statistics().requests["GetLatest"] == asked
    from_peer = {f"t{tag}": (9901.0 + tag, "plant-a") for tag in range(2, TAGS)}
    assert found == {"t0": (20001.0, None), "t1": (30002.0, None), **from_peer}
    plant.store.close()
    with open_store(load(file)) as store:
        assert {stream.name: stream.end_offset for stream in store.streams()}[STREAM] == 3
        assert store.reader.incidents() == []


@pytest.mark.system
async def test_a_relay_passes_on_the_latest_values_it_received(broker: Mosquitto, tmp_path: Path) -> None:
    """A zone above a relay that began at the latest values gets the same values, with their source and without an
    offset; zones that the peer may not relay are left out."""
    idmz, enterprise = Node.open(broker, "idmz", tmp_path), Node.open(broker, "enterprise", tmp_path)
    save_peer_latest(tmp_path, values_of("plant-a", [value(1), value(2)]))
    idmz.serve({"enterprise": [STREAM]}, peer_latest_in=tmp_path)
    begun, kept = asyncio.Event(), list[PeerLatest]()
    values = LatestSeed(
        ThrottledRequester(enterprise.requester("idmz")), STREAM, frozenset({"idmz", "plant-a"}), begun, kept.append
    )
    others = LatestSeed(
        ThrottledRequester(enterprise.requester("idmz")), STREAM, frozenset({"idmz"}), begun, kept.append
    )
    async with idmz.running(), enterprise.running():
        begun.set()
        await values.run()
        await others.run()
    assert [[(entry.subject, entry.via, entry.offset) for entry in seed.values] for seed in kept] == [
        [("tag:001", "plant-a", None), ("tag:002", "plant-a", None)],
        [],
    ]


def values_of(peer: str, values: list[LatestEntry]) -> PeerLatest:
    """The values that a peer sent."""
    return PeerLatest(peer, STREAM, 1_700_000_000_000, values)


def test_a_saved_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """Values of two peers are kept apart and read together; a newer file replaces the one before; a truncated file
    counts as missing, and so does one that lacks a zone: it is asked for again when the peer may relay that zone."""
    save_peer_latest(tmp_path, values_of("plant-a", [value(1)]))
    save_peer_latest(tmp_path, values_of("plant-b", [value(2), value(3)]))
    save_peer_latest(tmp_path, values_of("plant-a", [value(4)]))
    rows = peer_latest(tmp_path, STREAM)
    assert [(row["subject"], row["via"], row["value"]) for row in rows] == [
        ("tag:004", "plant-a", "x" * 10), ("tag:002", "plant-b", "x" * 10), ("tag:003", "plant-b", "x" * 10),
    ]  # fmt: skip
    assert peer_latest(tmp_path, "facts.other") == []
    assert (has_peer_latest(tmp_path, "plant-a", STREAM), has_peer_latest(tmp_path, "plant-c", STREAM)) == (True, False)
    (cut,) = (tmp_path / FOLDER).glob("plant-b.*")
    cut.write_bytes(cut.read_bytes()[:-9])
    assert not has_peer_latest(tmp_path, "plant-b", STREAM)
    save_peer_latest(tmp_path, replace(values_of("plant-c", [value(5)]), left_out=["mill"]))
    assert not has_peer_latest(tmp_path, "plant-c", STREAM)
    assert [row["via"] for row in peer_latest(tmp_path)] == ["plant-a", "plant-c"]


def odd(number: int, **fields: object) -> LatestEntry:
    """A value with other fields, as a peer may encode it."""
    return msgspec.structs.replace(value(number), **fields)


UNREADABLE = [b'"\xff"', b"1e400", b"-1e999", b'{"a":"\xc3("}', b"[" * 200 + b"]" * 200]
"""Passed over by the decoder of an answer, which leaves a value as it is, and by no parser of the value."""


@pytest.mark.parametrize("raw", UNREADABLE)
def test_a_value_that_is_no_json_is_refused_and_the_others_stay(
    raw: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Among good values, a peer sends one that no parser reads. It is dropped on arrival, with a log line that names
    the peer and the tag; the others are kept. (A node that kept it ended at the next request for latest values.)"""
    sent = [value(1), odd(2, value=msgspec.Raw(raw)), value(3)]
    own = {"store_zone": "plant-a", "life": "0" * 32, "stream": STREAM}
    answer = LatestAnswer(**own, end_offset=3, queue_depth=0, depth_facts=1, values=sent)

    async def ask(_request: GetLatest, _timeout_s: float) -> PeerReply:
        return PeerReply(answer, [])

    async def run() -> None:
        requester: Any = SimpleNamespace(ask=ask, peer_node="plant-a", page_bytes=lambda size: size)
        begun = asyncio.Event()
        begun.set()
        zones = frozenset({"plant-a"})
        await LatestSeed(requester, STREAM, zones, begun, lambda latest: save_peer_latest(tmp_path, latest)).run()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert [row["subject"] for row in peer_latest(tmp_path)] == ["tag:001", "tag:003"]
    (line,) = [record for record in caplog.records if record.msg == "latest_values_refused"]
    assert (line.peer, line.stream, line.values) == ("plant-a", STREAM, 1)  # type: ignore[attr-defined]
    assert "tag:002" in line.reason  # type: ignore[attr-defined]


async def test_values_are_asked_for_until_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the peer has registered the consumer; then ever more rarely, while the peer refuses or the disk is
    full. They count as of the moment before they were asked for, in however many pages they come, and values of other
    zones are left out."""
    failures, asked, kept, now_s = list[int](), list[float](), list[PeerLatest](), 10.0
    own = {"store_zone": "plant-a", "life": "0" * 32, "stream": STREAM, "end_offset": 3}
    pages = [value(1), odd(2, zone="mill")], [value(3)]

    def backoff_ms(_least_ms: int, _most_ms: int, count: int, _chance: float) -> int:
        failures.append(count)
        return 0

    async def ask(request: GetLatest, _timeout_s: float) -> PeerReply:
        nonlocal now_s
        asked.append(now_s)
        now_s += 5.0
        if len(asked) == 1:
            raise PeerRefused("plant-a", "busy", "later", "", retryable=True)
        is_first = request.after is None
        more: dict[str, Any] = {**own, "queue_depth": 0, "depth_facts": 1, "more": is_first}
        return PeerReply(LatestAnswer(values=pages[not is_first], **more), [])

    def keep(latest: PeerLatest) -> None:
        kept.append(latest)
        if len(kept) == 1:
            raise OSError("no space left on device")

    monkeypatch.setattr(latest_seed, "backoff_ms", backoff_ms)
    monkeypatch.setattr(latest_seed, "time", SimpleNamespace(time_ns=lambda: int(now_s * 1e9)))
    requester: Any = SimpleNamespace(ask=ask, peer_node="plant-a", page_bytes=lambda size: size)
    begun = asyncio.Event()
    seeding = asyncio.create_task(LatestSeed(requester, STREAM, frozenset({"plant-a"}), begun, keep).run())
    await asyncio.sleep(0)
    assert not asked
    begun.set()
    async with asyncio.timeout(LIMIT_S):
        await seeding
    assert (asked, failures) == ([10.0, 15.0, 20.0, 25.0, 30.0], [0, 1])
    assert [seed.asked_unix_ms for seed in kept] == [15_000, 25_000]
    assert [entry.subject for entry in kept[-1].values] == ["tag:001", "tag:003"]
    assert kept[-1].left_out == ["mill"]


@pytest.mark.parametrize(
    "zone, size, values_max, why, answers",
    [
        ("plant-a", HEADER_BYTES_MAX, 100_000, "32 MiB of", ANSWERS_BYTES_MAX // HEADER_BYTES_MAX + 1),
        ("north", 300, 10, "10", 11),  # which the peer may not send
    ],
)
async def test_the_values_of_a_peer_are_bounded(
    zone: str, size: int, values_max: int, why: str, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer sends few values in answers of the largest size, or small answers with values that are not kept, and says
    `more` endlessly: refused, before they fill the memory or the time."""
    monkeypatch.setattr(latest_seed, "VALUES_KEPT_MAX", values_max)
    own: dict[str, Any] = {"store_zone": "plant-a", "life": "0" * 32, "stream": STREAM, "more": True}
    asked = list[GetLatest]()

    async def ask(request: GetLatest, _timeout_s: float) -> PeerReply:
        asked.append(request)
        assert len(asked) <= answers, "it is asked without end"
        values = [odd(0, subject=f"tag:{len(asked):03}", zone=zone)]
        return PeerReply(LatestAnswer(**own, end_offset=3, queue_depth=0, depth_facts=1, values=values), [], size)

    requester: Any = SimpleNamespace(ask=ask, peer_node="plant-a", page_bytes=lambda size: size)
    seed = LatestSeed(requester, STREAM, frozenset({"plant-a"}), asyncio.Event(), lambda _: None)
    with pytest.raises(MalformedMessage, match=f"more than {why} last values"):
        await seed._ask()
    assert len(asked) == answers


def test_a_file_with_a_value_that_is_no_json_counts_as_missing(tmp_path: Path) -> None:
    """An earlier version kept such a file: its values are requested again at the next start, and no reader fails."""
    save_peer_latest(tmp_path, values_of("plant-a", [value(1), odd(2, value=msgspec.Raw(b"1e400"))]))
    assert not has_peer_latest(tmp_path, "plant-a", STREAM)
    assert peer_latest(tmp_path) == []
