"""The artifacts of one store: the files, and which held facts refer to them.

The bytes are files beside the log (artifact_files.py). References are stored in the transaction of their fact, so fact
and reference are both there or neither. Files are removed only by `sweep`, after the table shows no reference (decision
0039).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.batch import Batch
from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.fact_store.core import ArtifactLimits, checked_references, messages_in, references_in
from agent.fact_store.read import StoreReader
from agent.fact_store.sqlite import Transaction
from agent.fact_store.writer import Writer
from agent.message import Message
from agent.pages import ArtifactReference
from agent.settings.store import StoreSettings

ARTIFACTS_FOLDER = "artifacts"


class Artifacts:
    """The artifacts of one store. Thread-safe; all methods wait for the disk in the calling thread."""

    def __init__(self, path: Path, settings: StoreSettings, reader: StoreReader, writer: Writer) -> None:
        self.limits = ArtifactLimits(
            settings.artifact_bytes_max,
            settings.artifacts_total_bytes_max,
            settings.disk_free_bytes_min + settings.artifact_disk_spare_bytes,
            settings.artifact_unreferenced_bytes_max,
        )
        self._reader, self._writer = reader, writer
        is_referenced = lambda digest: bool(self.streams(digest))  # noqa: E731
        self._files = files = ArtifactFiles(path.with_name(ARTIFACTS_FOLDER), self.limits, is_referenced)
        self.put_chunk, self.read_chunk = files.put_chunk, files.read_chunk
        self.bytes_used, self.lacking, self.unreferenced = files.bytes_used, files.lacking, files.unreferenced
        self._orphan_after_s = settings.artifact_orphan_hours * 3600
        self._released_after_s = settings.artifact_released_hours * 3600

    def claim(self, message: Message) -> None:
        """Raise ArtifactMissing unless all artifacts of a message are stored here. They are not swept before the
        message is stored."""
        for reference in checked_references(message):
            self._files.claim(reference)

    def missing(self, batches: Iterable[Batch]) -> list[ArtifactReference]:
        """Artifacts of the messages in batches that are not stored here, each once. The others are not swept before the
        batches are stored."""
        found = dict.fromkeys(reference for message in messages_in(batches) for reference in references_in(message))
        return [reference for reference in found if not self._files.keep(reference)]

    def absent(self, stream: str, after: str = "") -> tuple[list[str], str | None]:
        """The digests of artifacts to which held facts of a stream refer and that are not stored here, among the next
        ones after `after`; and the last digest examined, None at the end."""
        some = self._reader.artifacts_of(stream, after)
        return [digest for digest in some if not self._files.has(digest)], some[-1] if some else None

    def streams(self, digest: str) -> list[str]:
        """The streams with a held fact that refers to it. Raises ArtifactRefused."""
        return self._reader.artifact_streams(digest)

    def unavailable(self, peer: str, digest: str, why: str) -> None:
        """Record the incident that an artifact of a peer's fact cannot be fetched. Raises StoreUnavailable."""
        self._writer.note_incident("artifact_missing", digest, f"a fact from {peer} refers to it: {why}")

    def sweep(self) -> int:
        """Remove artifacts to which no held fact refers and that are older than `artifact_orphan_hours`, or
        `artifact_released_hours` if a fact once referred to them; returns how many. Raises StoreError."""
        if not self._files.folder.exists():
            return 0
        self._writer.submit("artifacts", Transaction.forget_artifacts).result()
        return self._files.sweep(self._orphan_after_s, self._released_after_s)
