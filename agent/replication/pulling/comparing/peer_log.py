"""Asks a peer about one stream of its log, of the same copy of that log throughout."""

import msgspec

from agent.batch import Origin
from agent.pages import Span as Sequences
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import DigestsAnswer, FetchSequences, GetDigests, LogPosition
from agent.replication.pulling.comparing.comparison import Comparison
from agent.replication.pulling.page_check import PageRefused, check_digests
from agent.replication.pulling.throttled_requester import ThrottledRequester

ANSWER_S = 10.0


class OtherCopy(PageRefused):
    """The peer answered from another copy of its log than at the start of the comparison."""


class PeerLog:
    """The peer's log of the stream that `found` compares. Counts exchanges and bytes there."""

    def __init__(self, requester: ThrottledRequester, peer_node: str, found: Comparison) -> None:
        self.peer_node = peer_node
        self._requester = requester
        self._found = found
        self._position: LogPosition | None = None  # the end in its first answer: all others must be of that log

    def page_bytes(self, bytes_max: int) -> int:
        """How large a page may be now."""
        return self._requester.page_bytes(bytes_max)

    async def ask(self, request: GetDigests | FetchSequences) -> PeerReply:
        """Ask. Raises OtherCopy if the log has been replaced since the first answer, and the errors of a request."""
        if self._position is not None:
            request = msgspec.structs.replace(request, position=self._position)
        try:
            reply = await self._requester.ask(request, ANSWER_S)
        except PeerRefused as error:
            if error.code != "life_unknown":
                raise
            # Ranges of one copy of the log do not describe another copy.
            what = f"{self.peer_node} was restored from a copy, or two machines answer in its name: {error}"
            raise OtherCopy(what) from error
        answer = reply.answer
        if isinstance(answer, DigestsAnswer) and self._position is None:
            self._position = LogPosition(offset=answer.end_offset, life=answer.end_life)
        self._found.exchanges += 1
        self._found.bytes += reply.bytes
        return reply

    async def digests(self, request: GetDigests) -> DigestsAnswer:
        """The checked answer to a question about digests."""
        reply = await self.ask(request)
        return check_digests(reply.answer, self.peer_node, request)

    async def batch_ends(self, origin: Origin, span: Sequences, ends_max: int) -> dict[int, bytes]:
        """By last sequence, the digests of the peer's batches that end in a span, at most `ends_max`."""
        first, last = span
        stream, name = self._found.stream, str(origin)
        request = GetDigests(stream=stream, origin=name, first_sequence=first, last_sequence=last, ends_max=ends_max)
        return {last: bytes.fromhex(digest) for last, digest in (await self.digests(request)).ends}
