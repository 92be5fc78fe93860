"""What a command says of one stream or zone is of that one, not of another."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agent.cli import peer
from agent.cli.facts import append, peer_requests
from agent.client import Client
from agent.health.brief import encode_health
from agent.health.snapshot import BrokerStatus, NodeSnapshot, PeerStatus
from agent.health.verdict import assess
from agent.node.latest import record_of, save_peer_latest
from agent.positions import Position
from agent.replication.protocol.messages import AppendAnswer, AppendedEntry, AppendFact, PeerLatest
from tests.cli.conftest import typed
from tests.replication.serving.test_latest import value


@pytest.fixture(autouse=True)
def _streams(plant_a: Path) -> None:
    """Three streams in its node.toml."""
    with (plant_a / "node.toml").open("a") as node:
        node.writelines(
            f'\n[[stream]]\nname = "{name}"\nacks_timeout_ms = {timeout_ms}\n'
            for name, timeout_ms in (("facts.a", 1_000), ("facts.b", 60_000), ("facts.c", 2_000))
        )


def answer_with(monkeypatch: pytest.MonkeyPatch, *peers: PeerStatus, brokers: tuple[BrokerStatus, ...] = ()) -> None:
    """Let the node answer with the status that one with these peers has."""
    snapshot = NodeSnapshot("plant-a", "00", 1, 0, None, peers=peers, brokers=brokers)
    found = json.loads(encode_health(snapshot, assess(snapshot), everything=True))
    monkeypatch.setattr(Client, "status", lambda *_, **__: found)


def test_an_append_waits_as_long_as_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node may wait for consumers for so long before it answers."""
    waited = []

    def ask(_settings: object, request: AppendFact, *_: object, waits_ms: int) -> Any:
        waited.append((request.stream, waits_ms))
        return AppendAnswer(store_zone="a", life="", outcomes=[AppendedEntry(offset=1, outcome="applied")])

    monkeypatch.setattr(append, "ask", ask)
    for stream in ("facts.a", "facts.b", "facts.c"):
        assert typed("append", "--stream", stream, "batch:1", "done", "{}").exit_code == 0
    assert waited == [("facts.a", 1_000), ("facts.b", 60_000), ("facts.c", 2_000)]


def test_latest_values_of_a_stream_from_peers() -> None:
    """Of what two peers reported of two streams, those of the named one are shown; without a name all."""
    assert typed("append", "--stream", "facts.a", "batch:1", "done", "{}").exit_code == 0
    assert typed("append", "--stream", "facts.b", "batch:1", "done", "{}").exit_code == 0
    kept = [("plant-b", "facts.a", 1), ("plant-b", "facts.b", 2), ("plant-c", "facts.a", 3)]
    for zone, stream, number in kept:
        save_peer_latest(Path("state"), PeerLatest(zone, stream, 1, [value(number)]))
    for words, numbers in (([], [1, 2, 3]), (["--stream", "facts.a"], [1, 3]), (["--stream", "facts.b"], [2])):
        shown = typed("latest", "--json", *words).output.splitlines()
        assert [json.loads(line)["subject"] for line in shown] == [f"tag:{number:03}" for number in numbers]


def test_of_many_peers_those_without_connection_come_first(plant_a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve with two streams each: a peer of which one stream is connected is connected. One that is behind comes
    next, with the stream and how far."""
    with (plant_a / "node.toml").open("a") as node:
        node.write('[[broker]]\nname = "b"\nhost = "h"\nca_file = "a"\ncert_file = "c"\nkey_file = "k"\n')
        node.writelines(f'[[peer]]\nzone = "p{n:02}"\nbroker = "b"\npulls = ["a", "b"]\n' for n in range(12))
    pulls = [
        PeerStatus(f"p{n:02}", stream, n != 11 and (stream == "b" or n != 7) and n != 5, 5, end, trouble="gone")
        for n in range(12)
        for stream, end in (("a", 5), ("b", 2_005 if n == 9 else 5))
    ]
    answer_with(monkeypatch, *pulls)
    lines = [line for line in typed("peer", "list").output.splitlines() if line.startswith("p")]
    assert [line.split()[0] for line in lines[:4]] == ["p05", "p11", "p09", "p00"]
    told = ["not connected: gone"] * 2 + ["connected; b is 2,000 facts behind", "connected"]
    assert [line.partition(": ")[2] for line in lines[:4]] == told
    assert len(lines) == 10


def test_latest_values_of_a_zone_from_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a relay sends of three zones, the tags of the named one are printed; of one that it does not name, none:
    a bad result. The command that a summary names asks the same. A part of a second is asked for as it is given."""
    zones = ("plant-b", "plant-c", "plant-d")
    sent = [record_of(msgspec.structs.replace(value(n), zone=zone), "facts.a") for n, zone in enumerate(zones, 1)]
    fresh_ms = list[int]()

    def get_latest(_s: object, _peer: str, _stream: str, _glob: str, wanted_ms: int, _answer_s: float) -> Any:
        fresh_ms.append(wanted_ms)
        return sent

    monkeypatch.setattr(peer_requests, "get_latest", get_latest)
    assert typed("latest", "--from", "relay", "--fresh-s", "1.5").exit_code == 0
    assert fresh_ms == [1_500]
    refused = typed("latest", "--from", "relay", "--depth", "9")
    assert (refused.exit_code, fresh_ms) == (2, [1_500]), "a depth that the peer would not obey is not sent to it"
    for words, shown in (([], zones), (["--zone", "plant-c"], ("plant-c",)), (["--zone", "plant-x"], ())):
        found = typed("latest", "--from", "relay", "--json", *words)
        assert [json.loads(line)["zone"] for line in found.stdout.splitlines()] == [*shown]
        assert found.exit_code == (not shown)
        summed = typed("latest", "--from", "relay", "--summary", *words).stdout.splitlines()[-1]
        assert summed == " ".join(["every tag: bsfg latest --config node.toml", *words, "--from relay"])


@pytest.mark.parametrize("place", [0, 1, 2, None])
def test_a_peer_with_one_connected_stream_is_connected(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its three streams that is; the trouble is told where none is, and of each pull that is blocked."""
    pulls = [PeerStatus("plant-b", f"s{n}", n == place, 0, 0, trouble="timeout") for n in range(3)]
    answer_with(monkeypatch, *pulls)
    settings: Any = SimpleNamespace(node=SimpleNamespace(state_dir=Path()), peer=())
    state = "not connected: timeout" if place is None else "connected"
    assert peer._state(settings) == {"plant-b": state}
    pulls[1] = replace(pulls[1], connected=False, trouble="not authorized. Add it.", blocked=True)  # so it has answered
    answer_with(monkeypatch, *pulls)
    assert peer._state(settings) == {"plant-b": "connected; s1 is blocked: not authorized. Add it"}
    pulls[2] = replace(pulls[1], stream="s2")
    answer_with(monkeypatch, *pulls)
    assert peer._state(settings) == {"plant-b": "connected; s1, s2 are blocked: not authorized. Add it"}


def test_a_peer_is_not_connected_where_its_broker_is_not(plant_a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one from which nothing is pulled, as a plant's only peer; with the reason of now, as `bsfg status` says it.
    A pull that another instance has taken over is not called lost."""
    with (plant_a / "node.toml").open("a") as node:
        node.write('[[broker]]\nname = "b"\nhost = "h"\nca_file = "a"\ncert_file = "c"\nkey_file = "k"\n')
        for settings in ('above"\nexports = ["a"]', 'below"\npulls = ["a"]'):
            node.write(f'[[peer]]\nbroker = "b"\nzone = "{settings}\n')
    pull = PeerStatus("below", "a", False, 4, 5, trouble="the connection ended", broker="b")
    told = "not connected: broker b (h:8883): refused.", "; a is 1 fact behind"
    for found, trouble, states in (
        (pull, told[0].partition(": ")[2], (told[0], told[0] + told[1])),
        (replace(pull, fenced=True), "", ("", "fenced, stopped" + told[1])),
    ):
        answer_with(monkeypatch, found, brokers=(BrokerStatus("b", not trouble, trouble=trouble),))
        lines = [line for line in typed("peer", "list").output.splitlines() if " at b" in line]
        assert [line.partition(" at b")[2].removeprefix(": ") for line in lines] == [*states]


def test_facts_that_differ_in_their_object_are_two() -> None:
    """Without --message-id, a repeated command stores its fact once, however its object is spaced, and one with another
    object a second fact."""
    words = ["append", "--stream", "facts.a", "--json", "batch:1", "done"]
    stored = [json.loads(typed(*words, sent).output) for sent in ('{"n":1}', '{"n":2}', '{ "n": 1 }')]
    assert [(row["outcome"], row["offset"]) for row in stored] == [
        ("applied", 1),
        ("applied", 2),
        ("noop_already_applied", 1),
    ]


def test_a_confirmation_names_its_first_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is asked for the part that the operator names, from the frontier if he names no beginning."""
    asked, here = [], Position(b"life", 9)

    def confirm(_: Client, *words: object) -> int:
        asked.append(words)
        return 9

    monkeypatch.setattr(Client, "position", lambda *_: here)
    monkeypatch.setattr(Client, "confirm", confirm)
    for words in (["9"], ["9", "--first-offset", "4"]):
        assert typed("confirm", "--consumer", "mes", *words).exit_code == 0
    assert asked == [("mes", here, first) for first in (None, 4)]
