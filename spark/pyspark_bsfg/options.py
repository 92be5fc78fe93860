"""Options of the data source, parsed from Spark's texts into a frozen record. Core: no IO.

Spark passes keys in lower case and every value as text. An unknown key is refused: with an ignored `endingOfsets`, a
read would return more than requested. The options for start and end have Kafka's names and meaning: the start is
included, the end is not. Options are paths and numbers; secrets do not belong here, because Spark prints options in its
plans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from agent.message import STREAM
from agent.replication.protocol.topics import is_node
from agent.settings.host import host_problem
from pyspark_bsfg.errors import OptionError

TRANSPORTS = ("file", "mqtt")  # a store file on the same host; a node at a broker
TELEMETRY = "facts.telemetry"
WhenReleased = Literal["skip", "fail"]  # facts that retention releases between planning and reading
# A task holds one page at a time, so this bounds what a lost task repeats, not memory.
PARTITION_FACTS_MAX = 2_000_000
OFFSET_MAX = 2**63 - 2
UNIX_MS_MAX = 2**43 - 1
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
PARTITIONS_MAX = 10_000  # what a Spark driver schedules without trouble
# Each task has a connection, and an address may have eight (systemd/examples/bsfg-broker.nft).
NODE_PARTITIONS = 4
PORT = 8883
REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S_MAX = 10, 600
# With pauses up to 2 s, a restarted node is back by then.
ATTEMPTS, ATTEMPTS_MAX = 10, 1000


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The node of a zone (`peer`) at a broker, and the certificate files to connect with; files are paths, or
    `spark-files:NAME`. If `facts_ca_file` is empty, no fact is verified."""

    host: str
    peer: str
    ca_file: str
    cert_file: str
    key_file: str
    port: int = PORT
    request_timeout_s: int = REQUEST_TIMEOUT_S
    attempts: int = ATTEMPTS
    facts_ca_file: str = ""
    compromised_file: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """What to read: files, whose `paths` may be patterns, or some `nodes`. Offsets include both ends; times are those
    of recording, since one time and before another. None means up to the end of the store."""

    paths: tuple[str, ...]
    stream: str = TELEMETRY
    start_offset: int | None = None
    end_offset: int | None = None
    since_unix_ms: int | None = None
    before_unix_ms: int | None = None
    partitions: int | None = None
    partition_facts_max: int = PARTITION_FACTS_MAX
    when_released: WhenReleased = "skip"
    push_filters: bool = False
    nodes: tuple[NodeOptions, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """The options that Spark passes. Raises OptionError, which names the option as the documentation does."""
        texts = {key.lower(): value for key, value in given.items()}
        for stranger in sorted(texts.keys() - NAMES.keys()):
            raise unknown(stranger, NAMES)
        transport = choice(texts, "transport", TRANSPORTS)
        if misplaced := [name for name in texts if name in (_OF_NODE if transport == "file" else _OF_FILE)]:
            raise OptionError(
                f"option {NAMES[misplaced[0]]} is not of transport {transport}", "set transport to mqtt or file"
            )
        flag(texts, "includeLabels", "false")  # it decides the schema: source.py
        if not STREAM.fullmatch(texts.get("stream", TELEMETRY)):
            raise OptionError(f"stream {texts['stream']!r}", f"a stream's name matches {STREAM.pattern}")
        options = cls(
            paths=_paths(texts) if transport == "file" else (),
            stream=texts.get("stream", TELEMETRY),
            start_offset=_offset(texts, "startingOffsets", "earliest", "latest"),
            end_offset=None if (end := _offset(texts, "endingOffsets", "latest", "earliest")) is None else end - 1,
            since_unix_ms=unix_ms(texts, "startingTimestamp"),
            before_unix_ms=unix_ms(texts, "endingTimestamp"),
            partitions=number(texts, "numPartitions", PARTITIONS_MAX),
            partition_facts_max=number(texts, "maxFactsPerPartition", OFFSET_MAX) or PARTITION_FACTS_MAX,
            when_released=choice(texts, "whenReleased", get_args(WhenReleased)),
            push_filters=flag(texts, "pushFilters", "false"),
            nodes=_nodes(texts) if transport == "mqtt" else (),
        )
        _check_ends(texts, options)
        return options


OF_KAFKA = {
    "kafka.bootstrap.servers": "path of a store's file, or transport mqtt with host and port",
    "kafka.group.id": "consumer, of readStream",
    "subscribe": "stream",
    "subscribepattern": "stream, one for each read",
    "assign": "stream",
    "includeheaders": "includeLabels",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    # A stream has the same options, so these are unknown only to a batch read.
    "failondataloss": "whenReleased, of a batch read",
    "minpartitions": "numPartitions, of a batch read",
    "maxoffsetspertrigger": "an option of readStream",
}


def by_lower(names: str) -> dict[str, str]:
    """Options as the documentation names them, by the name that Spark passes."""
    return {name.lower(): name for name in names.split()}


_OF_FILE = by_lower("path paths")
_OF_NODE = by_lower("nodes host port peer caFile certFile keyFile factsCaFile compromisedFile requestTimeout attempts")
_OF_BOTH = "transport stream startingOffsets endingOffsets startingTimestamp endingTimestamp numPartitions"
_OF_BOTH += " maxFactsPerPartition whenReleased pushFilters includeLabels"
NAMES = _OF_FILE | _OF_NODE | by_lower(_OF_BOTH)


def _paths(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Local paths from `.load(path)`, `.load([path, path])` and URIs of files. Raises OptionError."""
    given = [texts["path"]] if texts.get("path") else []
    if "paths" in texts:
        try:
            given += json.loads(texts["paths"])
        except (ValueError, TypeError):
            raise OptionError(f"paths {texts['paths']!r}", 'use .load(["/a/facts.db", "/b/facts.db"])') from None
    if not given:
        # Spark passes the options of a view to a Python data source, not those of CREATE TABLE.
        in_sql = "" if texts else "; in SQL: CREATE TEMPORARY VIEW facts USING bsfg OPTIONS (path '...')"
        raise OptionError("path is missing", f'name the store file: .load("/var/lib/bsfg/enterprise/facts.db"){in_sql}')
    return tuple(map(_local, given))


def _nodes(texts: Mapping[str, str]) -> tuple[NodeOptions, ...]:
    """The nodes, which share all other options: that of `peer`, or several of `nodes`. Raises OptionError."""
    if "nodes" not in texts:
        return (_node(texts),)
    if misplaced := [name for name in ("host", "port", "peer") if name in texts]:
        raise OptionError(
            f"options nodes and {misplaced[0]}", "nodes has all of them: ZONE=HOST[:PORT], with blanks between"
        )
    found = []
    for named in texts["nodes"].replace(",", " ").split():
        peer, _, address = named.partition("=")
        host, _, port = address.partition(":")
        found.append(_node({**texts, "peer": peer, "host": host, **({"port": port} if port else {})}))
    if len({node.peer for node in found}) < max(len(found), 1):
        raise OptionError(f"nodes {texts['nodes']!r}", "name one or several zones, each once: ZONE=HOST[:PORT]")
    return tuple(found)


def by_node(given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The options of each of some nodes, by zone; those given, under an empty name, if they have no `nodes`."""
    texts = {key.lower(): value for key, value in given.items()}
    if "nodes" not in texts:
        return {"": dict(given)}
    rest = {key: value for key, value in given.items() if key.lower() != "nodes"}
    return {node.peer: rest | {"peer": node.peer, "host": node.host, "port": str(node.port)} for node in _nodes(texts)}


def _node(texts: Mapping[str, str]) -> NodeOptions:
    """The node options. Raises OptionError for missing ones."""
    needed = ("host", "peer", "caFile", "certFile", "keyFile")
    if missing := [name for name in needed if not texts.get(name.lower(), "").strip()]:
        raise OptionError(f"transport mqtt without {', '.join(missing)}", f"it needs {', '.join(needed)}")
    host, peer, ca_file, cert_file, key_file = (texts[name.lower()].strip() for name in needed)
    if not is_node(peer):
        raise OptionError(f"peer {peer!r}", "the zone to read from, such as enterprise")
    if why := host_problem(host):
        raise OptionError(f"host {host!r}", why)
    if "compromisedfile" in texts and not texts.get("factscafile"):
        raise OptionError("compromisedFile without factsCaFile", "nothing is verified without it: name both")
    return NodeOptions(
        host,
        peer,
        ca_file,
        cert_file,
        key_file,
        port=number(texts, "port", 65535) or PORT,
        request_timeout_s=number(texts, "requestTimeout", REQUEST_TIMEOUT_S_MAX) or REQUEST_TIMEOUT_S,
        attempts=number(texts, "attempts", ATTEMPTS_MAX) or ATTEMPTS,
        facts_ca_file=texts.get("factscafile", ""),
        compromised_file=texts.get("compromisedfile", ""),
    )


def _local(path: str) -> str:
    """A path without `file:`. Raises OptionError for a path on another host or file system."""
    if (found := local_path(path)) is None:
        raise OptionError(f"path {path!r}", "a store is a file of the host where the tasks run: /path or file:///path")
    return found if found == path else unquote(found)


def local_path(address: str) -> str | None:
    """The path in a path or a `file:` address, as it is written; None for one of another host or file system."""
    if not (found := _SCHEME.match(address)):
        return address
    try:
        parts = urlsplit(address)
    except ValueError:  # a bracket that is not closed
        return None
    return parts.path if found[1].lower() == "file" and parts.netloc in {"", "localhost"} else None


def unknown(key: str, known: Mapping[str, str]) -> OptionError:
    """The error for an unknown option; it names the nearest option, or ours for an option of Kafka."""
    if key in OF_KAFKA:
        return OptionError(f"option {key} of Kafka", f"here it is {OF_KAFKA[key]}")
    if key.startswith("kafka."):
        return OptionError(f"option {key} of Kafka", "transport mqtt has host, port, caFile, certFile and keyFile")
    near = get_close_matches(key, known, 1, 0.5)
    hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(sorted(known.values()))}"
    return OptionError(f"unknown option {key}", hint)


def _check_ends(texts: Mapping[str, str], options: Options) -> None:
    """Raise OptionError for ends that contradict each other, or that the transport does not support."""
    start, end = options.start_offset, options.end_offset
    if start is not None and end is not None and end < start - 1:
        raise OptionError(f"endingOffsets {end + 1} lies before startingOffsets {start}", "read from low to high")
    since, before = options.since_unix_ms, options.before_unix_ms
    if since is not None and before is not None and before < since:
        raise OptionError(f"endingTimestamp {before} lies before startingTimestamp {since}", "read from old to new")
    for which in ("starting", "ending"):
        if f"{which}timestamp" not in texts:
            continue
        if f"{which}offsets" in texts:
            raise OptionError(f"{which}Timestamp and {which}Offsets", "give one of them")
        if options.nodes:
            # The protocol does not say when facts were recorded.
            raise OptionError(f"{which}Timestamp of transport mqtt", f"give {which}Offsets, or filter on ts")


def unix_ms(texts: Mapping[str, str], name: str) -> int | None:
    """A time in ms since 1970, given so or as ISO 8601 with a zone. Raises OptionError."""
    if (text := texts.get(name.lower())) is None:
        return None
    if text.strip().isdigit():
        return number(texts, name, UNIX_MS_MAX)
    try:
        at = datetime.fromisoformat(text.strip())
        found = round(at.timestamp() * 1000) if at.tzinfo else 0
    except (ValueError, OverflowError):
        found = 0
    if not 1 <= found <= UNIX_MS_MAX:
        raise OptionError(f"{name} {text!r}", "a time with its zone, such as 2026-01-01T12:00Z, or ms since 1970")
    return found


def plain_offset(texts: Mapping[str, str], name: str, default: str) -> str:
    """An offset as a text, also from Kafka's JSON, in which a stream has partition 0. Raises OptionError."""
    text = texts.get(name.lower(), default).strip()
    if not text.startswith("{"):
        return text.lower()
    stream = texts.get("stream", TELEMETRY)
    try:
        by_stream = json.loads(text)
        if by_stream.keys() == {stream} and by_stream[stream].keys() == {"0"}:
            offset = by_stream[stream]["0"]
            return {-2: "earliest", -1: "latest"}.get(offset, str(offset))
    except (ValueError, AttributeError, TypeError):
        pass
    raise OptionError(f"{name} {text!r}", f'as JSON it is {{"{stream}":{{"0":OFFSET}}}}')


def number(texts: Mapping[str, str], name: str, most: int, otherwise: str = "") -> int | None:
    """A whole number from 1; None if it is not given. Raises OptionError, which says what else it may be."""
    if (given := texts.get(name.lower())) is None:
        return None
    text = given.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= most):
        raise OptionError(f"{name} {given!r}", f"{otherwise}a whole number from 1 to {most}")
    return int(text)


def flag(texts: Mapping[str, str], name: str, default: str) -> bool:
    """True or false. Raises OptionError."""
    if (text := texts.get(name.lower(), default).lower()) not in {"true", "false"}:
        raise OptionError(f"{name} {texts[name.lower()]!r}", "it is true or false")
    return text == "true"


def choice(texts: Mapping[str, str], name: str, known: Sequence[str]) -> Any:
    """One of the known texts, of the caller's Literal; the first if none is given. Raises OptionError."""
    if (text := texts.get(name.lower(), known[0]).lower()) not in known:
        raise OptionError(f"{name} {text!r}", f"known are {', '.join(known)}")
    return text


def _offset(texts: Mapping[str, str], name: str, default: str, refused: str) -> int | None:
    """An offset; None for the default, which is the first or last offset of the store."""
    text = plain_offset(texts, name, default)
    if text == refused:  # as Kafka's source does: there would be nothing to read
        raise OptionError(f"{name} {text} of a batch read", f"it is {default}, or an offset")
    return None if text == default else number({name.lower(): text}, name, OFFSET_MAX, f"{default}, or ")
