"""Shell: the file of this package in the checkpoint of a query, and the files of Spark that it reads there.

`bsfg.json` binds a consumer to one checkpoint: two queries with one consumer would release each other's facts. It also
has the start of the query, because Spark asks for it again if the first batch was not finished, and an id for the
query's writes to a table. Offsets and commits are read from Spark's logs, one small file for each batch.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent.file_replace import sync_folder
from agent.lease import LeaseClaim
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.streaming.offsets import StreamOffset

FILE = "bsfg.json"
HEADER_LINES = 2  # of an entry of Spark's offset log: version, metadata; then an offset for each source


@dataclass(frozen=True, slots=True)
class Binding:
    """What a checkpoint belongs to. `start` is None until it is known. `app` identifies the checkpoint, `lease` is its
    lease of the consumer, 0 for none yet."""

    app: str
    store: str
    stream: str
    consumer: str
    start: StreamOffset | None = None
    lease: int = 0

    def claim(self, folder: Path, after: int | None = None) -> LeaseClaim:
        """The claim of this checkpoint on its consumer; with `after`, a request for the lease that follows that one.
        The holder is named by its place too, for those who look for the other query."""
        holder = f"{socket.gethostname()}:{folder}#{self.app[:8]}"
        return LeaseClaim(holder, self.lease if after is None else 0, after)


def bind(folder: Path, store: str, stream: str, consumer: str) -> Binding:
    """The binding of a checkpoint, made if there is none. Raises JobRefused if it belongs to something else: a query
    that never began, because its options were refused, has read nothing and had no lease."""
    found = read_binding(folder)
    has_begun = found is not None and (found.start is not None or found.lease != 0)
    if found is None or (not has_begun and (found.store, found.stream, found.consumer) != (store, stream, consumer)):
        made = Binding(uuid.uuid4().hex, store, stream, consumer)
        write_binding(folder, made)
        return made
    for name, theirs, ours in (
        ("store", found.store, store),
        ("stream", found.stream, stream),
        ("consumer", found.consumer, consumer),
    ):
        if theirs != ours:
            raise JobRefused(
                f"checkpoint {folder} belongs to {name} {theirs or '(none)'}, this query reads {ours or '(none)'}",
                f"use {name} {theirs or '(none)'}, or a new checkpoint with a new consumer",
            )
    return found


def read_binding(folder: Path) -> Binding | None:
    """The binding of a checkpoint; None if there is none yet. Raises JobRefused."""
    try:
        text = (folder / FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JobRefused(
            f"{folder / FILE} cannot be read: {error.strerror}", "run as the user that wrote it"
        ) from error
    try:
        found = json.loads(text)
        start = None if found["start"] is None else StreamOffset.of(found["start"])
        return Binding(found["app"], found["store"], found["stream"], found["consumer"], start, found["lease"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobRefused(f"{folder / FILE} is damaged: {error}", "restore it, or use a new checkpoint") from error


def write_binding(folder: Path, binding: Binding) -> None:
    """Write a binding durably, as a whole. Raises JobRefused."""
    start = None if binding.start is None else binding.start.to_json()
    write_json(folder / FILE, asdict(replace(binding, start=None)) | {"start": start})


def write_json(path: Path, content: Any) -> None:
    """Write a file durably, as a whole; make its folder. Raises JobRefused."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w", encoding="utf-8") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise JobRefused(
            f"{path} cannot be written: {error.strerror}", "name a folder that this user may write"
        ) from error


def batch_offsets(folder: Path, batch: int) -> tuple[StreamOffset | None, StreamOffset]:
    """Start and end of a batch that Spark has planned; the start is None for the first. Raises JobRefused."""
    start = _logged(folder, batch - 1) if batch else None
    return start, _logged(folder, batch)


def last_committed(folder: Path, node: str = "") -> StreamOffset | None:
    """The end of the last finished batch, by Spark's logs; None before the first. `node`: of several."""
    try:
        done = [int(path.name) for path in (folder / "commits").iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return None
    return _logged(folder, max(done), node) if done else None


def query_id(folder: Path) -> str | None:
    """Spark's id of the query of a checkpoint; None before it has begun."""
    try:
        found: str = json.loads((folder / "metadata").read_text("utf-8"))["id"]
    except (OSError, ValueError, KeyError):
        return None
    return found


def _logged(folder: Path, batch: int, node: str = "") -> StreamOffset:
    path = folder / "offsets" / str(batch)
    try:
        lines = path.read_text("utf-8").splitlines()[HEADER_LINES:]
        (offset,) = (json.loads(line) for line in lines)
        return StreamOffset.of(offset.get(node, {"life": "", "offset": 0}) if node else offset)
    except (OSError, ValueError) as error:
        raise JobRefused(f"{path} is not the offset of one bsfg source: {error}", "use a new checkpoint") from error
