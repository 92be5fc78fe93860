"""Requests the latest value of each tag once, when a pull begins at the end of its peer's log.

Such a pull has no value of a tag until the tag changes, which may take hours. So the latest values are requested after
the peer has registered the consumer: newer values arrive with the pull, and none is missed in between. The values are
not facts, because no batch proves them; they are kept beside the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from agent.replication.protocol.errors import MalformedMessage, ReplicationError
from agent.replication.protocol.messages import (
    DEPTH_FACTS_MAX,
    VALUES_BYTES_MAX,
    VALUES_MAX,
    GetLatest,
    LatestAnswer,
    LatestEntry,
    PeerLatest,
    readable,
)
from agent.replication.protocol.pacing import backoff_ms
from agent.replication.pulling.throttled_requester import ThrottledRequester

ANSWER_S = 60.0
"""The peer searches to its greatest depth, and may have to answer other requests first."""
RETRY_MS_MIN, RETRY_MS_MAX = 1_000, 60_000
"""A peer that does not export the stream, or does not know the operation, is asked again once a minute, as a pull that
it refuses."""
VALUES_KEPT_MAX = 100_000
"""Ten times the tags of a large plant. If there are more, all are refused."""
ANSWERS_BYTES_MAX = 32 * 1024 * 1024
"""Size of all answers together: that of VALUES_KEPT_MAX values of usual size. Each value keeps the whole answer in
which it came in memory."""
LEFT_OUT_MAX = 20
"""Zones that are named as left out; a peer could name any number."""

_log = logging.getLogger(__name__)


class LatestSeed:
    """Requests the values of one stream until they have arrived, and passes them to `keep`. `zones` are those whose
    facts this peer may send."""

    def __init__(
        self,
        requester: ThrottledRequester,
        stream: str,
        zones: frozenset[str],
        begun: asyncio.Event,
        keep: Callable[[PeerLatest], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._requester = requester
        self._stream = stream
        self._zones = zones
        self._begun = begun
        self._keep = keep
        self._chance = chance

    async def run(self) -> None:
        """Return when the values are kept. `keep` writes to disk: it is called in a thread, and again after an
        OSError."""
        await self._begun.wait()
        failures, logged_why = 0, ""
        fields = {"peer": self._requester.peer_node, "stream": self._stream}
        while True:
            try:
                latest = await self._ask()
                await asyncio.to_thread(self._keep, latest)
            except (ReplicationError, OSError) as error:
                if str(error) != logged_why:
                    logged_why = str(error)
                    _log.warning("latest_seed_missing", extra={**fields, "reason": logged_why})
                await asyncio.sleep(backoff_ms(RETRY_MS_MIN, RETRY_MS_MAX, failures, self._chance()) / 1000)
                failures += 1
            else:
                kept = {"values": len(latest.values), "zones_left_out": latest.left_out}
                _log.info("latest_seed_kept", extra={**fields, **kept})
                return

    async def _ask(self) -> PeerLatest:
        """Request all pages. Values of other zones than `zones` are left out, and so are values that cannot be parsed:
        each later request for latest values would fail."""
        asked_unix_ms, values, after = time.time_ns() // 1_000_000, list[LatestEntry](), None
        received, received_bytes, others = 0, 0, set[str]()
        while True:
            request = GetLatest(
                stream=self._stream,
                after=after,
                limit=VALUES_MAX,
                bytes_max=self._requester.page_bytes(VALUES_BYTES_MAX),
                depth_facts=DEPTH_FACTS_MAX,
            )
            reply = await self._requester.ask(request, ANSWER_S)
            answer, received_bytes = reply.answer, received_bytes + reply.bytes
            if not isinstance(answer, LatestAnswer):
                raise MalformedMessage("an answer to another operation than GetLatest", operation="GetLatest")
            found, refused = readable(value for value in answer.values if value.zone in self._zones)
            values += found
            others |= {value.zone for value in answer.values} - self._zones
            if refused:
                fields = {"peer": self._requester.peer_node, "stream": self._stream}
                _log.warning("latest_values_refused", extra={**fields, "values": len(refused), "reason": refused[0]})
            received += len(answer.values)
            if received > VALUES_KEPT_MAX:  # including those left out, which a peer could send without end
                raise MalformedMessage(f"more than {VALUES_KEPT_MAX} last values", operation="GetLatest")
            if received_bytes > ANSWERS_BYTES_MAX:
                why = f"more than {ANSWERS_BYTES_MAX >> 20} MiB of last values"
                raise MalformedMessage(why, operation="GetLatest")
            if not answer.more:
                return PeerLatest(
                    self._requester.peer_node, self._stream, asked_unix_ms, values, sorted(others)[:LEFT_OUT_MAX]
                )
            after = answer.last_after(after)
