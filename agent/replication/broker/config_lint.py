"""Core: checks of a broker's configuration and access list before a reload, and the access list with zones denied.

The texts are read as Mosquitto 2 reads them, whether generated or written by hand. Names of settings are Mosquitto's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from agent.replication.broker.diagnosis import USE_GENERATED, Diagnostic, bad, good
from agent.replication.broker.limits import heap_bytes_max
from agent.replication.protocol.topics import is_zone

FILES = ("cafile", "certfile", "keyfile", "crlfile", "acl_file")
"""Settings that name a file; a reload reads these files."""


_WITHOUT = {
    "cafile": "client certificates cannot be verified",
    "certfile": "the broker has no certificate",
    "keyfile": "the broker has no key",
    "crlfile": "revoked certificates are accepted",
    "acl_file": "every zone has all rights",
}
_NEEDED = {
    "tls_version": ("tlsv1.3", "clients with TLS 1.2 are accepted"),
    "require_certificate": ("true", "clients without a certificate are accepted"),
    "use_identity_as_username": ("true", "the access list applies to no client"),
    "allow_anonymous": ("false", "clients without a user name are accepted"),
}
_SIZES = (
    "memory_limit",
    "max_connections",
    "max_queued_messages",
    "max_packet_size",
    "max_inflight_bytes",
    "max_queued_bytes",
)
_RIGHTS = ("read", "write", "readwrite", "deny")


def parse_config(text: str) -> dict[str, str]:
    """The settings of a configuration. A later line overrides an earlier one, as in Mosquitto."""
    settings = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name and not name.startswith("#"):
            settings[name] = value.strip()
    return settings


def check_config(settings: dict[str, str]) -> Iterator[Diagnostic]:
    """Settings whose absence would disable certificate checks, revocation or the access list."""
    for name, effect in _WITHOUT.items():
        if not settings.get(name, "").startswith("/"):
            yield bad(f"no {name} with an absolute path: {effect}", USE_GENERATED)
    for name, (value, effect) in _NEEDED.items():
        if settings.get(name) != value:
            yield bad(f"{name} is {settings.get(name, 'not set')}: {effect}", USE_GENERATED)


def check_memory(settings: dict[str, str]) -> Iterator[Diagnostic]:
    """Whether clients that do not read can drive the broker to its memory limit, where it disconnects others too."""
    values = [int(text) if (text := settings.get(name, "")).isdigit() else 0 for name in _SIZES]
    if missing := [name for name, value in zip(_SIZES, values, strict=True) if value <= 0]:
        yield bad(f"{', '.join(missing)}: not set, so the broker's memory has no bound", USE_GENERATED)
        return
    limit, heap = values[0], heap_bytes_max(*values[1:])
    connections = settings["max_connections"]
    what = f"{connections} connections that do not read occupy at most {heap >> 20} of {limit >> 20} MiB"
    yield good(what) if heap < limit else bad(f"{what}: honest clients would be disconnected", USE_GENERATED)


def check_acl(text: str) -> Iterator[Diagnostic]:
    """Lines that Mosquitto does not accept, and a list without any user."""
    users = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        match words:
            case ["user", _]:
                users += 1
            case ["topic" | "pattern", right, _] if right in _RIGHTS:
                continue
            case ["topic" | "pattern", topic] if topic not in _RIGHTS:
                continue
            case _:
                yield bad(f"access list, line {number}: {line[:80]!r} is not a rule", USE_GENERATED)
    if not users:
        yield bad("the access list names no user, so every zone would be denied", USE_GENERATED)


def without_zones(acl: str, zones: Collection[str]) -> str:
    """The access list with all rights of these zones denied; open sessions lose their rights at the next reload.

    A denied zone keeps a block, because Mosquitto treats a list without any user as no list.
    """
    assert all(is_zone(zone) for zone in zones)
    lines, denied, skipping = [], set(), False
    for line in acl.splitlines():
        words = line.split()
        if words[:1] == ["user"]:
            skipping = len(words) == 2 and words[1] in zones
            if skipping:
                denied.add(words[1])
                lines += [line, "topic deny #"]
                continue
        if words and words[0] != "pattern" and skipping and not words[0].startswith("#"):
            continue
        lines.append(line)
    for zone in sorted(set(zones) - denied):
        lines += ["", f"user {zone}", "topic deny #"]
    return "\n".join(lines).rstrip("\n") + "\n"
