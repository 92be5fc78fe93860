"""Core: what a broker's configuration and access list say, and the access list without a zone.

A reload is only as safe as what it reads: these look at the texts as Mosquitto 2 understands them, whoever wrote them.  The
names of settings are Mosquitto's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from agent.replication.broker.diagnosis import Diagnostic, Outcome
from agent.replication.protocol.topics import is_zone

FILES = ("cafile", "certfile", "keyfile", "crlfile", "acl_file")
"""Settings that name a file which a reload reads."""

_GENERATE = "use the configuration of bsfg broker config"
_WITHOUT = {
    "cafile": "nobody's certificate can be checked",
    "certfile": "the broker has no certificate",
    "keyfile": "the broker has no key",
    "crlfile": "revoked certificates come in",
    "acl_file": "every zone may do everything",
}
_NEEDED = {
    "tls_version": ("tlsv1.3", "clients connect with TLS 1.2"),
    "require_certificate": ("true", "clients come in without a certificate"),
    "use_identity_as_username": ("true", "the access list knows nobody"),
    "allow_anonymous": ("false", "clients come in without a name"),
}
_RIGHTS = ("read", "write", "readwrite", "deny")


def parse_config(text: str) -> dict[str, str]:
    """The settings of a configuration; of one given twice the last, as Mosquitto takes it."""
    settings = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name and not name.startswith("#"):
            settings[name] = value.strip()
    return settings


def check_config(settings: dict[str, str]) -> Iterator[Diagnostic]:
    """What is missing in the configuration for certificates, lists and rights to hold at all."""
    for name, price in _WITHOUT.items():
        if not settings.get(name, "").startswith("/"):
            yield Diagnostic(Outcome.BAD, f"no {name} with an absolute path: {price}", _GENERATE)
    for name, (value, price) in _NEEDED.items():
        if settings.get(name) != value:
            yield Diagnostic(Outcome.BAD, f"{name} is {settings.get(name, 'not set')}: {price}", _GENERATE)


def check_acl(text: str) -> Iterator[Diagnostic]:
    """Lines that Mosquitto would not understand, and a list that gives nobody anything."""
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
                yield Diagnostic(Outcome.BAD, f"access list, line {number}: {line[:80]!r} is no rule", _GENERATE)
    if not users:
        yield Diagnostic(Outcome.BAD, "the access list names no user: every zone would be shut out", _GENERATE)


def without_zones(acl: str, zones: Collection[str]) -> str:
    """The access list with these zones denied everything; living sessions lose their rights at the next reload.

    A denied zone keeps a block, since a list without any would be read as no list at all.
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
