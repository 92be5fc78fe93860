"""Core: who reaches a page at an address, and what to do about it."""

from __future__ import annotations

import contextlib
import ipaddress

OPEN_HINT = (
    "anyone who reaches this address reads the zones, streams and devices of this node; listen on 127.0.0.1 with a "
    "proxy in front, or let the firewall admit the scraper only"
)


def is_open_to_others(listen_host: str) -> bool:
    """Whether other machines reach a page at this address. A name counts as reachable, except localhost."""
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(listen_host).is_loopback
    return listen_host != "localhost"
