"""`bsfg object put`, `get`, `list`: artifacts, what is too large for a fact and is stored beside the log by its digest.

Putting asks the running node, or is the node for a moment; reading needs nobody, the files never change. What came of an attempt that
broke off is gone on with.
"""

from __future__ import annotations

import hashlib
import json
from io import BufferedReader
from pathlib import Path
from typing import cast

import click

from agent import local
from agent.cli import config_option, json_option, table
from agent.cli.door import ask
from agent.config import NodeSettings, load
from agent.fact_store.artifact import CHUNK_BYTES_MAX
from agent.fact_store.artifact_store import ArtifactStore
from agent.fact_store.artifacts import FOLDER
from agent.fact_store.errors import ArtifactMismatch, ArtifactRefused


@click.group("object")
def object_() -> None:
    """Artifacts: what facts refer to by digest."""


@object_.command()
@config_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def put(config_file: Path, file: Path) -> None:
    """Store FILE beside the log; print the reference for a fact's object_json."""
    settings = load(config_file)
    with file.open("rb") as source:
        _put_all(settings, source)


def _put_all(settings: NodeSettings, file: BufferedReader) -> None:
    digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    size = file.seek(0, 2)
    if size == 0:
        raise ArtifactRefused(f"{file.name} is empty", "an artifact has at least one byte")
    held = _put(settings, local.PutObject(digest, size))
    while not held.is_complete:
        file.seek(held.received)
        before = held.received
        held = _put(settings, local.PutObject(digest, size, before, file.read(CHUNK_BYTES_MAX)))
        if held.received == before:
            raise ArtifactRefused(f"{file.name} has changed while it was put", "put it again")
    click.echo(json.dumps({"digest": digest, "size": size}))


@object_.command()
@config_option
@click.argument("digest")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def get(config_file: Path, digest: str, file: Path) -> None:
    """Write the artifact DIGEST to FILE, compared with its digest."""
    store = _files(load(config_file))
    running, offset, size = hashlib.sha256(), 0, 1
    with file.open("wb") as target:
        while offset < size:
            size, data = store.read_chunk(digest, offset, CHUNK_BYTES_MAX)
            target.write(data)
            running.update(data)
            offset += len(data)
    if f"sha256:{running.hexdigest()}" != digest:
        raise ArtifactMismatch(
            f"the bytes stored as {digest} are sha256:{running.hexdigest()}",
            "the disk has changed them; put it again after removing the file",
        )
    click.echo(f"{file}: {size} bytes")


@object_.command("list")
@config_option
@json_option
def list_(config_file: Path, as_json: bool) -> None:  # noqa: FBT001 click passes options by name
    """List every artifact that is here as a whole."""
    store = _files(load(config_file))
    held = [(digest, found.size) for digest in store.digests() if (found := store.held(digest)) is not None]
    if as_json:
        click.echo(json.dumps([{"digest": digest, "size": size} for digest, size in held]))
        return
    for line in table.lines(("digest", "bytes"), held, "table"):
        click.echo(line)


def _files(settings: NodeSettings) -> ArtifactStore:
    return ArtifactStore(settings.store_file.with_name(FOLDER))


def _put(settings: NodeSettings, request: local.PutObject) -> local.ObjectPut:
    return cast("local.ObjectPut", ask(settings, request))
