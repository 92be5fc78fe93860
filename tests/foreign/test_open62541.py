"""A second foreign stack, open62541: what the source does against node-opcua it does here too."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from agent.ingest.lifecycle import State
from agent.ingest.opcua.security import transport
from agent.ingest.opcua.security.certificate import ensure_certificate
from agent.ingest.quality import BAD_ENCODING_LIMITS_EXCEEDED
from tests.foreign.account import account, stored
from tests.foreign.conftest import COUNT
from tests.foreign.plant import opcua, signing, storing
from tests.foreign.server import OPEN62541, ForeignServer, foreign_server
from tests.foreign.test_events import events
from tests.foreign.test_history import KEPT, away, check_complete, wait_filled
from tests.ingest.opcua.security.certificates import certificate, key, written_out
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("open62541")]

STRUCTURED: dict[str, dict[str, Any]] = {
    "range": {"type": "Range", "value": {"High": 99.25, "Low": -1.5}},
    "numbers": {"type": "Double", "value": [0.5, -2.0]},
}


async def test_a_node_comes_back_and_limits_are_kept(tmp_path: Path) -> None:
    """A server that takes seven items a call gets forty; one of them is deleted and made again, and comes back over the
    same connection. This server says nothing of a deleted node's items: a Read shows it."""
    many = {"name": "many", "type": "Int32", "period_ms": 100, "count": 40}
    limits = {"items_per_call": 7}
    names = [f"many_{i:04}" for i in range(40)]
    async with (
        foreign_server(tmp_path / "server", OPEN62541, variables=[many], limits=limits) as server,
        ingesting(opcua(server, tmp_path, *names)) as run,
    ):
        for name in names:
            await run.wait_good(f"f/{name}", 2)
        await server.delete("many_0007")
        await wait_until_async(lambda: run.store.of("f/many_0007")[-1].quality >> 31, "the node's end")
        await server.recreate("many_0007")
        made_again = server.record("many_0007")[-1].time_ns
        await wait_until_async(
            lambda: run.store.good("f/many_0007")[-1].source_time_ns >= made_again, "values of the new node"
        )
        assert run.source("plc").connects_total == 1


def secured(server: ForeignServer, folder: Path, policy: str) -> dict[str, Any]:
    """Settings with encryption. Our certificate and key are in `folder`."""
    settings = signing(folder / "bsfg.pem", folder / "bsfg.key", policy)
    return {**settings, "server_certificate_file": server.certificate}


def server_options(folder: Path, policy: str) -> dict[str, Any]:
    """Of a server that trusts our certificate, made here, and none other."""
    ensure_certificate(folder / "bsfg.pem", folder / "bsfg.key", "urn:bsfg:agent")
    return {"variables": [COUNT], "policies": [policy], "trusted": [str(folder / "bsfg.pem")]}


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events of the log."""
    return [getattr(record, "action", "") for record in caplog.records]


async def test_a_network_that_was_away_costs_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the server queued arrives by the same subscriptions: every value of its record and every event is in the
    store once, over an encrypted connection. Arrays and structures arrive as they are. This server has no conditions,
    and the log says that once."""
    policy = "Basic256Sha256"
    options = server_options(tmp_path, policy)
    options["variables"] = [COUNT, *({"name": name, **what} for name, what in STRUCTURED.items())]
    async with foreign_server(tmp_path / "server", OPEN62541, **options) as server:
        settings = {"queue_size": 1_000, "events": ("Server",), **secured(server, tmp_path, policy)}
        source = opcua(server, tmp_path, "count", *STRUCTURED, **settings)
        async with storing(source, tmp_path) as run:
            for name, what in STRUCTURED.items():
                await run.wait_good(f"f/{name}")
                assert json.loads(run.store.good(f"f/{name}")[0].value.data) == what["value"]
            await wait_until_async(lambda: "conditions_not_refreshed" in actions(caplog), "the item for events")
            await server.raise_event("before", severity=300)
            for turn in range(2):
                await run.wait_more("f/count", 20)
                await server.listen(on=False)
                await server.cut()
                await run.wait_state("plc", State.WAITING)
                await server.raise_event(f"away {turn}", severity=300)
                await server.wait_record("count", 40)  # two seconds
                lives = run.source("plc").connects_total
                await server.listen(on=True)
                await wait_until_async(lambda lives=lives: run.source("plc").connects_total > lives, "another life")
            await run.wait_more("f/count", 20)
            await wait_until_async(lambda: len(events(run, "event_raised")) >= 3, "the events")
        found = account(server, tmp_path, "count")
        assert not found.lost
        assert not found.twice
        assert not found.invented
        raised = events(run, "event_raised", "event:plc/Server")
        assert [event["message"] for event in raised] == ["before", "away 0", "away 1"]
        assert {(event["severity"], event["event_type_name"]) for event in raised} == {(300, "BaseEventType")}
        assert actions(caplog).count("conditions_not_refreshed") == 1


async def test_an_outage_is_filled(tmp_path: Path) -> None:
    """The server is away and ends the sessions with their subscriptions: what changed meanwhile is read from its
    history, in parts of a hundred values, and stands in the store once, of an array its element; a variable without
    history keeps its gap fact."""
    variables = [
        *({"name": name, "type": "Int32", "period_ms": 50, "history": True} for name in KEPT),
        {"name": "plain", "type": "Int32", "period_ms": 50},
        {"name": "array", "type": "Int32", "period_ms": 50, "length": 4, "history": True},
    ]
    async with foreign_server(tmp_path / "server", OPEN62541, variables=variables) as server:
        rows = [*((name, name, "") for name in (*KEPT, "plain")), ("element", "array", "2")]
        tags = "tag,address,index_range\n"
        tags += "".join(f"f/{name},{server.address(node)},{part}\n" for name, node, part in rows)
        async with storing(opcua(server, tmp_path, tags=tags), tmp_path) as run:
            for name in ("plain", "element"):
                await run.wait_good(f"f/{name}", 20)
            await away(server, run, 150)
            said = await wait_filled(run, 1)
            assert (said["tags_filled"], said["tags_without_history"], said["tags"]) == (4, 1, ["tag:f/plain"]), str(
                said
            )
            await run.wait_more("f/plain", 20)
        check_complete(server, tmp_path, *KEPT)
        assert account(server, tmp_path, "plain").undeclared == []
        found = sorted((sample.time_ns, sample.value) for sample in stored(tmp_path, "element") if sample.quality == 0)
        recorded = [(value.time_ns, value.value[2]) for value in server.record("array")]
        assert found == [value for value in recorded if found[0] <= value <= found[-1]]


async def test_a_certificate_that_the_parser_refuses_is_pinned(tmp_path: Path) -> None:
    """A server whose certificate has `critical FALSE` written out: values come over an encrypted connection."""
    pki = tmp_path / "server" / "pki"
    pki.mkdir(parents=True)
    found = certificate(uri="urn:bsfg:foreign:open62541", now=datetime.now(UTC))
    (pki / "server.der").write_bytes(written_out(found))
    der, form = serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL
    own_key = key("server", 2048).private_bytes(der, form, serialization.NoEncryption())
    (pki / "server.key").write_bytes(own_key)
    policy = "Basic256Sha256"
    async with (
        foreign_server(tmp_path / "server", OPEN62541, **server_options(tmp_path, policy)) as server,
        ingesting(opcua(server, tmp_path, "count", **secured(server, tmp_path, policy))) as run,
    ):
        await run.wait_good("f/count", 3)


COUNTS = [f"count_{n:04}" for n in range(20)]
ANSWER_BYTES_MAX = 1_000_000  # instead of 64 MiB
VARIABLES = [
    {"name": "large", "type": "String", "value": "x"},
    {"name": "count", "type": "Int32", "period_ms": 50, "count": len(COUNTS)},
]


@pytest.mark.parametrize("is_large_at_first", [False, True])
async def test_a_value_that_is_too_large_parks_its_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_large_at_first: bool
) -> None:
    """Over one connection: the notification with it is declared lost, its tag is found among the others and is bad. It
    is tried again by `retry` when it has become smaller."""
    monkeypatch.setattr(transport, "MESSAGE_BYTES_MAX", ANSWER_BYTES_MAX)
    async with foreign_server(tmp_path / "server", OPEN62541, variables=VARIABLES) as server:
        if is_large_at_first:
            await server.set("large", value="x" * 2 * ANSWER_BYTES_MAX)
        async with storing(opcua(server, tmp_path, "large", *COUNTS), tmp_path) as run:
            await run.wait_good(f"f/{COUNTS[0]}", 5)
            if not is_large_at_first:
                await server.set("large", value="x" * 2 * ANSWER_BYTES_MAX)
            await run.wait_bad("f/large", BAD_ENCODING_LIMITS_EXCEEDED)
            (named,) = [record for record in caplog.records if getattr(record, "action", "") == "values_too_large"]
            assert "f/large" in vars(named)["tags"]
            for name in COUNTS:
                await run.wait_more(f"f/{name}", 5)
            assert (run.source("plc").connects_total, run.source("plc").errors_total) == (1, 0)
            await server.set("large", value="short")
            run.ingest.retry("plc")
            await wait_until_async(
                lambda: [sample.value for sample in run.store.good("f/large")][-1:] == ["short"], "large"
            )
        assert not account(server, tmp_path, COUNTS[0]).undeclared
