"""What a member of the group sees through the node: the latest values of a store with two streams, two plants, two
holes, and values that a peer has reported."""

import time
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from agent.local_socket.messages import ReadLatest
from agent.message import time_text
from agent.node import looking as tested
from agent.node.latest import save_peer_latest
from agent.node.looking import Looking
from agent.replication.protocol.messages import LatestEntry, PeerLatest
from tests.support.relay_store import ALARMS, BASE_NS, MINUTE_NS, TELEMETRY, opened, relay_store


def reported(zone: str, subject: str, at_ns: int) -> LatestEntry:
    """A value as a peer reports it."""
    at = time_text(at_ns)
    return LatestEntry(zone, subject, "value_sampled", "", msgspec.Raw(b"7.5"), "float", 0, at, at, 0, "fresh")


async def test_the_latest_values_are_chosen_and_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By zone, name and stream; a peer's value is there where the store has none or an older one. Rows that do not fit
    into one answer follow in the next, and the limit of freshness counts for all."""
    now_ns = time.time_ns()
    newer = [reported("plant-a", "tag:line1/flow", now_ns), reported("north", "tag:n", now_ns)]
    older = [reported("plant-b", "tag:line1/temp", BASE_NS - MINUTE_NS)]
    for stream, values in ((TELEMETRY, newer), (ALARMS, older)):
        save_peer_latest(tmp_path, PeerLatest("north", stream, 1, values))
    monkeypatch.setattr(tested, "ANSWER_BYTES", 700)  # two rows
    with opened(relay_store(tmp_path)) as store:
        looking = Looking(store, tmp_path, Mock())

        async def shown(**asked: object) -> dict[tuple[str, str], tuple[object, str | None, str]]:
            rows, more = list[dict[str, object]](), True
            while more:
                page = await looking.latest(ReadLatest(first=len(rows), **asked))  # type: ignore[arg-type]
                assert page.rows
                rows, more = rows + page.rows, page.more
            return {(row["zone"], row["subject"]): (row["value"], row["via"], row["mode"]) for row in rows}  # type: ignore[misc]

        everything = await shown(fresh_ms=3_600_000)
        assert everything == {
            ("north", "tag:n"): (7.5, "north", "fresh"),
            ("plant-a", "tag:line1/flow"): (7.5, "north", "fresh"),
            ("plant-a", "tag:line1/temp"): (3.0, None, "fresh"),  # of the same source
            ("plant-b", "tag:line1/temp"): (8.0, None, "degraded"),
            ("plant-b", "tag:line2/level"): (3.0, None, "degraded"),
        }
        later = await shown(fresh_ms=0)
        assert {mode for _, _, mode in later.values()} == {"degraded"}
        assert set(await shown(zone="plant-b")) == {key for key in everything if key[0] == "plant-b"}
        assert set(await shown(tag_glob="line1/temp")) == {key for key in everything if key[1] == "tag:line1/temp"}
        assert (await shown(stream=ALARMS, zone="plant-a"))["plant-a", "tag:line1/temp"][0] == 3.0
