"""One process of a benchmark: `python -m bench.worker ROLE OPTIONS`, with the options as one JSON object.

The roles of the product are in the modules of the benchmarks that use them; the roles of the limits are in
`replication/bare_loop.py`. Only the module of the role that runs is imported, so that its memory is measured without
the others.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys

ROLES = {
    "fill": "bench.replication.endpoints:fill",
    "serve": "bench.replication.endpoints:serve",
    "pull": "bench.replication.endpoints:pull",
    "lag": "bench.replication.endpoints:lag",
    "hostile-pull": "bench.replication.hostile:pull",
    "flood": "bench.replication.floods:flood",
    "plants": "bench.replication.plants:plants",
    "drain": "bench.replication.drain:drain",
    "echo": "bench.replication.bare_loop:echo",
    "blobs-out": "bench.replication.bare_loop:send_blobs",
    "blobs-in": "bench.replication.bare_loop:receive_blobs",
    "grow": "bench.store.growth:grow",
    "lives-fill": "bench.store.lives:fill",
    "lives-measure": "bench.store.lives:measure",
    "ids": "bench.store.ids:ids",
    "opcua-server": "bench.ingest.opcua_server:serve",
    "opcua-agent": "bench.ingest.opcua_clients:agent",
    "opcua-handler": "bench.ingest.opcua_clients:handler",
    "opcua-batch": "bench.ingest.opcua_clients:batch",
    "modbus-server": "bench.ingest.modbus_server:serve",
    "modbus-agent": "bench.ingest.modbus_clients:agent",
    "modbus-fleet": "bench.ingest.modbus_clients:fleet",
    "modbus-bare": "bench.ingest.modbus_clients:bare",
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    module, _, function = ROLES[sys.argv[1]].partition(":")
    getattr(importlib.import_module(module), function)(json.loads(sys.argv[2]))
