"""Core: the text of packet filter rules for nft: a table that is replaced when its file is loaded again, and addresses
by family, because nft compares one family at a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

FAMILIES = (("ip", 4), ("ip6", 6))


def render_table(name: str, about: Iterable[str], body: Iterable[str]) -> str:
    """The text of a file for `nft -f`. `about` are comment lines. The whole file is one transaction: either all of it
    takes effect, or the rules before stay."""
    return "\n".join(
        [
            "#!/usr/sbin/nft -f",
            *(f"# {line}" for line in about),
            f"add table {name}",  # so that "delete" succeeds the first time
            f"delete table {name}",
            f"table {name} {{",
            *body,
            "}\n",
        ]
    )


def by_family(networks: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Networks by nft's families `ip` and `ip6`, each of which may be empty. Raises ValueError for text that is not a
    network."""
    read = [ipaddress.ip_network(network) for network in networks]
    for family, version in FAMILIES:
        yield family, [str(network) for network in read if network.version == version]
