"""The checks of settings that name a host (a name or an address, without the port, which is a setting of its own) or a
URL. Core."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

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


def host_and_port(host: str, port: int) -> str:
    """Both in one text, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(url: str) -> str:
    """The host in a URL, empty if none can be read in it."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def url_problem(url: str, form: str, *schemes: str) -> str:
    """What is wrong with a URL, empty if it has one of the schemes (by default that of `form`), a host, and no port or
    a right one."""
    if host_problem(host_of(url)) or urlsplit(url).scheme not in (schemes or [form.partition(":")[0]]):
        return f"must look like {form}"
    try:
        is_port = urlsplit(url).port != 0
    except ValueError:
        is_port = False
    return "" if is_port else "has a port that is not 1 to 65535"


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
