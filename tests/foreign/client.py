"""The client in JavaScript and the decoder in Perl, written from docs/developers alone, as a test drives them, and the
facts that they must find."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.foreign.process import INSTALLED, ServerProcess, Stack

HERE = Path(__file__).resolve().parent
CLIENT_JS = Stack(
    "client_js", ("node", str(HERE / "client_js" / "client.js")), "NODE_PATH", INSTALLED / "client_js" / "node_modules"
)
PERL, ZSTD = Stack("perl", ("perl",)), Stack("zstd", ("zstd",))
DECODERS = {
    "client_js": ("node", str(HERE / "client_js" / "batch.js")),
    "perl": ("perl", str(HERE / "client_perl" / "decode.pl")),
}
NAN = 0x7FF8000000000000
EXPORTED = ("unit", "zone", "life", "sequence", "stream", "kind", "tag", "subject", "predicate", "quality")
ENVELOPE = ("message_id", "from_zone", "to_zone", "correlation_id", "causation_id")

Row = Mapping[str, Any]


class ForeignClient(ServerProcess):
    """One process of the client, connected to a broker."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, CLIENT_JS)
        self._options = {name: _plain(value) for name, value in options.items()}

    def start(self) -> None:
        """Start and connect it."""
        self._begin([json.dumps(self._options)])

    def command(self, what: str, **fields: Any) -> Any:
        """Run one command of client.js. Returns its answer."""
        return self._exchange(json.dumps({"do": what, **_plain(fields)}), what)

    def ask(self, serving: str, operation: str, *, spoil: str = "", limit_ms: int = 20_000, **fields: Any) -> Any:
        """The answer to a request: its header, and of a page also the facts; `spoil`: as in peer.js."""
        return self.command("ask", serving=serving, operation=operation, fields=fields, spoil=spoil, limit_ms=limit_ms)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return str(value) if isinstance(value, Path) else value


def decode(name: str, batches: Path) -> tuple[list[dict[str, Any]], str]:
    """The facts of a file of batches, and why one of them is refused."""
    environment = os.environ | {"NODE_PATH": str(CLIENT_JS.modules)}
    done = subprocess.run([*DECODERS[name], batches], capture_output=True, text=True, check=False, env=environment)
    assert done.stderr.startswith("refused: ") if done.returncode else not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]], done.stderr


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text("utf-8").split("\n")[:-1]]


def exported(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows of `bsfg store export` as the clients write them: a double as its bits, integers as texts."""
    return [_exported(row) for row in rows]


def _exported(row: Row) -> dict[str, Any]:
    found = {name: row[name] for name in EXPORTED if name in row}
    found |= {
        "source_time_ns": str(row["source_time_ns"]),
        "offset": row["offset"],
        "verified": row["verified"] == "yes",
    }
    if row["kind"] == "message":
        found |= {name: row[name] for name in ENVELOPE if name in row}
        return found | {"labels": json.loads(row.get("labels_json", "{}")), "object_json": row["object_json"]}
    found["value_type"] = row["value_type"]
    if row["value_type"] == "double":
        found["value"] = f"{_bits(row['value']):016x}"
    elif row["value_type"] in ("int", "uint"):
        found["value"] = str(row["value"])
    elif "value" in row:
        found["value"] = row["value"]
    return found


def _bits(value: float | str) -> int:
    if isinstance(value, str) and value.startswith("NaN"):
        return int(value.removeprefix("NaN:"), 16) if ":" in value else NAN
    (bits,) = struct.unpack(">Q", struct.pack(">d", float(value)))
    return int(bits)


def same(row: Row, *without: str) -> dict[str, Any]:
    """A row without these columns, without those that are not exported, and without what one side omits and the other
    has as null."""
    omitted = {*without, "object_media_type", "object_schema"}
    return {name: value for name, value in row.items() if name not in omitted and value is not None}


def by_identity(rows: Sequence[Row]) -> dict[tuple[str, str, str, int], Row]:
    """Rows by stream, zone, life and sequence; no fact is there twice."""
    found = {(row["stream"], row["zone"], row["life"], row["sequence"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def differences(found: Sequence[Row], wanted: Sequence[Row], *without: str) -> str:
    """The columns of the first facts that differ, or the counts; empty if all are equal."""
    for got, expected in zip(found, wanted, strict=False):
        left, right = same(got, *without), same(expected, *without)
        if left != right:
            unequal = {name for name in {*left, *right} if left.get(name) != right.get(name)}
            return f"{got['sequence']}: {[(name, left.get(name), right.get(name)) for name in unequal]}"
    return "" if len(found) == len(wanted) else f"{len(found)} facts, not {len(wanted)}"
