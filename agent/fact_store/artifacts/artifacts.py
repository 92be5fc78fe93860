"""Artifacts and the facts that refer to them: what may be referred to, what is still missing, what nobody refers to any more.

The bytes lie in files beside the log (artifact_store.py), the references in the log's own transaction, so that a fact and what
keeps its artifact are there together or not at all. Files are only ever removed here, after the table was asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from agent.batch import Batch
from agent.fact_store.append import Call
from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.fact_store.log import ArtifactLimits, StoreSettings, checked_references, messages_in, references_in
from agent.fact_store.read import StoreReader
from agent.fact_store.sqlite import Transaction
from agent.fact_store.writer import Writer
from agent.message import Message
from agent.pages import ArtifactProgress, ArtifactReference

FOLDER = "artifacts"


class Artifacts:
    """The artifacts of one store. Thread-safe; everything waits for the disk in the calling thread."""

    def __init__(self, path: Path, settings: StoreSettings, reader: StoreReader, writer: Writer) -> None:
        limits = ArtifactLimits(
            settings.artifact_bytes_max, settings.artifacts_total_bytes_max, settings.disk_free_bytes_min
        )
        self._files = ArtifactFiles(path.with_name(FOLDER), limits)
        self._orphan_after_s = settings.artifact_orphan_hours * 3600
        self._reader, self._writer = reader, writer

    def put_chunk(self, digest: str, size: int, offset: int, data: bytes) -> ArtifactProgress:
        """As `ArtifactFiles.put_chunk`."""
        return self._files.put_chunk(digest, size, offset, data)

    def read_chunk(self, digest: str, offset: int, length: int) -> tuple[int, bytes]:
        """As `ArtifactFiles.read_chunk`."""
        return self._files.read_chunk(digest, offset, length)

    def claim(self, message: Message) -> None:
        """Raise ArtifactMissing unless everything that a message refers to is here; then it stays until the message is stored."""
        for reference in checked_references(message):
            self._files.claim(reference)

    def missing(self, batches: Iterable[Batch]) -> list[ArtifactReference]:
        """To which artifacts the messages of batches refer that are not here, each once; the others stay until they are stored."""
        found = dict.fromkeys(one for message in messages_in(batches) for one in references_in(message))
        return [one for one in found if not self._files.keep(one)]

    def absent(self, stream: str) -> list[str]:
        """Digests of artifacts to which held facts of a stream refer and that are not here."""
        return [digest for digest in self._reader.artifacts_of(stream) if not self._files.has(digest)]

    def bytes_used(self) -> int:
        """Bytes of all artifacts, and of what is coming in."""
        return self._files.bytes_used()

    @property
    def bytes_max(self) -> int | None:
        """The limit of all together, None where only the disk is one."""
        return self._files.limits.total_max or None

    def bytes_lacking(self) -> int:
        """As `ArtifactFiles.bytes_lacking`."""
        return self._files.bytes_lacking()

    def streams(self, digest: str) -> list[str]:
        """The streams with a held fact that refers to it. Raises ArtifactRefused."""
        return self._reader.artifact_streams(digest)

    def unavailable(self, peer: str, digest: str, why: str) -> None:
        """A peer's fact refers to what will not come: an incident. Raises StoreUnavailable."""
        run = partial(_say_unavailable, peer=peer, digest=digest, why=why)
        self._writer.call(Call("artifact", 0, time.monotonic_ns(), run))

    def sweep(self) -> int:
        """Remove what no held fact has referred to for the hours that the settings say; how many. Raises StoreError."""
        if not self._files.folder.exists():
            return 0
        forgetting = Call("artifacts", 0, time.monotonic_ns(), Transaction.forget_artifacts)
        self._writer.call(forgetting)
        forgetting.future.result()
        return self._files.sweep(lambda digest: bool(self.streams(digest)), self._orphan_after_s)


def _say_unavailable(transaction: Transaction, *, peer: str, digest: str, why: str) -> None:
    transaction.add_incident("artifact_missing", digest, f"a fact from {peer} refers to it: {why}")
