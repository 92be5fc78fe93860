"""`bsfg consumer`: what an operator sees of each reader, and what removing one says and does."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent import local_socket
from agent.cli import main
from agent.fact_store import FactStore
from agent.lease import LeaseClaim
from agent.message import Envelope, Fact, Message
from tests.cli.conftest import typed as run
from tests.support.page import shown
from tests.support.relay_store import ALARMS, FRONTIERS, TELEMETRY, relay_store
from tests.support.served_store import served_store

pytestmark = pytest.mark.usefixtures("plant_a")
STREAM = "facts.operational"


def test_documented_commands_work() -> None:
    """Each command of docs/operate/consumers.md succeeds, in its order, in an empty folder."""
    outputs = []
    for arguments in shown("docs/operate/consumers.md", "consumers"):
        done = run(*arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        outputs.append(done.output)
    assert outputs[0] == "local.mes reads facts.operational from offset 1\n"
    assert [line.split()[0] for line in outputs[3].splitlines()[-2:]] == ["local.mes", "local.report"]
    assert "removed in 10 minutes" in outputs[-2]
    assert "it had not confirmed 1 facts, " in outputs[-2]
    assert outputs[-1] == "local.mes is removed\n"


def test_the_name_of_a_consumer_begins_with_its_owner() -> None:
    """Another name is refused, and the error has the right one: a peer could take it, or be kept from its own."""
    for arguments, right in (
        (("consumer", "add", "mes", "--stream", STREAM), "local.mes"),
        (("consumer", "add", "idmz.mes", "--stream", STREAM), "local.idmz.mes"),
        (("consumer", "add", "local.mes", "--stream", STREAM, "--zone", "idmz"), "idmz.local.mes"),
        (("fetch", "--consumer", "mes"), "local.<name>"),
    ):
        run("append", "batch:1", "done", "{}")
        assert f"{right}" in str(run(*arguments).exception)
    assert run("consumer", "list").output.startswith("no consumers")


def test_consumer_list_shows_what_each_holds_back() -> None:
    """Lag in facts, bytes and hours; a consumer that has confirmed everything holds nothing back; a stream without
    consumers is reported too."""
    assert run("consumer", "list").output.startswith("no consumers")
    for n in range(3):
        run("append", f"batch:{n}", "done", "{}")
    run("consumer", "add", "local.behind", "--stream", STREAM)
    run("consumer", "add", "idmz.ops", "--stream", STREAM, "--start", "end", "--zone", "idmz")
    level, behind = json.loads(run("consumer", "list", "--json").output)
    assert (behind["name"], behind["zone"], behind["state"], behind["behind_facts"]) == (
        "local.behind",
        "local",
        "new",
        3,
    )
    with FactStore.open(Path("state/facts.db"), "plant-a") as store:
        assert behind["held_bytes"] == store.streams()[0].bytes
    assert 0 <= behind["held_hours"] < 1
    assert (level["zone"], level["behind_facts"], level["held_bytes"], level["held_hours"]) == ("idmz", 0, 0, None)
    assert level["seen_unix_ms"] is None
    run("confirm", "--consumer", "local.behind", "2")
    _, behind = json.loads(run("consumer", "list", "--json").output)
    assert behind["behind_facts"] == 1
    seen = datetime.fromtimestamp(behind["seen_unix_ms"] // 1000, UTC)
    assert f"{seen:%Y-%m-%dT%H:%M:%SZ}" in run("consumer", "list").output


def test_consumer_list_shows_each_of_four(tmp_path: Path) -> None:
    """Of two streams and three zones, each with its own frontier and backlog. One that confirms and one that is removed
    leave the others as they are."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    relay_store(tmp_path / "state")

    def listed() -> dict[str, tuple[object, ...]]:
        rows = json.loads(run("consumer", "list", "--json").output)
        return {
            row["name"]: tuple(row[name] for name in ("zone", "stream", "frontier", "behind_facts")) for row in rows
        }

    ends = {TELEMETRY: 24, ALARMS: 6}
    expected = {name: (*about, ends[about[1]] - about[2]) for name, about in FRONTIERS.items()}
    assert listed() == expected
    run("confirm", "--consumer", "local.mes", "12")
    expected["local.mes"] = ("local", TELEMETRY, 12, 12)
    assert listed() == expected
    run("consumer", "remove", "spark.facts.telemetry", "--now", "--force")
    del expected["spark.facts.telemetry"]
    assert listed() == expected


def test_consumer_list_shows_the_lease() -> None:
    """The lease epoch and the instance that holds it, as text and as JSON; the field is empty for a consumer without a
    lease."""
    run("consumer", "add", "idmz.ops", "--stream", STREAM, "--zone", "idmz")
    run("consumer", "add", "local.mes", "--stream", STREAM)
    with FactStore.open(Path("state/facts.db"), "plant-a") as store:
        for instance in ("5f3a", "77c1"):
            store.consumers.hold_lease("idmz.ops", LeaseClaim(instance, 0)).result()
        known = store.consumers.get("idmz.ops")
    assert known is not None
    epoch = known.registered_unix_ms + 2
    leased, plain = json.loads(run("consumer", "list", "--json").output)
    assert (leased["lease_epoch"], leased["lease_holder"]) == (epoch, "77c1")
    assert (plain["lease_epoch"], plain["lease_holder"]) == (0, "")
    heading, _, first, second = run("consumer", "list").output.splitlines()
    assert "lease" in heading
    assert first.endswith(f" {epoch} 77c1")
    assert "77c1" not in second


def test_an_unknown_consumer() -> None:
    """Removing what is not there is a bad result that says how to find the name."""
    done = run("consumer", "remove", "nobody")
    assert isinstance(done.exception, local_socket.LocalError)
    assert "nobody" in str(done.exception)


def test_an_option_that_a_peer_ignores_is_refused() -> None:
    """Who removes a consumer at a peer with --force learns that nothing is forced there, before the peer is asked."""
    for option in ("--force", "--now"):
        assert "for consumers of this node" in run("consumer", "remove", "idmz.x", "--to", "plant-b", option).output


async def test_with_a_running_node(plant_a: Path) -> None:
    """The node at the socket knows who is online and in sync; it refuses to remove one in use, and with --force does
    it."""
    (plant_a / "state").mkdir()
    async with served_store(plant_a / "state") as store:
        message = Message(Envelope("m", "plant-a", "*", 1), Fact("batch:1", "done", b"{}"))
        await asyncio.wrap_future(store.appends.append_message(STREAM, message))
        await asyncio.wrap_future(store.consumers.register("idmz.ops", "idmz", STREAM))
        await asyncio.wrap_future(store.consumers.confirm("idmz.ops", 1))
        (consumer,) = json.loads((await asyncio.to_thread(run, "consumer", "list", "--json")).output)
        assert (consumer["state"], consumer["in_sync"], consumer["frontier"]) == ("online", True, 1)
        assert "online, in sync" in (await asyncio.to_thread(run, "consumer", "list")).output
        refused = await asyncio.to_thread(run, "consumer", "remove", "idmz.ops")
        assert "'idmz.ops' is online" in str(refused.exception)
        forced = await asyncio.to_thread(run, "consumer", "remove", "idmz.ops", "--force", "--json")
        told = json.loads(forced.output)
        assert (told["state"], told["was"]["state"]) == ("deletion started", "online")


def test_a_store_error_is_printed_once_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what happened and what to do, each once."""
    monkeypatch.setattr("sys.argv", ["bsfg", "confirm", "--consumer", "local.nobody", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    text = str(ended.value)
    assert text.startswith("bsfg: no consumer 'local.nobody'; ")
    assert text.count("a first fetch registers it") == 1


def test_where_a_consumer_starts() -> None:
    """A time as a date or so long ago, for `add` and for `fetch`; what is none is bad usage and says how to write
    it."""
    run("append", "batch:1", "done", "{}")
    for name, start in (("a", "2h"), ("b", "2026-11-21T06:00Z"), ("c", "end"), ("d", "oldest")):
        assert run("consumer", "add", f"local.{name}", "--stream", STREAM, "--start", start).exit_code == 0
    frontiers = {row["name"]: row["frontier"] for row in json.loads(run("consumer", "list", "--json").output)}
    assert frontiers == {"local.a": 0, "local.b": 0, "local.c": 1, "local.d": 0}
    assert json.loads(run("fetch", "--consumer", "local.late", "--start", "1h").output)["offset"] == 1
    wrong = run("consumer", "add", "local.e", "--stream", STREAM, "--start", "noon")
    assert wrong.exit_code == 2
    assert "2h for two hours ago" in wrong.output
