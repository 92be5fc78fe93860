"""Core: the brokers of one machine, as broker.toml lists them: which process carries which links, on which port.

Each pair of zones has a process and a port of its own, unless an operator puts several pairs on one port. Mosquitto
serves all its clients in one thread: one SUBSCRIBE of 600 kB occupied it for 2 to 15 s, and none of its settings
prevents that. In a process of its own a zone can delay only the zone it is linked with.

`broker.toml` is read, changed by adding and removing links, and written again; `changes` lists what differs. Nothing is
removed that was not named.
"""

from __future__ import annotations

import ipaddress
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.replication.broker.config import PORT, USER, BrokerPlan, PeerLink, TopologyError, parse_link, zones_of
from agent.replication.broker.limits import CONNECTIONS_MAX
from agent.replication.protocol.topics import is_zone

SITE_NAME = "broker.toml"
PROCESSES_MAX = 256
SOURCES_MAX = 256
_HEAD = """\
# The brokers of this machine: one process and one port for each pair of zones. Read and written by bsfg broker config,
# which adds links (--link) and removes them (--remove-link). After a change by hand, run it without either.
# sources: addresses from which the zones of a process connect; the packet filter drops all others. None means any.
# connections: of one process; 0 means as many as its zones need without Spark jobs.
"""


@dataclass(frozen=True, slots=True)
class Process:
    """One broker process. `sources` are networks such as 10.1.0.0/16; empty means any address."""

    port: int
    links: tuple[PeerLink, ...]
    sources: tuple[str, ...] = ()
    connections: int = 0
    name: str = ""

    @property
    def zones(self) -> tuple[str, ...]:
        """All zones of its links, sorted."""
        return zones_of(self.links)


@dataclass(frozen=True, slots=True)
class BrokerSite:
    """All brokers of one machine. `broker` is the name of their certificate, `folder` their path on that machine; empty
    means where the files are written."""

    broker: str
    host: str = ""
    user: str = USER
    folder: str = ""
    processes: tuple[Process, ...] = ()

    def plans(self, folder: str) -> tuple[BrokerPlan, ...]:
        """The configuration of each process; `folder` is used if the site names none."""
        return tuple(
            BrokerPlan(each.links, self.folder or folder, self.host, each.port, self.user, each.name, each.connections)
            for each in self.processes
        )


def with_link(site: BrokerSite, link: PeerLink, port: int = 0) -> BrokerSite:
    """The site with this link. It joins the process of its pair of zones, or the process on `port` if one is given;
    otherwise it gets a new process on the next free port. Raises TopologyError."""
    pair = {link.serving, link.asking}
    holding = [each for each in site.processes if link in each.links]
    if holding:
        if port not in (0, holding[0].port):
            moved = f"to move it, remove it first: --remove-link {link.serving}:{link.asking}"
            raise TopologyError(f"{link.serving}:{link.asking} is on port {holding[0].port}; {moved}")
        return site
    for number, each in enumerate(site.processes):
        if each.port == port or (port == 0 and set(each.zones) == pair):
            return _replaced(site, number, replace(each, links=tuple(sorted({*each.links, link}))))
    if port == 0:
        used = {each.port for each in site.processes}
        port = next(free for free in range(PORT, PORT + PROCESSES_MAX + 1) if free not in used)
    process = Process(port, (link,), name=".".join(sorted(pair)))
    if any(each.name == process.name for each in site.processes):
        process = replace(process, name=f"{process.name}.p{port}")
    return replace(site, processes=(*site.processes, process))


def without_link(site: BrokerSite, link: PeerLink) -> BrokerSite:
    """The site without this link; a process without links is removed too. Raises TopologyError if it is not there."""
    for number, each in enumerate(site.processes):
        if link in each.links:
            left = tuple(other for other in each.links if other != link)
            if left:
                return _replaced(site, number, replace(each, links=left))
            return replace(site, processes=(*site.processes[:number], *site.processes[number + 1 :]))
    raise TopologyError(f"{link.serving}:{link.asking} is not among the links of {SITE_NAME}")


def changes(before: BrokerSite | None, after: BrokerSite) -> Iterator[str]:
    """The differences, a line each: + for an addition, - for a removal."""
    old, new = (_facts(site) if site is not None else [] for site in (before, after))
    yield from (f"- {line}" for line in old if line not in new)
    yield from (f"+ {line}" for line in new if line not in old)


def read_site(text: str) -> BrokerSite:
    """The site in the text of broker.toml. Raises TopologyError with the place of the first problem."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{SITE_NAME}: {error}") from error
    _refuse_unknown(found, ("broker", "host", "user", "folder", "process"), SITE_NAME)
    listed = _value(found, "process", list, [], SITE_NAME)
    if len(listed) > PROCESSES_MAX:
        raise TopologyError(f"{SITE_NAME}: {len(listed)} processes, at most {PROCESSES_MAX}")
    processes = tuple(_process(each, f"{SITE_NAME}, process {number}") for number, each in enumerate(listed, 1))
    for what in ("port", "name"):
        values = [getattr(each, what) for each in processes]
        if twice := sorted({str(value) for value in values if values.count(value) > 1}):
            raise TopologyError(f"{SITE_NAME}: {what} {', '.join(twice)} is used by more than one process")
    strings = {name: _value(found, name, str, "", SITE_NAME) for name in ("broker", "host", "folder")}
    return BrokerSite(user=_value(found, "user", str, USER, SITE_NAME), processes=processes, **strings)


def render_site(site: BrokerSite) -> str:
    """The text of broker.toml."""
    lines = [
        _HEAD,
        *(f"{name} = {json.dumps(getattr(site, name))}" for name in ("broker", "host", "user", "folder")),
    ]
    for each in site.processes:
        links = [f"{link.serving}:{link.asking}" for link in each.links]
        lines += ["", "[[process]]", f"name = {json.dumps(each.name)}", f"port = {each.port}"]
        lines += [f"links = {json.dumps(links)}", f"sources = {json.dumps(each.sources)}"]
        lines += [f"connections = {each.connections}"]
    return "\n".join(lines) + "\n"


def _facts(site: BrokerSite) -> list[str]:
    """Everything about a site, a line each."""
    lines = [f"{what} {value}" for what in ("broker", "host", "user", "folder") if (value := getattr(site, what))]
    for each in site.processes:
        where = f"port {each.port} (process {each.name})"
        lines += [f"link {link.serving}:{link.asking} on {where}" for link in each.links]
        lines += [f"source {source} on {where}" for source in each.sources]
        lines += [f"connections {each.connections} on {where}"] * bool(each.connections)
    return lines


def _replaced(site: BrokerSite, number: int, process: Process) -> BrokerSite:
    return replace(site, processes=(*site.processes[:number], process, *site.processes[number + 1 :]))


def _process(found: Any, where: str) -> Process:
    if not isinstance(found, dict):
        raise TopologyError(f"{where}: not a table")
    _refuse_unknown(found, ("name", "port", "links", "sources", "connections"), where)
    links = tuple(sorted({parse_link(text) for text in _strings(found, "links", where)}))
    if not links:
        raise TopologyError(f"{where}: no links")
    name = _value(found, "name", str, ".".join(zones_of(links)[:2]), where)
    if not all(is_zone(part) for part in name.split(".")):
        raise TopologyError(f"{where}: name {name[:80]!r} is not made of zones, separated by dots")
    port, connections = (_value(found, key, int, 0, where) for key in ("port", "connections"))
    if not 1 <= port <= 65535:
        raise TopologyError(f"{where}: port {port} is not in 1..65535")
    if connections and not 2 <= connections <= CONNECTIONS_MAX:
        raise TopologyError(f"{where}: connections {connections} is neither 0 nor in 2..{CONNECTIONS_MAX}")
    return Process(port, links, parse_sources(_strings(found, "sources", where)), connections, name)


def parse_sources(texts: Sequence[str]) -> tuple[str, ...]:
    """Addresses and networks in their usual form, without duplicates. Raises TopologyError."""
    if len(texts) > SOURCES_MAX:
        raise TopologyError(f"{len(texts)} sources, at most {SOURCES_MAX}")
    try:
        return tuple(dict.fromkeys(str(ipaddress.ip_network(text)) for text in texts))
    except ValueError as error:
        raise TopologyError(f"{error}: a source is an address or a network, such as 10.1.0.0/16") from error


def _strings(found: Mapping[str, Any], key: str, where: str) -> list[str]:
    values: list[Any] = _value(found, key, list, [], where)
    if not all(isinstance(value, str) for value in values):
        raise TopologyError(f"{where}: {key} is not a list of strings")
    return values


def _value(found: Mapping[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    value = found.get(key, default)
    if type(value) is not kind:
        raise TopologyError(f"{where}: {key} {value!r} is not of type {kind.__name__}")
    return value


def _refuse_unknown(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := sorted(set(found) - set(known)):
        raise TopologyError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
