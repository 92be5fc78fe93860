"""The plant's OPC UA server: forty moving variables under one namespace URI.

For tests it can be restricted: `--items-per-call N` announces and enforces that limit on CreateMonitoredItems, or with
`--announce 0` only enforces it; `--namespaces-before N` moves the plant's namespace to another index; `--late NAME:S`
adds a variable only after S seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from asyncua import ua
from asyncua.common.node import Node
from asyncua.common.utils import ServiceError
from asyncua.server.monitored_item_service import MonitoredItemService
from asyncua.server.server import Server
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.status_codes import StatusCodes

from agent.concurrency import TaskGroup
from agent.demo.plant.process import say_ready, stop_requested
from agent.demo.plant.signals import OPCUA_NAMESPACE, Signal, opcua_signals
from agent.demo.plant.tags import opcua_tags_csv
from agent.demo.processes import free_port

TICK_S = 0.05


async def serve(options: argparse.Namespace) -> None:
    """Serve until the process is asked to end."""
    stopped = stop_requested()
    if options.tags_file:
        options.tags_file.write_text(opcua_tags_csv(), encoding="utf-8")
    port = options.port or free_port(options.host)
    server = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://{options.host}:{port}/plant")
    server.set_server_name("bsfg demo plant")
    server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
    if options.certificate:
        await _secure(server, options.certificate, options.private_key)
    for number in range(options.namespaces_before):
        await server.register_namespace(f"urn:bsfg:demo:other:{number}")
    late = dict(entry.split(":") for entry in options.late)
    variables = await _variables(server, [s for s in opcua_signals() if s.name not in late])
    if options.items_per_call:
        announced = options.items_per_call if options.announce is None else options.announce
        await _limit_items_per_call(server, options.items_per_call, announced)
    async with server, TaskGroup() as group:
        tasks = [group.create_task(_move(server, variables), name="move")]
        for signal in (s for s in opcua_signals() if s.name in late):
            adding = _appear(server, signal, variables, float(late[signal.name]))
            tasks += [group.create_task(adding, name="appear")]
        say_ready(port)
        await stopped.wait()
        for task in tasks:
            task.cancel()


async def _secure(server: Server, certificate: str, private_key: str) -> None:
    server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
    await server.load_certificate(certificate)
    await server.load_private_key(private_key, format="pem")


async def _variables(server: Server, signals: list[Signal]) -> list[tuple[Signal, Node]]:
    index = await server.register_namespace(OPCUA_NAMESPACE)
    folder = await server.nodes.objects.add_folder(index, "Plant" if len(signals) > 1 else signals[0].name + " folder")
    made = []
    for signal in signals:
        node_id = ua.NodeId(signal.name, index)  # type: ignore[arg-type]
        kind = ua.VariantType[signal.data_type]
        made.append((signal, await folder.add_variable(node_id, signal.name, signal.value(0.0), kind)))
    return made


async def _move(server: Server, variables: list[tuple[Signal, Node]]) -> None:
    """Write each variable at its own period. The time written is when the signal had the value."""
    start_s = time.monotonic()
    written: dict[str, int] = {}
    tick = 0
    while True:
        tick += 1
        seconds = time.monotonic() - start_s
        for signal, node in variables:
            step = int(seconds * 1000 / signal.period_ms)
            if written.get(signal.name) == step:
                continue
            written[signal.name] = step
            variant = ua.Variant(signal.value(seconds), ua.VariantType[signal.data_type])
            now = datetime.now(UTC)
            value = ua.DataValue(Value=variant, SourceTimestamp=now, ServerTimestamp=now)  # type: ignore[arg-type]
            await server.write_attribute_value(node.nodeid, value)
        await asyncio.sleep(max(0.0, start_s + tick * TICK_S - time.monotonic()))


async def _appear(server: Server, signal: Signal, variables: list[tuple[Signal, Node]], after_s: float) -> None:
    await asyncio.sleep(after_s)
    variables += await _variables(server, [signal])


async def _limit_items_per_call(server: Server, limit: int, announced: int) -> None:
    """Say and enforce MaxMonitoredItemsPerCall. asyncua's server announces 10,000 and enforces nothing."""
    node = server.get_node(
        ua.NodeId(ObjectIds.Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall)  # type: ignore[arg-type]
    )
    await node.write_value(ua.Variant(announced, ua.VariantType.UInt32))
    create = MonitoredItemService.create_monitored_items

    async def limited(service: MonitoredItemService, params: ua.CreateMonitoredItemsParameters) -> object:
        if len(params.ItemsToCreate) > limit:
            raise ServiceError(StatusCodes.BadTooManyOperations)
        return await create(service, params)

    MonitoredItemService.create_monitored_items = limited  # type: ignore[assignment,method-assign]


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="simulated plant: OPC UA server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, see the ready line")
    parser.add_argument("--tags-file", type=Path, help="write the tag file that fits, before anything else")
    parser.add_argument("--certificate", default="", help="with --private-key: also offer Basic256Sha256")
    parser.add_argument("--private-key", default="")
    parser.add_argument("--items-per-call", type=int, default=0, help="for tests: MaxMonitoredItemsPerCall, enforced")
    parser.add_argument("--announce", type=int, help="for tests: announce this limit instead of the one enforced")
    parser.add_argument(
        "--late", action="append", default=[], help="for tests: NAME:S, add the variable after S seconds"
    )
    parser.add_argument("--namespaces-before", type=int, default=0, help="for tests: moves the plant's namespace index")
    logging.getLogger("asyncua").setLevel(logging.CRITICAL)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
