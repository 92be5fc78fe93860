"""Who uses a broker: from lines of its log and of `ss`, as both programs write them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from agent.cli import broker, bsfg
from agent.replication.broker.zone_loads import (
    SESSIONS_MAX,
    UNKNOWN,
    ZoneLoad,
    abuses,
    received_bytes,
    zone_loads,
    zones_by_address,
)

LOG = """\
2026-11-28T05:47:18: New connection from 127.0.0.1:41976 on port 47143.
2026-11-28T05:47:18: New client connected from 127.0.0.1:41976 as auto-AE61 (p5, c1, k0, u'plant-a').
2026-11-28T05:47:18: New client connected from 127.0.0.1:41976 as auto-9E5D (p5, c1, k0, u'evil').
2026-11-28T05:47:18: New client connected from ::1:41988 as auto-6853 (p5, c1, k0, u'idmz').
2026-11-28T05:47:18: Client auto-6853 [127.0.0.1:41988] disconnected: connection closed by client.
"""
ROW = "0      0      127.0.0.1:8883        {}\n\t cubic rto:204 rtt:0.02/0.01 bytes_sent:88 bytes_received:{} segs_out:6\n"


def test_a_connection_is_of_the_zone_that_came_last_from_its_address() -> None:
    """A port is used again; the log of 2.0 and of 2.1 name the address in the same words."""
    assert zones_by_address(LOG.splitlines()) == {"127.0.0.1:41976": "evil", "::1:41988": "idmz"}


def test_the_zone_that_sends_most_comes_first() -> None:
    """Sessions of a zone are added up. A connection that is not in the log is counted, too, and one that was opened
    between the looks with all that it has received."""
    text = ROW.format("127.0.0.1:1", 10) + ROW.format("[::ffff:127.0.0.1]:2", 500) + ROW.format("[::1]:3", 7)
    after = received_bytes(text + "0      5      127.0.0.1:8883   127.0.0.1:4\n")
    assert after == {"127.0.0.1:1": 10, "127.0.0.1:2": 500, "::1:3": 7}
    zones = {"127.0.0.1:1": "evil", "127.0.0.1:2": "evil", "127.0.0.1:9": "gone"}
    assert zone_loads(zones, {"127.0.0.1:1": 4}, after, 2.0) == [ZoneLoad("evil", 2, 253), ZoneLoad(UNKNOWN, 1, 3)]


def test_a_zone_with_many_sessions_and_the_one_that_keeps_the_broker_busy_are_named() -> None:
    """A zone that sends most is named only while the broker has no time left, and none of which the log says
    nothing."""
    loads = [ZoneLoad("plant", 1, 2_000_000), ZoneLoad(UNKNOWN, 900, 10), ZoneLoad("evil", SESSIONS_MAX + 1, 0)]
    assert [(abuse.zone, abuse.sessions) for abuse in abuses(loads, 0.8)] == [("evil", SESSIONS_MAX + 1)]
    assert [abuse.why for abuse in abuses(loads, 0.9)] == [
        "has 1 sessions at the broker and sends 2,000 kB/s",
        "has 33 sessions at the broker and sends 0 kB/s",
    ]
    assert abuses([ZoneLoad(UNKNOWN, 9, 9), *loads], 0.9) == abuses(loads, 0.0)
    assert abuses([], 1.0) == []


def test_each_look_of_a_watch_counts_what_came_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, and the processor time of the broker: a zone that kept it busy once is not named for ever."""
    (tmp_path / "log").write_text(LOG)
    received, used_s = iter([0, 1_000, 3_000, 3_000]), iter([0.0, 9.5, 10.0, 10.0])
    looks = list[tuple[float, float]]()
    monkeypatch.setattr(broker, "time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(broker, "_output", lambda *_: ROW.format("127.0.0.1:41976", next(received)))
    monkeypatch.setattr(broker, "_processor_s", lambda _: {1: next(used_s)})
    monkeypatch.setattr(
        "agent.replication.broker.abuses", lambda loads, cores: looks.append((loads[0].bytes_per_s, cores)) or []
    )
    words = ["broker", "sessions", "--seconds", "10", "--config", tmp_path / "mosquitto.conf"]
    words += ["--log", tmp_path / "log", "--watch", tmp_path / "abuses.json"]
    assert isinstance(CliRunner().invoke(bsfg, [*map(str, words)]).exception, StopIteration)
    assert [(sent, round(cores, 2)) for sent, cores in looks] == [(100, 0.95), (200, 0.05), (0, 0.0)]
