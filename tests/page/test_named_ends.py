"""Facts that a zone names in its health and that do not come: told after ten minutes without a fact of that stream."""

from itertools import count
from pathlib import Path

from agent.fact_store import FactStore
from agent.health.problems import Level
from agent.page.fleet import zone_row
from agent.page.health_tail import HealthTail, ZoneHealth
from agent.page.named_ends import WAIT_MS, NamedEnds
from agent.positions import Position
from tests.fact_store.making import TELEMETRY, Elsewhere, done, parsed
from tests.health.conftest import NOW_MS
from tests.support.received import put_page

LIFE = bytes(range(16))


def values(sequence: int, life: bytes = LIFE) -> dict[str, object]:
    """The health of a zone that has recorded so much in the stream s, and more in another one."""
    ends = {"stream/r/own_end": f"a:{life.hex()}:999", "stream/s/own_end": f"a:{life.hex()}:{sequence}"}
    return {**ends, "stream/t/own_end": None, "stream/u/bytes": 1}


def test_an_end_without_a_fact_for_ten_minutes_is_missing() -> None:
    """Not before; not while facts of the life come, though fewer than were named; not again once the end is here; and
    not in a stream that is not read here."""
    ends, here, of_other_stream = NamedEnds(), {"at": 5}, count()

    def reached(_zone: str, stream: str, _life: bytes) -> int:
        return here["at"] if stream == "s" else next(of_other_stream)

    def missing(sequence: int, now_ms: int) -> str:
        return ends.look("a", values(sequence), reached, now_ms)

    assert [missing(9, now_ms) for now_ms in (0, WAIT_MS - 1)] == ["", ""]
    assert "s: its health names sequence 20" in missing(20, WAIT_MS)
    assert "here are 5 of it, and no fact has come for 10 min" in missing(20, WAIT_MS)
    here["at"] = 6
    assert [missing(20, now_ms) for now_ms in (WAIT_MS, 2 * WAIT_MS - 1)] == ["", ""]
    assert missing(20, 2 * WAIT_MS)
    here["at"] = 20
    assert missing(20, 2 * WAIT_MS) == ""
    assert [ends.look("b", values(9), lambda *_: None, now_ms) for now_ms in (0, 2 * WAIT_MS)] == ["", ""]


def test_another_life_has_its_own_ten_minutes_and_no_value_ends_the_page() -> None:
    """A restarted node names an end of a new life. Whatever else it names is no end."""
    ends = NamedEnds()
    assert [
        ends.look("a", values(9, life), lambda *_: 0, WAIT_MS * n) for n, life in enumerate((LIFE, LIFE[::-1]))
    ] == [""] * 2
    odd = (None, 5, "", ":", "a:xx:1", "a:00:-1", "a:00:²", f"a:{LIFE.hex()}:", f"  a:{LIFE.hex()}:9")
    assert [ends.look("c", {"stream/s/own_end": end}, lambda *_: 0, WAIT_MS * n) for n, end in enumerate(odd)] == [
        ""
    ] * len(odd)


def test_a_relay_that_withholds_a_stream_is_told_by_the_health_that_it_passes_on(tmp_path: Path) -> None:
    """The health of a plant comes and names ten facts, of which five are here: its row is broken, and says what to
    do."""
    with FactStore.open(tmp_path / "facts.db", "enterprise") as store:
        plant = Elsewhere("plant")
        done(
            put_page(
                store, "idmz", TELEMETRY, parsed([plant.seal(5)]), plant.received(), Position(plant.origin.life, 5)
            )
        )
        tail = HealthTail(store.reader)
        named = f"plant:{plant.origin.life.hex()}:10"
        values = {"verdict": 0, f"stream/{TELEMETRY}/own_end": named, "stream/facts.not_read/own_end": named}
        others = ["before", "beyond"]
        tail.zones = {zone: ZoneHealth(zone, NOW_MS, {"verdict": 0}) for zone in others}
        tail.zones["plant"] = ZoneHealth("plant", NOW_MS, values)
        for now_ms in (NOW_MS - WAIT_MS, NOW_MS):
            assert zone_row(tail.zones["plant"], NOW_MS).level is Level.GOOD
            tail.compare_ends([others[0], "plant", others[1]], now_ms)
        row = zone_row(tail.zones["plant"], NOW_MS)
        assert (row.level, row.alert) == (Level.BROKEN, True)
        assert row.what.startswith(f"{TELEMETRY}: its health names sequence 10")
        assert "bsfg peer compare" in row.hint
        done(
            put_page(
                store, "idmz", TELEMETRY, parsed([plant.seal(5)]), plant.received(), Position(plant.origin.life, 10)
            )
        )
        tail.compare_ends(["plant"], NOW_MS)
        assert zone_row(tail.zones["plant"], NOW_MS).level is Level.GOOD
