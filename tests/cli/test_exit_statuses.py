"""The exit status when one of three is bad: whichever place it has, the status is 1, and with none it is 0."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from agent import local_socket
from agent.cli import broker, peer
from agent.cli.modbus import read as modbus_read
from agent.cli.modbus import scan as modbus_scan
from agent.cli.opcua import probe as opcua_probe
from agent.cli.source import commands as source_commands
from agent.cli.source import connections
from agent.cli.source.connections import ConnectionResult
from agent.cli.store.store_file import report_holes
from agent.client import asynchronous
from agent.fact_store import FactStore
from agent.ingest import ProbeStep
from agent.ingest.modbus.address import Register
from agent.ingest.modbus.explore.device import RegisterAnswer
from agent.ingest.modbus.explore.register_scan import RegisterScan
from agent.ingest.probe_result import StepOutcome
from agent.message import Sample
from agent.pages import Hole
from agent.query.scan import ScanCounters, scanner
from agent.replication import broker as replication_broker
from agent.replication.broker.diagnosis import bad, good
from agent.replication.protocol.messages import BYTES_MAX_MIN
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings
from agent.settings.store import StoreSettings
from tests.cli.conftest import typed as run
from tests.fact_store.making import TELEMETRY, damage, done, tag

pytestmark = pytest.mark.usefixtures("plant_a")
places = pytest.mark.parametrize("place", [0, 1, 2, None])


def compared(stream: str, **found: Any) -> local_socket.ComparedStream:
    """The comparison of a stream."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("compared_facts", "exchanges", "bytes", "divergent_ranges", "repaired_ranges", "repaired_facts"), 0
    )
    lists: dict[str, Any] = {"missing": [], "damaged": [], "forks": [], "refused": [], "unavailable_facts": 0}
    return local_socket.ComparedStream(stream, **(nothing | lists | found))


@places
@pytest.mark.parametrize(
    "found", [{"divergent_ranges": 2, "repaired_ranges": 1}, {"missing_artifacts": 1}], ids=["ranges", "artifacts"]
)
def test_a_comparison_with_a_difference(
    found: dict[str, int], place: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference in one stream is a bad result; those that were repaired are none."""
    repaired = {"divergent_ranges": 2, "repaired_ranges": 2}
    streams = [compared(f"facts.{n}", **(found if n == place else repaired)) for n in range(3)]
    monkeypatch.setattr(peer, "ask", lambda *_: local_socket.Compared(streams))
    assert run("peer", "compare", "plant-b").exit_code == (place is not None)


@places
@pytest.mark.parametrize("name", ["source", "opcua"])
def test_a_step_that_failed(name: str, place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed step of a source's test is a bad result, whatever comes after it; one of a part of the source is none
    with --partial."""
    is_partial = False

    async def steps(*_: object) -> AsyncIterator[ProbeStep]:
        for number in range(3):
            outcome = StepOutcome.FAILED if number == place else StepOutcome.OK
            yield ProbeStep(f"step {number}", outcome, "", is_partial=is_partial)

    source = SimpleNamespace(where="tcp://meter")
    monkeypatch.setattr(source_commands, "source_of", lambda *_: (None, source))
    monkeypatch.setattr(source_commands, "load_tag_map", lambda _: SimpleNamespace(tags=()))
    monkeypatch.setattr(source_commands, "steps", steps)
    monkeypatch.setattr(opcua_probe.Probe, "steps", steps)
    words = ("source", "test", "meter") if name == "source" else ("opcua", "test", "opc.tcp://meter:4840", "--json")
    assert run(*words).exit_code == (place is not None)
    is_partial = True
    assert run("source", "test", "meter", "--partial").exit_code == 0
    assert run("source", "test", "meter").exit_code == (place is not None)


@places
def test_registers_in_one_of_some_tables(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan has a good result if one of its tables has registers."""

    async def scanned(*_: object) -> list[tuple[None, SimpleNamespace]]:
        return [(None, SimpleNamespace(found=[(7, 8)] if number == place else [])) for number in range(3)]

    monkeypatch.setattr(modbus_scan, "_scan", scanned)
    monkeypatch.setattr(modbus_scan, "_lines", lambda *_: ())
    assert run("modbus", "scan", "tcp://meter", "--base", "0", "7").exit_code == (place is None)


def test_two_tables_share_the_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a table two are scanned, with no more reads than asked for, and what was not looked at is named; a scan
    that found nothing is a bad result."""

    async def refused(_: object, __: int, ___: object, scan: RegisterScan, ____: object) -> None:
        while scan.next_range() is not None:
            scan.refused("no such register")

    monkeypatch.setattr(modbus_scan, "open_device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(modbus_scan, "scan_registers", refused)
    done = run("modbus", "scan", "tcp://meter", "--base", "0", "0-9", "--reads-max", "7", "--json")
    found = [json.loads(line) for line in done.output.splitlines()]
    assert (done.exit_code, [place["reads"] for place in found]) == (1, [7, 0])
    assert found[1]["unknown"] == [{"address": 0, "count": 10}]


@places
def test_a_register_without_a_value(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is printed, and one that the device refuses is a bad result."""

    async def answers(_: object, __: object, registers: Sequence[Register]) -> list[RegisterAnswer]:
        whys = ["no such register" if number == place else "" for number in range(3)]
        return [RegisterAnswer(register, (7,), 7, why=why) for register, why in zip(registers, whys, strict=True)]

    monkeypatch.setattr(modbus_read, "open_device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(modbus_read, "read_registers", answers)
    found = run("modbus", "read", "tcp://meter", "--base", "0", "holding:7-9", "--json")
    assert (found.exit_code, len(found.output.splitlines())) == (place is not None, 3)


@places
def test_a_bad_diagnosis_of_a_broker(place: int | None) -> None:
    """Each diagnosis is printed, and a bad one decides."""
    exits = []
    try:
        broker._print([bad("b", "do") if number == place else good("g") for number in range(3)], as_json=True)
    except SystemExit as exit_of:
        exits.append(exit_of.code)
    assert exits == [1] * (place is not None)


@places
def test_a_connection_that_failed(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that `check --connect` tries, which has no problem without it."""

    async def tried(_: object) -> list[ConnectionResult]:
        return [ConnectionResult("source", f"m{number}", "", is_bad=number == place) for number in range(3)]

    monkeypatch.setattr(connections, "test_all", tried)
    assert run("check", "--connect").exit_code == (place is not None)
    assert run("check").exit_code == 0


def test_the_links_that_are_tried_at_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that this node serves and those over which it asks, of the peers at this broker."""
    at = BrokerSettings("site", "host", Path("ca"), Path("cert"), Path("key"))
    streams = (TELEMETRY,)
    peers = (
        *(PeerSettings("a", "site", exports=streams), PeerSettings("b", "site", pulls=streams)),
        *(PeerSettings("c", "other", pulls=streams), PeerSettings("d", "site", appends=streams, asks=True)),
    )
    settings = NodeSettings(IdentitySettings("me"), broker=(at,), peer=peers)
    monkeypatch.setattr(replication_broker, "check_broker", lambda _, links: map(bad, sorted(map(str, links)), links))
    tried = list[str]()
    monkeypatch.setattr(
        connections, "_summarised", lambda _, __, found: tried.extend(problem.what for problem in found)
    )
    connections._test_broker(settings, at)
    assert tried == ["b:me", "d:me", "me:a", "me:d"]


@places
def test_a_broker_that_is_not_ended(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone is denied at all brokers of this machine, and each of them is ended."""
    for number in range(3):
        Path(f"brokers/{number}").mkdir(parents=True)
        Path(f"brokers/{number}/mosquitto.conf").touch()
    monkeypatch.setattr(replication_broker, "deny_nodes", lambda file, _: file)
    monkeypatch.setattr(
        *(replication_broker, "end_broker"),
        lambda file, _: bad("b", "do") if file.parent.name == str(place) else good("g"),
    )
    assert run("broker", "deny", "plant-b", "--config", "brokers").exit_code == (place is not None)


@places
def test_a_damaged_batch_that_is_fetched(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a page of its own, or in the tail of its stream; the facts before and behind it are printed."""
    monkeypatch.setattr(asynchronous, "PAGE_BYTES", BYTES_MAX_MIN)
    file = Path("state/facts.db")
    file.parent.mkdir()
    with FactStore.open(file, "plant-a", settings=StoreSettings(commit_interval_ms=0, ballast_bytes=0)) as store:
        done(store.appends.define([tag(1)]))
        for number in range(3):
            rows = [Sample(1, n, (n + number) ** 7 / 3) for n in range(100)]
            done(store.appends.append_samples(TELEMETRY, rows))
    if place is not None:
        damage(file, 1 + 100 * place)
    for words in (("tail",), ("fetch", "--consumer", "local.mes")):
        found = run(*words, "--stream", TELEMETRY, "--limit", "1000")
        assert found.exit_code == (place is not None), found.output
        printed = [json.loads(line)["offset"] for line in found.output.splitlines() if line.startswith("{")]
        stored = [n for n in printed if n <= 300]  # then comes a fact about the damage
        assert stored == [n for n in range(1, 301) if (n - 1) // 100 != place]


@places
def test_a_damaged_hole_of_a_scan(
    place: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of latest, sql and export, in whatever stream: each hole is named, or counted where there are too many, and what
    retention released is no bad result."""
    counters = ScanCounters()
    reasons: list[Literal["damaged", "expired"]] = ["damaged" if number == place else "expired" for number in range(3)]
    for number, reason in enumerate(reasons):
        counters.add_hole((TELEMETRY, "facts.alarms")[number % 2], Hole(10 * number + 1, 10 * number + 5, reason))
    assert report_holes(counters) == (place is not None)
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == reasons
    monkeypatch.setattr(scanner, "HOLES_MAX", 1)
    few = ScanCounters()
    for stream, hole in counters.holes:
        few.add_hole(stream, hole)
    assert report_holes(few) == (place is not None)
    assert capsys.readouterr().err.splitlines()[-1] == "bsfg: 2 more holes"


@places
def test_a_tag_of_another_source(place: int | None) -> None:
    """A tag file is compared with those of all other sources, also when the file of one of them is broken."""
    head = "tag,table,register,type\n"
    with Path("node.toml").open("a") as node:
        for number in range(4):
            node.write(
                f'\n[[modbus]]\nname = "m{number}"\nhost = "h{number}"\ntags_file = "m{number}.csv"\naddress_base = 0\n'
            )
            Path(f"m{number}.csv").write_text(head + f"a/{number},holding,1,int16\n")
    Path("m1.csv" if place == 2 else "m2.csv").write_text("no tag file\n")
    if place is not None:
        Path(f"m{place}.csv").write_text(head + "a/new,holding,1,int16\n")
    Path("m3.csv").write_text(head + "a/new,holding,7,int16\n")
    found = run("tags", "check", "m3.csv")
    assert found.exit_code == (place is not None), found.output


@pytest.mark.parametrize("name", ["", "none.log"])
def test_a_log_that_is_not_there(name: str, tmp_path: Path) -> None:
    """A folder in the place of the broker's log, and a missing file, are wrong usage, before anything is looked at."""
    result = run("broker", "sessions", "--log", str(tmp_path / name))
    assert (result.exit_code, "Invalid value for '--log'" in result.output) == (2, True), result.output
