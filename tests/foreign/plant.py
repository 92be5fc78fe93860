"""Sources of foreign servers."""

from __future__ import annotations

from pathlib import Path

from agent.ingest.settings import OpcuaSourceSettings
from tests.foreign.server import ForeignServer

# Quick where the product is patient. Sampling 0 asks for every change, so that nothing is missing but what was lost.
QUICK: dict[str, object] = {
    "security_policy": "None",
    "security_mode": "None",
    "insecure": True,
    "publishing_interval_ms": 100,
    "sampling_interval_ms": 0,
    "queue_size": 200,
    "parked_retry_ms": 200,
    "liveness_timeout_ms": 3000,
    "request_timeout_ms": 5000,
    "reconnect_delay_ms": 50,
    "reconnect_delay_max_ms": 200,
}


def opcua(
    server: ForeignServer, folder: Path, *names: str, tags: str | None = None, **settings: object
) -> OpcuaSourceSettings:
    """A quick source of these variables (tag `f/<name>`), or of a tag map."""
    file = folder / "plc.csv"
    file.write_text(server.tags(*names) if tags is None else tags)
    return OpcuaSourceSettings("plc", server.url, file, **{**QUICK, **settings})  # type: ignore[arg-type]
