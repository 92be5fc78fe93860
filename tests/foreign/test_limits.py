"""Limits of node-opcua that it does not tell: of messages and of subscriptions."""

from pathlib import Path

import pytest

from tests.foreign.conftest import COUNT
from tests.foreign.plant import opcua
from tests.foreign.server import foreign_server
from tests.ingest.plant import ingesting

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

ITEMS = 150
NAMES = [f"many_{n:04}" for n in range(ITEMS)]
MANY = {"name": "many", "type": "String", "value": "x" * 1000, "count": ITEMS}


async def test_small_messages_and_one_subscription(tmp_path: Path) -> None:
    """A server that takes two chunks of 8 KiB in a request, sends chunks of 64 KiB, has one subscription without saying
    so, and calls itself by a name that exists nowhere: it has all items in that subscription, created by calls that
    fit."""
    transport = {"receiveBufferSize": 8192, "sendBufferSize": 65_535, "maxMessageSize": 16_384, "maxChunkCount": 2}
    options = {
        "limits": {"subscriptions": 1},
        "limits_untold": True,
        "transport": transport,
        "advertised": "plc.invalid",
    }
    async with foreign_server(tmp_path / "server", variables=[MANY, COUNT], **options) as server:
        source = opcua(server, tmp_path, "count", *NAMES, items_per_subscription_max=100)
        async with ingesting(source) as run:
            for name in ("count", *NAMES):
                await run.wait_good(f"f/{name}")
            (subscription,) = (await server.status())["subscriptions"]
            assert subscription["items"] == ITEMS + 2  # the server's clock
            assert run.source("plc").tags_bad == 0
            assert run.source("plc").errors_total == 0
