"""The latest value of each tag, asked for once when a pull begins at the end of its peer's log.

Such a pull has nothing to show until each tag changes, which may take hours. So its peer is asked for what it knows last, after it has
registered our consumer: whatever is newer then comes with the pull, and between the two nothing can fall. What is told are no
facts, since they come without the batch that would prove them; whoever keeps them keeps them beside the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from agent.replication.protocol import (
    DEPTH_FACTS_MAX,
    VALUES_BYTES_MAX,
    VALUES_MAX,
    GetLatest,
    LatestAnswer,
    LatestEntry,
    MalformedMessage,
    PeerLatest,
    ReplicationError,
    delay_ms,
)
from agent.replication.pulling.throttled_requester import ThrottledRequester

ANSWER_S = 60.0
"""It looks as deep as it may, and others may wait to be answered before."""
RETRY_MS_MIN, RETRY_MS_MAX = 1_000, 60_000
"""A peer that does not export the stream, or is too old to be asked, is asked again once a minute, like a pull that it refuses."""
VALUES_KEPT_MAX = 100_000
"""Ten times the tags of a large plant: a peer that tells more is not believed."""

_log = logging.getLogger(__name__)


class FirstValues:
    """Asks for the values of one stream until they are there, and has them kept; `zones` are those whose facts this peer may bring."""

    def __init__(
        self,
        asker: ThrottledRequester,
        stream: str,
        zones: frozenset[str],
        begun: asyncio.Event,
        keep: Callable[[PeerLatest], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._asker = asker
        self._stream = stream
        self._zones = zones
        self._begun = begun
        self._keep = keep
        self._chance = chance

    async def run(self) -> None:
        """Returns when they are kept.  `keep` touches the disk: it is called in a thread, and an OSError of its is tried again."""
        await self._begun.wait()
        failures, told_why = 0, ""
        fields = {"peer": self._asker.peer_zone, "stream": self._stream}
        while True:
            try:
                told = await self._ask()
                await asyncio.to_thread(self._keep, told)
            except (ReplicationError, OSError) as error:
                if str(error) != told_why:
                    told_why = str(error)
                    _log.warning("first_values_missing", extra={**fields, "reason": told_why})
                await asyncio.sleep(delay_ms(RETRY_MS_MIN, RETRY_MS_MAX, failures, self._chance()) / 1000)
                failures += 1
            else:
                _log.info("first_values_kept", extra={**fields, "values": len(told.values)})
                return

    async def _ask(self) -> PeerLatest:
        """Page after page, to the last.  Values of zones that this peer may not speak for are left out."""
        asked_unix_ms, values, after = time.time_ns() // 1_000_000, list[LatestEntry](), None
        while True:
            request = GetLatest(
                stream=self._stream,
                after=after,
                limit=VALUES_MAX,
                bytes_max=self._asker.page_bytes(VALUES_BYTES_MAX),
                depth_facts=DEPTH_FACTS_MAX,
            )
            answer = (await self._asker.ask(request, ANSWER_S)).answer
            if not isinstance(answer, LatestAnswer):
                raise MalformedMessage("an answer to another operation than GetLatest", operation="GetLatest")
            values += [each for each in answer.values if each.zone in self._zones]
            if len(values) > VALUES_KEPT_MAX:
                raise MalformedMessage(f"more than {VALUES_KEPT_MAX} last values", operation="GetLatest")
            if not answer.more:
                return PeerLatest(self._asker.peer_zone, answer.epoch, self._stream, asked_unix_ms, values)
            after = answer.last_after(after)
