"""The plant's OPC UA server: forty moving variables under one namespace URI."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from asyncua import ua
from asyncua.common.node import Node
from asyncua.server.server import Server

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
    variables = await _variables(server)
    async with server, TaskGroup() as group:
        moving = group.create_task(_move(server, variables), name="move")
        say_ready(port)
        await stopped.wait()
        moving.cancel()


async def _secure(server: Server, certificate: str, private_key: str) -> None:
    server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
    await server.load_certificate(certificate)
    await server.load_private_key(private_key, format="pem")


async def _variables(server: Server) -> list[tuple[Signal, Node]]:
    index = await server.register_namespace(OPCUA_NAMESPACE)
    folder = await server.nodes.objects.add_folder(index, "Plant")
    made = []
    for signal in opcua_signals():
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


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="simulated plant: OPC UA server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, see the ready line")
    parser.add_argument("--tags-file", type=Path, help="write the tag file that fits, before anything else")
    parser.add_argument("--certificate", default="", help="with --private-key: also offer Basic256Sha256")
    parser.add_argument("--private-key", default="")
    logging.getLogger("asyncua").setLevel(logging.CRITICAL)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
