"""The clients of `ingest`, each a process of its own: the product, and asyncua in the two ways it offers.

The product is a source as a node runs it: session, decoding, sampling, recorder, and a real store that commits. Only
committed values count. The library's clients only count their values: its handler is called for each, and its batch
callback gets a whole decoded notification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.client.client import Client
from asyncua.common.node import Node
from asyncua.ua.attribute_ids import AttributeIds

from agent.settings.sources import OpcuaSourceSettings
from bench.common.worker_io import Options, emit
from bench.ingest.measured import START_S, measured, measured_ingest

NAMESPACE = "urn:bsfg:bench"
CALL_ITEMS = 1_000


def agent(options: Options) -> None:
    """The product."""
    logging.disable(logging.ERROR)
    asyncio.run(_agent(options))


async def _agent(options: Options) -> None:
    folder = Path(options["into"])
    tags = folder / "tags.csv"
    rows = (f"bench/item-{n},nsu={NAMESPACE};i={n}\n" for n in range(1, options["items"] + 1))
    tags.write_text("tag,address\n" + "".join(rows))
    settings = OpcuaSourceSettings("bench", options["url"], tags, **_security(options))
    assert not list(settings.problems()), list(settings.problems())
    emit("READY")
    found, _ = await measured_ingest((settings,), options)
    emit("RESULT", found)


def _security(options: Options) -> dict[str, Any]:
    if not options.get("certificate_file"):
        return {"security_policy": "None", "security_mode": "None", "insecure": True}
    names = ("certificate_file", "private_key_file", "server_certificate_file")
    return {name: Path(options[name]) for name in names}


def handler(options: Options) -> None:
    """asyncua with a handler that counts."""
    asyncio.run(_library(options, "handler"))


def batch(options: Options) -> None:
    """asyncua with the callback of its session, which counts the values of each decoded PublishResponse."""
    asyncio.run(_library(options, "batch"))


class _Counter:
    """A subscription handler as asyncua's documentation shows it, or a callback for whole responses."""

    def __init__(self) -> None:
        self.values = 0

    def datachange_notification(self, _node: Node, _value: Any, _data: Any) -> None:
        self.values += 1

    def take(self, result: Any) -> None:
        for notification in result.NotificationMessage.NotificationData or ():
            for item in notification.MonitoredItems:
                if item.Value.Value is not None:
                    self.values += 1


async def _library(options: Options, way: str) -> None:
    logging.disable(logging.ERROR)
    counter = _Counter()
    emit("READY")
    # The default of four seconds is too short to create 20,000 items on a busy machine.
    async with Client(options["url"], timeout=START_S, watchdog_intervall=START_S) as client:
        index = await client.get_namespace_index(NAMESPACE)
        nodes = [ua.NodeId(number, index) for number in range(1, options["items"] + 1)]  # type: ignore[arg-type]
        if way == "handler":
            subscription = await client.create_subscription(500, counter)
            for cut in range(0, len(nodes), CALL_ITEMS):
                await subscription.subscribe_data_change(
                    [client.get_node(node) for node in nodes[cut : cut + CALL_ITEMS]]
                )
        else:
            await _monitor(client, nodes, counter.take)
        emit("RESULT", await measured(lambda: counter.values, options))


async def _monitor(client: Client, nodes: list[ua.NodeId], take: Callable[[Any], None]) -> None:
    """Items in a subscription whose responses go to a callback."""
    session = client.uaclient.session
    asked = ua.CreateSubscriptionParameters(RequestedPublishingInterval=500, RequestedLifetimeCount=1000)
    created = await session.create_subscription(asked, take)
    for cut in range(0, len(nodes), CALL_ITEMS):
        items = [
            ua.MonitoredItemCreateRequest(
                ItemToMonitor=ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value),
                RequestedParameters=ua.MonitoringParameters(ClientHandle=cut + place, QueueSize=10),
            )
            for place, node in enumerate(nodes[cut : cut + CALL_ITEMS], 1)
        ]
        parameters = ua.CreateMonitoredItemsParameters(SubscriptionId=created.SubscriptionId, ItemsToCreate=items)
        await session.create_monitored_items(parameters)
