"""Shell: asks a running node for its health over HTTP, for commands and for the view of the demonstration; raises
NodeSilent."""

from __future__ import annotations

import http.client
import json
from typing import Any

from agent.errors import BsfgError
from agent.message import check_depth

ANSWER_BYTES_MAX = 64 * 1024 * 1024  # a hundred times what a node with a thousand consumers says
_HTTP_S_MAX = 2.0


class NodeSilent(BsfgError):
    """No node answers at the health page."""

    hint = "is it running? `bsfg run --config FILE`, or `systemctl status bsfg@ZONE`"


def ask_health(host: str, port: int) -> dict[str, Any]:
    """The body of a node's /healthz, with status 200 or 503. Raises NodeSilent."""
    if port == 0:
        silent = NodeSilent("listen_port of [health] is 0: the node listens on a free port that is not known here")
        silent.hint = "set listen_port and restart the node; its log names the current port (health_page_listening)"
        raise silent
    connection = http.client.HTTPConnection(host, port, timeout=_HTTP_S_MAX)
    try:
        connection.request("GET", "/healthz")
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
