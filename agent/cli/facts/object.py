"""`bsfg object put`, `get`, `list`, `verify`: artifacts, which are too large for a fact and are stored beside the log
by digest.

`put` sends the bytes to the running node, to the store itself where no node runs, or with `--to` to a peer. Reading
needs no node, since the files never change. An interrupted `put` is continued by the next. `get` gives a file its name
when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from io import BufferedReader, BufferedWriter
from pathlib import Path

import click

from agent import local_socket
from agent.cli import FILE, INPUT, config_option, json_option, print_json, table
from agent.cli.local_node import answer_s_option, load_settings, to_option
from agent.errors import BsfgError
from agent.fact_store import (
    ARTIFACTS_FOLDER,
    CHUNK_BYTES_MAX,
    ArtifactFiles,
    ArtifactMismatch,
    ArtifactRefused,
    check_digest,
)
from agent.local_socket.serving import RequestHandler, open_store
from agent.replication.protocol.messages import PUT_BYTES_MAX, PutAnswer, PutObject
from agent.settings.node import NodeSettings

Send = Callable[[int, bytes], Awaitable[tuple[int, bool]]]
"""send(offset, data) returns how many bytes the receiver has, and whether the artifact is complete."""


class FileUnusable(BsfgError):
    """A file named on the command line cannot be read or written."""


@click.group("object")
def object_() -> None:
    """Artifacts: files that facts refer to by digest."""


@object_.command()
@config_option
@to_option
@answer_s_option
@click.argument("file", type=INPUT)
def put(config_file: Path, peer: str | None, answer_s: float, file: Path) -> None:
    """Store FILE beside the log and print the reference for a fact's object_json."""
    settings = load_settings(config_file)
    with file.open("rb") as source:
        digest = "sha256:" + hashlib.file_digest(source, "sha256").hexdigest()
        size = source.seek(0, os.SEEK_END)
        if size == 0:
            raise ArtifactRefused(f"{file} is empty", "an artifact has at least one byte")
        if peer is None:
            _put_here(settings, source, digest, size)
        else:
            from agent.cli.facts.peer_requests import put_object  # MQTT is slow to import

            put_object(settings, peer, partial(feed, source), digest, size, answer_s)
    print_json({"digest": digest, "size": size})


def _put_here(settings: NodeSettings, source: BufferedReader, digest: str, size: int) -> None:
    """Send the artifact to the running node, or into the store where no node runs."""

    def send_to(ask: Callable[[PutObject], Awaitable[local_socket.LocalReply]]) -> Send:
        async def send(offset: int, data: bytes) -> tuple[int, bool]:
            request = PutObject(digest=digest, size=size, offset=offset, data=data)
            answer = local_socket.accepted(await ask(request), PutAnswer)
            return answer.received, answer.is_complete

        return send

    try:
        asyncio.run(feed(source, send_to(partial(local_socket.ask, settings.node.state_dir)), PUT_BYTES_MAX))
    except (FileNotFoundError, ConnectionRefusedError):
        with open_store(settings) as store:
            asyncio.run(feed(source, send_to(RequestHandler(store).answer), PUT_BYTES_MAX))


async def feed(source: BufferedReader, send: Send, chunk_bytes: int) -> None:
    """Send a file, starting where an earlier attempt ended."""
    received, is_complete = await send(0, b"")
    while not is_complete:
        source.seek(received)
        data, before = source.read(chunk_bytes), received
        if not data:
            raise ArtifactRefused(f"{source.name} became shorter while it was read", "repeat the command")
        received, is_complete = await send(before, data)
        if received == before:
            raise ArtifactRefused(f"byte {before} of {source.name} was not accepted", "repeat the command")


@object_.command()
@config_option
@click.option(
    "--from",
    "peer",
    metavar="NODE",
    help="Ask the node of this peer; a fact that it exports to this node must refer to the artifact.",
)
@answer_s_option
@click.argument("digest")
@click.argument("file", type=FILE)
def get(config_file: Path, peer: str | None, answer_s: float, digest: str, file: Path) -> None:
    """Write the artifact DIGEST to FILE and check it against its digest."""
    settings = load_settings(config_file)
    check_digest(digest)
    with _verified_file(file, digest) as write:
        if peer is None:
            size, offset = 1, 0
            while offset < size:
                size, data = _files(settings).read_chunk(digest, offset, CHUNK_BYTES_MAX)
                if not data:
                    raise ArtifactMismatch(
                        f"{digest} ends at {offset} of {size} bytes", "the file was truncated; see bsfg object verify"
                    )
                offset += write(data)
        else:
            from agent.cli.facts.peer_requests import get_object  # MQTT is slow to import

            offset = get_object(settings, peer, digest, write, answer_s)
    click.echo(f"{file}: {offset} bytes")


@contextlib.contextmanager
def _verified_file(file: Path, digest: str) -> Iterator[Callable[[bytes], int]]:
    """A function that writes bytes to a temporary file, which replaces `file` at the end if the digest matches."""
    running, target = hashlib.sha256(), _open_part(file)

    def write(data: bytes) -> int:
        running.update(data)
        return target.write(data)

    try:
        with target:
            yield write
        found = f"sha256:{running.hexdigest()}"
        if found != digest:
            raise ArtifactMismatch(
                f"the bytes stored as {digest} are {found}", "the disk changed them; see bsfg object verify"
            )
        Path(target.name).replace(file)
    except OSError as error:
        raise FileUnusable(f"{file} cannot be written: {error.strerror}") from error
    finally:
        Path(target.name).unlink(missing_ok=True)


def _open_part(file: Path) -> BufferedWriter:
    try:
        return file.with_name(f".{file.name}.{os.getpid()}.part").open("wb")
    except OSError as error:
        raise FileUnusable(f"no file can be written in {file.parent}: {error.strerror}") from error


@object_.command("list")
@config_option
@json_option
def list_(config_file: Path, as_json: bool) -> None:
    """List every artifact that is complete here."""
    store = _files(load_settings(config_file))
    held = [(digest, size) for digest in store.digests() if (size := store.size_of(digest)) is not None]
    if as_json:
        print_json([{"digest": digest, "size": size} for digest, size in held])
        return
    for line in table.lines(("digest", "bytes"), held, "table"):
        click.echo(line)


@object_.command()
@config_option
def verify(config_file: Path) -> None:
    """Read every artifact and check it against its digest. Exit status 1 when one is damaged."""
    store = _files(load_settings(config_file))
    digests = list(store.digests())
    damaged = [digest for digest in digests if not store.verify(digest)]
    for digest in damaged:
        name = check_digest(digest)
        click.echo(
            f"damaged: {store.folder / name[:2] / name}; remove it, then put it again or bsfg peer compare --repair"
        )
    click.echo(f"{len(digests)} artifacts, {len(damaged)} damaged")
    if damaged:
        sys.exit(1)


def _files(settings: NodeSettings) -> ArtifactFiles:
    return ArtifactFiles(settings.node.store_file.with_name(ARTIFACTS_FOLDER))
