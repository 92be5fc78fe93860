"""One range of a stream, requested from a node page by page: the next request, and the page of an answer. Core: no IO.

An answer is checked: it must be of the requested zone, stream and range and have no gap, each batch must match its
digest, and its header must agree with the page.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.batch import Batch, parse
from agent.columns import BatchError
from agent.pages import Hole
from agent.replication.protocol.messages import (
    LIMIT_MAX,
    SIGNERS_KNOWN_MAX,
    Answer,
    FetchRange,
    RangeAnswer,
)
from pyspark_bsfg.errors import FactsGone, OptionError, StoreUnreadable
from pyspark_bsfg.transports.ports import Asked, Page, PlacedBatch
from pyspark_bsfg.transports.proofs import Signers

PAGE_BYTES = 1_000_000  # fits into a packet of our brokers; smaller pages cost both sides more for each fact


class RangePages:
    """The pages of one range of a zone's store. With `signers` records are verified: then whole batches are
    requested."""

    def __init__(self, name: str, zone: str, asked: Asked, signers: Signers | None) -> None:
        self._name, self._zone, self._asked = name, zone, asked
        self._signers = signers
        self._next = asked.offsets.first

    @property
    def is_done(self) -> bool:
        """Whether the whole range was taken."""
        return self._next > self._asked.offsets.last

    def request(self) -> FetchRange:
        """The next request."""
        assert not self.is_done
        return FetchRange(
            stream=self._asked.stream,
            first_offset=self._next,
            last_offset=self._asked.offsets.last,
            limit=LIMIT_MAX,
            bytes_max=PAGE_BYTES,
            life=self._asked.life,
            whole_batches=self._signers is not None,
            signers_known=None if self._signers is None else self._signers.known()[:SIGNERS_KNOWN_MAX],
        )

    def take_answer(self, answer: Answer, attachment: Sequence[bytes]) -> Page:
        """The page of an answer. Raises SparkError."""
        asked = self._asked
        if not isinstance(answer, RangeAnswer) or (answer.store_zone, answer.stream) != (self._zone, asked.stream):
            raise StoreUnreadable(f"{self._name} answered another request", "read again")
        if answer.omitted:
            raise OptionError(
                f"{self._name} leaves out facts that the zone of this certificate has recorded",
                "read with a certificate of a zone that records nothing, such as analytics",
            )
        covered = answer.covered()
        if covered is None:
            ends = f"{self._name}: {asked.stream} ends at {answer.end_offset}, not at {asked.offsets.last}"
            raise FactsGone(ends, "read again")
        is_whole = self._signers is not None and self._next == asked.offsets.first
        if not (covered[0] == self._next or (is_whole and covered[0] < self._next)) or covered[1] < self._next:
            raise self._wrong(f"facts {covered[0]} to {covered[1]} came, requested were facts from {self._next} on")
        page = self._page(answer, attachment)
        self._next = covered[1] + 1
        return page

    def _page(self, answer: RangeAnswer, attachment: Sequence[bytes]) -> Page:
        asked = self._asked.offsets
        batches = [self._parsed(entry, sealed) for entry, sealed in zip(answer.batches, attachment, strict=True)]
        placed = [PlacedBatch(first, batch) for (first, _, _), batch in zip(answer.batches, batches, strict=True)]
        if self._signers is not None:
            self._signers.add(answer.signers)
            proven = self._signers.verified(batches)
            placed = [batch._replace(verified=how) for batch, how in zip(placed, proven, strict=True)]
        spans = [(max(first, asked.first), min(last, asked.last), why) for first, last, why in answer.holes]
        holes = [
            Hole(first, last, "expired" if why == "expired" else "damaged")
            for first, last, why in spans
            if first <= last
        ]
        return Page([batch for batch in placed if batch.first_offset <= asked.last], holes)

    def _parsed(self, entry: tuple[int, int, int], sealed: bytes) -> Batch:
        first, last, _ = entry
        try:
            batch = parse(sealed)
        except BatchError as error:
            raise self._wrong(f"the batch at offset {first}: {error}") from error
        if (batch.header.stream, batch.header.count) != (self._asked.stream, last - first + 1):
            raise self._wrong(f"the batch at offset {first} is not the one that the page lists")
        return batch

    def _wrong(self, why: str) -> StoreUnreadable:
        return StoreUnreadable(f"{self._name}: {why}", "update the older of both programs, or report this")
