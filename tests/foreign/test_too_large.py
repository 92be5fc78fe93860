"""A value that is longer than any answer may be: its tag is parked and named, and the others go on."""

from pathlib import Path

import pytest

from agent.ingest.opcua.security import transport
from agent.ingest.quality import BAD_ENCODING_LIMITS_EXCEEDED
from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.server import OPEN62541, foreign_server
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("open62541")]

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
