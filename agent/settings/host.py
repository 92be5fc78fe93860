"""The check of a setting that names a host: a name or an address, without the port, which is a setting of its own.
Core."""

from __future__ import annotations

import ipaddress
import re

PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*):(?P<port>[0-9]+)")


def host_problem(host: str) -> str:
    """What is wrong with a host, empty if it is a name or an address. The port is a setting of its own."""
    if found := PORT.fullmatch(host):
        return f'ends with a port; write host = "{found["host"].strip("[]")}" and port = {found["port"]}'
    if host.startswith("[") and host.endswith("]"):
        return f'has brackets, which belong to addresses of the web; write host = "{host[1:-1]}"'
    is_name = host and not any(character.isspace() or character in "/[]@" for character in host)
    try:
        host.encode("idna")  # as each look-up does: two dots in a row, more than 63 characters between two
    except UnicodeError:
        is_name = False
    return "" if is_name and (":" not in host or _is_ipv6(host)) else "must be a host name or an IP address"


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
