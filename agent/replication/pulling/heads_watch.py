"""Asks a peer once a minute for the newest signed ends of a stream, verifies them, and hands them to `Freshness`.

It stores no fact and moves no position: what it learns is how far zones have signed, so that facts which a relay
withholds show. An end that contradicts a fact held, or another end, is an incident: the zone has signed two histories.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from agent.replication.protocol.errors import MalformedMessage, ReplicationError
from agent.replication.protocol.messages import GetHeads, HeadsAnswer, origin_named
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.page_judge import PageJudge
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.signing.freshness import Freshness, SignedEnd
from agent.signing.heads import HeadError, parse_head

ASK_EVERY_S = 60.0
ANSWER_S = 10.0
AHEAD_MS_MAX = 10 * 60_000
"""An end from further in the future than clocks differ would hide that no later one comes."""

_log = logging.getLogger(__name__)


class HeadsWatch:
    """Watches one stream at one peer; `zones` are those whose facts this peer may bring."""

    def __init__(
        self,
        requester: ThrottledRequester,
        store: ReceivingStore,
        stream: str,
        zones: frozenset[str],
        judge: PageJudge,
        freshness: Freshness,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._requester, self._store, self._stream, self._zones = requester, store, stream, zones
        self._judge, self._freshness, self._chance = judge, freshness, chance

    async def run(self) -> None:
        """Ask for ever. A peer that does not answer, or does not know the operation, is asked again."""
        logged_why = ""
        while True:
            try:
                await self.ask()
                logged_why = ""
            except ReplicationError as error:
                if str(error) != logged_why:
                    logged_why = str(error)
                    fields = {"peer": self._requester.peer_zone, "stream": self._stream}
                    _log.info("heads_missing", extra={**fields, "reason": logged_why})
            await asyncio.sleep(ASK_EVERY_S * (0.75 + self._chance() / 2))

    async def ask(self) -> None:
        """Ask once. Raises ReplicationError."""
        request = GetHeads(stream=self._stream, signers_known=self._judge.signers_known())
        reply = await self._requester.ask(request, ANSWER_S)
        answer = reply.answer
        if not isinstance(answer, HeadsAnswer) or answer.stream != self._stream:
            raise MalformedMessage("an answer to another request than GetHeads", operation="GetHeads")
        for (name, last_sequence, digest), head in zip(answer.ends, reply.batches, strict=True):
            origin = origin_named(name)
            try:
                signed_at_ms = parse_head(head).signed_at_ms
            except HeadError:
                continue
            end = SignedEnd(self._stream, origin, last_sequence, bytes.fromhex(digest), head, signed_at_ms)
            is_sane = origin.zone in self._zones and signed_at_ms < time.time_ns() // 1_000_000 + AHEAD_MS_MAX
            if is_sane and (proven := self._judge.prove(end, answer.signers)) is not None:
                self._take(proven)

    def _take(self, end: SignedEnd) -> None:
        contradicted = self._freshness.note(end)
        held = self._store.batch_ends(end.stream, end.origin, [end.last_sequence])
        is_other = any(one.last_sequence == end.last_sequence and one.digest != end.digest for one in held)
        if contradicted is not None or is_other:
            why = (
                f"{end.origin} has signed two histories up to sequence {end.last_sequence}: {end.digest.hex()} and"
                f" {(contradicted.digest if contradicted else held[0].digest).hex()}; a copy of its store runs, or its key is"
                " in other hands"
            )
            self._store.inbound.note("two_histories", self._stream, self._requester.peer_zone, why)
