"""Core: whether other machines can reach the health page at an address, the remedy, and the file that holds its
port."""

from __future__ import annotations

import contextlib
import ipaddress

PORT_FILE = "health.port"
"""The file in the state folder that holds the port of the health page, written by the node at its start."""
IN_USE_HINT = "set listen_port in [health] to 0, which takes a free port, or to another port"

OPEN_HINT = (
    "anyone who reaches this address reads the zones, streams and devices of this node; listen on 127.0.0.1 with a "
    "proxy in front, or let the firewall admit the scraper only"
)


def is_open_to_others(listen_host: str) -> bool:
    """Whether other machines reach a page at this address. A name counts as reachable, except localhost."""
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(listen_host).is_loopback
    return listen_host != "localhost"
