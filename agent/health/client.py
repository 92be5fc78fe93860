"""Shell: asks a running node for its health over HTTP, for commands and for the view of the demonstration; raises
NodeSilent."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from agent.errors import BsfgError
from agent.health.address import PORT_FILE
from agent.message import check_depth
from agent.settings.node import HealthSettings, IdentitySettings

ANSWER_BYTES_MAX = 64 * 1024 * 1024  # a hundred times the answer of a node with a thousand consumers
_HTTP_S_MAX = 10.0  # a node at work may be late; where none listens, the refusal comes at once


class NodeSilent(BsfgError):
    """No node answers at the health page."""

    hint = "is it running? `bsfg run --config FILE`, or `systemctl status bsfg@ZONE`"


def ask_health_of(node: IdentitySettings, health: HealthSettings, *, everything: bool = False) -> dict[str, Any]:
    """As `ask_health`, for the node with these settings: at its port, and at the one that it has noted in its state
    folder, for it takes a free port if its own is in use."""
    noted = noted_port(node.state_dir)
    places = [(health.listen_host, health.listen_port)] if health.listen_port else []
    places += [("127.0.0.1" if places else health.listen_host, noted)] if noted else []
    if not places:
        raise NodeSilent(f"no node has run here, or another user runs it: {node.state_dir / PORT_FILE} cannot be read")
    silent: list[NodeSilent] = []
    for host, port in dict.fromkeys(places):
        try:
            found = ask_health(host, port, everything=everything)
        except NodeSilent as error:
            silent.append(error)
            continue
        if found.get("zone") == node.zone:
            return found
        other = f"the node of zone {found.get('zone')!r} answers, not that of {node.zone!r}"
        silent.append(NodeSilent(f"at {host} port {port} {other}"))
    raise silent[0]


def ask_health(host: str, port: int, *, everything: bool = False) -> dict[str, Any]:
    """The body of a node's /healthz, with status 200 or 503: the worst parts of each kind, or everything. Raises
    NodeSilent."""
    connection = http.client.HTTPConnection(host, port, timeout=_HTTP_S_MAX)
    try:
        connection.request("GET", "/healthz?all" if everything else "/healthz")
        body = connection.getresponse().read(ANSWER_BYTES_MAX)
        check_depth("answer", body)
        found = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NodeSilent(f"no answer from the node at {host} port {port}: {error}") from error
    finally:
        connection.close()
    if not isinstance(found, dict):
        raise NodeSilent(f"{host} port {port} answers, but is not a bsfg node")
    return found


def noted_port(state_dir: Path) -> int | None:
    """The port of the node that runs, or ran last, on this state folder; None if that cannot be read."""
    try:
        return int((state_dir / PORT_FILE).read_text())
    except (OSError, ValueError):
        return None
