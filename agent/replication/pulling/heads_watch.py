"""Asks a peer once a minute for the newest signed ends of a stream, verifies them, and passes them to `Freshness`.

It stores no facts and moves no position. It learns how far each zone has signed, which reveals facts that a relay
withholds. An end that contradicts a held fact, or another end, is an incident: the zone has signed two histories. If
the store cannot record an incident now, it is kept and recorded later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence

from agent.replication.protocol.errors import MalformedMessage, ReplicationError
from agent.replication.protocol.messages import HEADS_MAX, GetHeads, HeadsAnswer, origin_named
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.page_judge import PageJudge
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.signing.freshness import Freshness, SignedEnd
from agent.signing.heads import HeadError, parse_head

ASK_EVERY_S = 60.0
ANSWER_S = 10.0
AHEAD_MS_MAX = 10 * 60_000
"""Clocks differ by less than this. An end from further in the future is ignored: it would hide that no newer ends
arrive."""
UNRECORDED_MAX = HEADS_MAX
"""Contradictions that the store has not recorded yet. Further ones are found again when the peer names them again."""

_log = logging.getLogger(__name__)


class HeadsWatch:
    """Watches one stream at one peer; `zones` are those whose facts this peer may send."""

    def __init__(
        self,
        requester: ThrottledRequester,
        store: ReceivingStore,
        stream: str,
        zones: frozenset[str],
        judge: PageJudge,
        freshness: Freshness,
        store_errors: tuple[type[Exception], ...],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._requester, self._store, self._stream, self._zones = requester, store, stream, zones
        self._judge, self._freshness, self._chance = judge, freshness, chance
        self._store_errors = store_errors
        self._expected: tuple[type[Exception], ...] = (ReplicationError, *store_errors)
        self._unrecorded = dict[str, None]()  # reasons of incidents to record, oldest first

    async def run(self) -> None:
        """Ask until cancelled, whenever the link is up; also a peer that does not answer or does not know the
        operation."""
        logged_why = ""
        while True:
            await self._requester.wait_up()
            try:
                await self.ask()
                logged_why = ""
            except self._expected as error:
                if str(error) != logged_why:
                    logged_why = str(error)
                    fields = {"peer": self._requester.peer_zone, "stream": self._stream}
                    _log.info("heads_missing", extra={**fields, "reason": logged_why})
            await self.record()
            await asyncio.sleep(ASK_EVERY_S * (0.75 + self._chance() / 2))

    async def ask(self) -> None:
        """Ask once. Raises ReplicationError or an error of the store."""
        request = GetHeads(stream=self._stream, signers_known=self._judge.signers_known())
        reply = await self._requester.ask(request, ANSWER_S)
        answer = reply.answer
        if not isinstance(answer, HeadsAnswer) or answer.stream != self._stream:
            raise MalformedMessage("an answer to another request than GetHeads", operation="GetHeads")
        # In a thread: 256 certificates with many names, and as many false signatures, take half a second.
        prove, plausible = self._judge.prove, list(self._plausible_ends(answer, reply.batches))
        for proven in await asyncio.to_thread(lambda: list(prove(plausible, answer.signers))):
            self._take(proven)
            await asyncio.sleep(0)  # give other zones a turn: there may be 256 ends of this one

    async def record(self) -> None:
        """Record the contradictions that `ask` has found. Those that the store refuses for now stay for the next
        call."""
        peer = self._requester.peer_zone
        for why in list(self._unrecorded):
            try:
                await asyncio.wrap_future(self._store.inbound.note("two_histories", self._stream, peer, why))
            except self._store_errors as error:
                fields = {"peer": peer, "stream": self._stream, "reason": f"{type(error).__name__}: {error}"}
                _log.warning("two_histories_unrecorded", extra=fields)
                return
            del self._unrecorded[why]

    def _plausible_ends(self, answer: HeadsAnswer, heads: Sequence[bytes]) -> Iterator[SignedEnd]:
        """The ends in an answer of zones that this peer may relay, except those from the future."""
        until_ms = time.time_ns() // 1_000_000 + AHEAD_MS_MAX
        for (name, last_sequence, digest), head in zip(answer.ends, heads, strict=True):
            origin = origin_named(name)
            try:
                signed_at_ms = parse_head(head).signed_at_ms
            except HeadError:
                continue
            if origin.zone in self._zones and signed_at_ms < until_ms:
                yield SignedEnd(self._stream, origin, last_sequence, bytes.fromhex(digest), head, signed_at_ms)

    def _take(self, end: SignedEnd) -> None:
        contradicted = self._freshness.note(end)
        held = self._store.batch_ends(end.stream, end.origin, [end.last_sequence])
        is_other = any(one.last_sequence == end.last_sequence and one.digest != end.digest for one in held)
        if contradicted is not None or is_other:
            why = (
                f"{end.origin} has signed two histories up to sequence {end.last_sequence}: {end.digest.hex()} and"
                f" {(contradicted.digest if contradicted else held[0].digest).hex()}; a copy of its store runs, or its"
                " key was stolen"
            )
            if len(self._unrecorded) < UNRECORDED_MAX:
                self._unrecorded[why] = None
