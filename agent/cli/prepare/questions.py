"""The questions of `bsfg setup`. An invalid answer is asked for again at once. The answers of an earlier run are the
defaults, so correcting one mistake takes one answer, and the Enter key for the others. What is in the settings already
is not asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import click

from agent.cli.pki.options import AUTHORITY
from agent.ingest import TagMapError
from agent.ingest.tags.file import parse_tag_file
from agent.message import ZONE
from agent.replication import pki
from agent.replication.broker import PORT
from agent.settings.host import PORT as HOST_WITH_PORT
from agent.settings.host import host_and_port, host_problem
from agent.settings.sources import ADDRESS_BASES, ModbusSourceSettings

SOURCES = ("opcua", "modbus")
STREAMS = ["facts.telemetry", "facts.operational"]
SIDES = {"reads from here": "exports", "is read by this node": "pulls"}
NONE = "-"
OPC_TCP = "opc.tcp://"
TAGS_HEADER = "tag,table,register,type\n"


def ask_zone(known: str | None = None) -> str:
    """The zone of this node; `known`: that of an earlier run."""
    return _ask("Zone of this node (a-z, 0-9, -)", _zone, known)


def ask_new_passphrase() -> str:
    """The passphrase of a new authority, typed twice."""
    question = f"New passphrase of the authority's key, {pki.PASSPHRASE_BYTES_MIN} characters or more"
    return str(click.prompt(question, hide_input=True, confirmation_prompt=True, value_proc=_new_passphrase))


def ask(
    zone: str, before: Mapping[str, Any], settings: Mapping[str, Any], sources: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """The answers for a zone; an empty answer leaves its part out. `before`: the answers of an earlier run. `settings`:
    node.toml. `sources`: the names of its sources by protocol, which are not asked for."""
    given: dict[str, Any] = {"zone": zone, **_connection(zone, before, settings)}
    earlier: list[tuple[str, Mapping[str, Any]]] = []
    for kind in SOURCES:
        is_there = [source.get("name") in sources.get(kind, ()) for source in before.get(kind, [])]
        given |= {kind: [*compress(before[kind], is_there)]} if any(is_there) else {}
        earlier += [(kind, source) for source, known in zip(before.get(kind, []), is_there, strict=True) if not known]
    there = {name for names in sources.values() for name in names}
    if there:
        click.echo(f"# sources in the settings: {', '.join(sorted(there))}")
    while True:
        kind_before, source = earlier.pop(0) if earlier else ("none", {})
        if (kind := _choose("Source", (*SOURCES, "none"), kind_before)) == "none":
            return given
        taken = there | {source["name"] for kind in SOURCES for source in given.get(kind, [])}
        ask_source = _ask_opcua if kind == "opcua" else _ask_modbus
        given.setdefault(kind, []).append(ask_source(source if kind == kind_before else {}, taken))


def _connection(zone: str, before: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The answers about broker, peer and certificates; empty without a broker. Those of an earlier run are accepted
    together."""
    broker = before.get("broker", {})
    if broker:
        host, port = broker.get("host"), broker.get("port", PORT)
        peer = before.get("peer", {})
        sides = "".join(f", peer {peer['zone']} {side}" for side, name in SIDES.items() if peer.get(name))
        change = "another peer" if settings.get("broker") else "change"
        if _choose(f"Broker {host_and_port(host, port)}{sides}", ("keep", change), "keep") == "keep":
            return _as_in_force(before, settings)
    elif settings.get("broker"):
        click.echo(f"# brokers in the settings: {', '.join(str(broker.get('host')) for broker in settings['broker'])}")
        return {}
    where = _choose("Broker", ("here", "elsewhere", "none"), _place(broker))
    return {} if where == "none" else _ask_connection(zone, before, is_here=where == "here")


def _as_in_force(before: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The earlier answers about the connection, with the values that an operator has since changed in node.toml."""
    given = {name: before[name] for name in ("broker", "peer", "stick", "authority") if name in before}
    for section, key, name in (("broker", "name", "broker"), ("peer", "zone", before.get("peer", {}).get("zone"))):
        for found in [table for table in settings.get(section, []) if table.get(key) == name and section in before]:
            given[section] = {setting: found.get(setting, value) for setting, value in before[section].items()}
    if before["broker"].get("here"):  # the node's own host is another than that for its peer
        given["broker"]["host"] = before["broker"]["host"]
    return given


def _place(broker: Mapping[str, Any]) -> str:
    if not broker:
        return "none"
    return "here" if broker.get("here") else "elsewhere"


def _ask_connection(zone: str, before: Mapping[str, Any], *, is_here: bool) -> dict[str, Any]:
    """Broker, peer, and how requests and certificates are carried."""
    broker = {name: value for name, value in before.get("broker", {}).items() if name != "here"}
    question = "Name or address by which the peer reaches this machine" if is_here else "Its host"
    broker["host"] = _ask(question, _host, broker.get("host"))
    broker["port"] = click.prompt(
        "Its port for this zone and its peer", default=broker.get("port", PORT), type=click.IntRange(1, 65535)
    )
    if is_here:
        broker["here"] = True
    peer = before.get("peer", {})
    peer_zone = _ask("Zone of the peer", lambda text: _peer_zone(text, zone), peer.get("zone"))
    side = _choose("The peer", tuple(SIDES), next((side for side, name in SIDES.items() if peer.get(name)), None))
    given: dict[str, Any] = {"broker": broker, "peer": {"zone": peer_zone, SIDES[side]: peer.get(SIDES[side], STREAMS)}}
    if (stick := _ask_folder("stick", "of the stick for requests and certificates (-: none)", before)) != NONE:
        given["stick"] = stick
    if is_here and (authority := _ask_folder("authority", "of the authority (-: elsewhere)", before)) != NONE:
        given["authority"] = authority
    return given


def _ask_folder(name: str, what: str, before: Mapping[str, Any]) -> str:
    usual = {"stick": "/media/usb", "authority": str(AUTHORITY)}[name]
    default = before.get(name, NONE if _place(before.get("broker", {})) != "none" else usual)
    return _ask(f"Folder {what}", _mounted if name == "stick" else str, default)


def _ask_opcua(before: Mapping[str, Any], taken: set[str]) -> dict[str, Any]:
    return {
        **before,
        "name": _ask_name(before, taken),
        "url": _ask("Its address, opc.tcp://host:4840", _url, before.get("url")),
        "glob": click.prompt("Variables to read, as 'Line1/*/Temperature'", default=before.get("glob", "*")),
    }


def _ask_modbus(before: Mapping[str, Any], taken: set[str]) -> dict[str, Any]:
    source = {**before, "name": _ask_name(before, taken)}
    source["host"] = host = _ask("Its host", _host_and_port, before.get("host"))
    if found := HOST_WITH_PORT.fullmatch(host):
        source |= {"host": found["host"].strip("[]"), "port": int(found["port"])}
    base = before.get("address_base")
    source["address_base"] = int(
        _choose("Registers count from", tuple(map(str, ADDRESS_BASES)), None if base is None else str(base))
    )
    earlier = str(before.get("tags", TAGS_HEADER))
    if earlier.startswith(TAGS_HEADER):
        source["tags"] = _ask_rows(source["address_base"], iter(earlier.splitlines()[1:]))
    else:  # the file has more columns than the question
        click.echo("Its tags stay as they are in the answers file.")
    return source


def _ask_rows(address_base: int, earlier: Iterator[str]) -> str:
    rows = TAGS_HEADER
    for old in earlier:
        row = _ask("A tag (-: leave it out)", partial(_row, rows, address_base), old)
        rows += "" if row == NONE else f"{row}\n"
    question = "A tag, as line1/t,holding,1,float32 (empty: no more)"
    while row := click.prompt(question, default="", show_default=False, value_proc=partial(_row, rows, address_base)):
        rows += f"{row}\n"
    return rows


def _ask_name(before: Mapping[str, Any], taken: set[str]) -> str:
    return _ask("Its name, such as press-1", lambda text: _name(text, taken), before.get("name"))


# ---------------------------------------------------------------------------------------------------------------- checks


def _ask(question: str, check: Callable[[str], str], default: str | None = None) -> str:
    return str(click.prompt(question, default=default, value_proc=check))


def _choose(question: str, choices: Sequence[str], default: str | None) -> str:
    """One of the choices; the beginning of its name is enough."""
    kind = click.Choice(choices)

    def chosen(text: str) -> str:
        found = [choice for choice in choices if choice.startswith(text)]
        return found[0] if len(found) == 1 else str(kind.convert(text, None, None))

    return str(click.prompt(question, type=kind, default=default, value_proc=chosen))


def _new_passphrase(text: str) -> str:
    if len(text.encode()) < pki.PASSPHRASE_BYTES_MIN:
        raise click.BadParameter(f"it is shorter than {pki.PASSPHRASE_BYTES_MIN} characters; use several words")
    return text


def _zone(text: str) -> str:
    if not ZONE.fullmatch(text):
        raise click.BadParameter("a zone is 1 to 32 of a-z, 0-9 and -")
    return text


def _peer_zone(text: str, own: str) -> str:
    if text == own:
        raise click.BadParameter(f"{own} is the zone of this node; the peer has another")
    return _zone(text)


def _host(text: str) -> str:
    if host_problem(text):
        raise click.BadParameter("a host name or an IP address, without a scheme, brackets, a port and a path")
    return text


def _host_and_port(text: str) -> str:
    """A host, or one with the port of a device or gateway that does not listen on 502."""
    found = HOST_WITH_PORT.fullmatch(text)
    if not found:
        return _host(text)
    if not 0 < int(found["port"]) < 1 << 16:
        raise click.BadParameter("a port is a number from 1 to 65535")
    return host_and_port(_host(found["host"].strip("[]")), int(found["port"]))


def _mounted(text: str) -> str:
    if text != NONE and not Path(text).is_dir():
        raise click.BadParameter(f"{text} is not a folder; mount the stick there from another terminal, or answer -")
    return text


def _name(text: str, taken: set[str]) -> str:
    for setting, why in ModbusSourceSettings(text, Path("row"), 0).problems():
        if setting == "name":
            raise click.BadParameter(why)
    if text in taken:
        raise click.BadParameter(f"{text} is the name of another source")
    return text


def _url(text: str) -> str:
    if not text.startswith(OPC_TCP) or text == OPC_TCP:
        raise click.BadParameter(f"an address begins with {OPC_TCP}")
    return text


def _row(rows: str, address_base: int, text: str) -> str:
    """A row of a tag file, checked with the rows before it."""
    if text in {"", NONE}:
        return text
    settings = ModbusSourceSettings("source", Path("row"), address_base)
    try:
        found = parse_tag_file(settings, f"{rows}{text}\n".encode())
    except TagMapError as error:
        raise click.BadParameter(
            "; ".join(f"{problem.column}: {problem.value!r} {problem.why}" for problem in error.problems)
        ) from error
    for note in found.notes:
        click.echo(f"Note: {note.removeprefix('row: ')}")
    return text
