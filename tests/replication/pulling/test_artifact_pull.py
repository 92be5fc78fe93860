"""The artifact pull against a peer and a store that the test plays, in virtual time: pace, retries, and which answers
are accepted."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from agent.errors import StoreError
from agent.pages import ArtifactReference
from agent.replication.mqtt.requester import PeerReply
from agent.replication.protocol.errors import MalformedMessage, PeerRefused, TransportError
from agent.replication.protocol.messages import CHUNK_BYTES_MAX, GetObject, ListStreams, ObjectAnswer, StreamsAnswer
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling import throttled_requester
from agent.replication.pulling.artifact_pull import CHUNKS_AHEAD_MAX, LOST_OF_PAGE_MAX, ArtifactPull
from agent.replication.pulling.throttled_requester import ThrottledRequester
from tests.waiting import LIMIT_S

LIFE = "0" * 32
BLOB = b"some report " * 100_000
DIGEST = "sha256:" + hashlib.sha256(BLOB).hexdigest()


class Refused(StoreError):
    """The store's errors."""

    def __init__(self, *, retryable: bool) -> None:
        super().__init__("refused")
        self.retryable = retryable


class Files:
    """A receiver's store with one artifact."""

    def __init__(self) -> None:
        self.bytes = b""
        self.reported: list[str] = []
        self.error: Refused | None = None

    def missing(self, _: object) -> list[ArtifactReference]:
        return [] if self.bytes == BLOB else [ArtifactReference(DIGEST, len(BLOB))]

    def absent(self, _stream: str, after: str) -> tuple[list[str], str | None]:
        return ([], None) if after else ([reference.digest for reference in self.missing(None)], DIGEST)

    def put_chunk(self, _zone: str, _: str, size: int, offset: int, data: bytes):  # noqa: ANN201
        if self.error is not None:
            raise self.error
        assert offset in {0, len(self.bytes)}
        self.bytes += data
        if len(self.bytes) == size and self.bytes != BLOB:
            self.bytes = b""
            raise Refused(retryable=False)
        is_complete = len(self.bytes) == size
        return type("ArtifactProgress", (), {"received": len(self.bytes), "is_complete": is_complete})()

    def unavailable(self, _peer: str, digest: str, why: str) -> None:
        self.reported.append(f"{digest}: {why}")


class Peer:
    """Serves one artifact; `answers` come before its own."""

    peer_node = "plant"

    def __init__(self, blob: bytes = BLOB, answers: Sequence[Exception] = ()) -> None:
        self.blob = blob
        self.answers = list(answers)
        self.asked: list[GetObject] = []

    async def ask(self, request: GetObject, _: float) -> PeerReply:
        self.asked.append(request)
        if self.answers:
            raise self.answers.pop(0)
        data = self.blob[request.offset : request.offset + request.bytes_max]
        answer = ObjectAnswer(
            store_zone="plant", life=LIFE, size=len(self.blob), offset=request.offset, bytes=len(data)
        )
        return PeerReply(answer, [data] if data else [], len(data) + 300)


def bring(files: Files, peer: Peer, bandwidth: TokenBucket | None = None) -> None:
    """Fetch the artifacts of a page's facts."""
    asyncio.run(pull_from(peer, files, bandwidth).fetch([]))


def pull_from(peer: Peer, files: Files, bandwidth: TokenBucket | None = None) -> ArtifactPull:
    """Brings from the peer into the files."""
    return ArtifactPull(ThrottledRequester(peer, bandwidth), files)  # type: ignore[arg-type]


def refused(code: str, *, retryable: bool) -> PeerRefused:
    """An error answer."""
    return PeerRefused("plant", code, "because", "", retryable=retryable)


def test_a_transfer_resumes_at_the_bytes_held() -> None:
    """Only the missing bytes are requested, in order."""
    files, peer = Files(), Peer()
    files.bytes = BLOB[:1_000_000]
    bring(files, peer)
    assert files.bytes == BLOB
    assert [request.offset for request in peer.asked] == [1_000_000]


class FarAway(Peer):
    """Answers the latest request first, and only once as many wait as are ever requested at once; records that number.
    Gives at most `most` bytes at once."""

    def __init__(self, most: int = 2**30) -> None:
        super().__init__()
        self.most = most
        self.waiting: list[asyncio.Event] = []
        self.waited: list[int] = []

    async def ask(self, request: GetObject, timeout_s: float) -> PeerReply:
        mine = asyncio.Event()
        self.waiting.append(mine)
        try:
            while not mine.is_set():
                for _ in range(20):  # turns of the loop, in which waiting tasks send their requests
                    await asyncio.sleep(0)
                if self.waiting[-1] is mine:
                    break
        finally:
            self.waited.append(len(self.waiting))
            self.waiting.remove(mine)
        reply = await super().ask(request, timeout_s)
        return PeerReply(reply.answer, [chunk[: self.most] for chunk in reply.batches], reply.bytes)


def test_chunks_are_asked_for_ahead_and_stored_in_order() -> None:
    """At most three are under way; in whatever order they arrive, each byte is requested once and stored at its
    place."""
    files, peer = Files(), FarAway()
    bring(files, peer)
    assert files.bytes == BLOB
    assert max(peer.waited) == CHUNKS_AHEAD_MAX == 3
    assert sorted(request.offset for request in peer.asked) == list(range(0, len(BLOB), CHUNK_BYTES_MAX))


def test_a_peer_that_gives_less_than_asked_for_is_asked_for_less() -> None:
    """Its broker accepts 100,000 bytes at once: the chunks requested ahead are discarded once, and then chunks have
    that size."""
    files, peer = Files(), FarAway(most=100_000)
    bring(files, peer)
    assert (files.bytes, files.reported) == (BLOB, [])
    assert len(peer.asked) <= len(BLOB) // 100_000 + CHUNKS_AHEAD_MAX


@pytest.mark.parametrize("blob", [BLOB, BLOB[:-1] + b"?"], ids=["right", "wrong"])
def test_an_artifact_that_takes_long_is_named_meanwhile(blob: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that needs six seconds for a chunk: after the second, the status says for what the facts wait and how far
    it is, the log says so once, and when it is here, or is known to be wrong, nothing more is said."""
    peer, seen, now_s = Peer(blob), list[str](), 0.0

    def put_chunk(*arguments: Any) -> Any:
        nonlocal now_s
        now_s += 6
        seen.append(pull.waits)
        return Files.put_chunk(files, *arguments)

    files = Files()
    files.put_chunk = put_chunk  # type: ignore[method-assign]
    pull = ArtifactPull(ThrottledRequester(peer, None), files, lambda: now_s)  # type: ignore[arg-type]
    asyncio.run(pull.fetch([]))
    assert seen[:4] == ["", "", "", f"plant has sent {2 * CHUNK_BYTES_MAX:,} of 1,200,000 bytes of an artifact in 12 s"]
    assert [record.message for record in caplog.records].count("artifact_slow") == 1
    assert pull.waits == ""


def test_a_loss_in_the_middle_keeps_what_came_before() -> None:
    """The second of three chunks is lost: the first stays, the third is discarded, and the next attempt continues after
    the first."""

    class Lossy(Peer):
        async def ask(self, request: GetObject, timeout_s: float) -> PeerReply:
            if request.offset == CHUNK_BYTES_MAX and not any(
                earlier.offset == CHUNK_BYTES_MAX for earlier in self.asked
            ):
                self.asked.append(request)
                raise TransportError("plant", "lost")
            return await super().ask(request, timeout_s)

    files, peer = Files(), Lossy()
    with pytest.raises(TransportError):
        bring(files, peer)
    assert files.bytes == BLOB[:CHUNK_BYTES_MAX]
    bring(files, peer)
    assert (files.bytes, files.reported) == (BLOB, [])


def test_chunks_keep_to_the_peers_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a whole artifact no more arrives than the rate, in chunks of a quarter of a second's worth."""
    now_ms = 0

    async def sleep(seconds: float) -> None:
        nonlocal now_ms
        now_ms += round(seconds * 1000)

    monkeypatch.setattr(throttled_requester, "_now_ms", lambda: now_ms)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    files, peer = Files(), Peer()
    bring(files, peer, TokenBucket(100_000))
    assert files.bytes == BLOB
    assert {request.bytes_max for request in peer.asked} == {25_000}
    assert len(BLOB) / 100_000 - 1 < now_ms / 1000 < len(BLOB) / 100_000 + 1


@pytest.mark.parametrize("error", [TransportError("x", "lost"), refused("busy", retryable=True)])
def test_a_passing_error_makes_the_page_wait(error: Exception) -> None:
    """After a lost connection or with a busy peer, nothing is reported as missing, and received bytes stay."""
    files, peer = Files(), Peer(answers=[error])
    files.bytes = BLOB[:10]
    with pytest.raises(TransportError):
        bring(files, peer)
    assert (files.bytes, files.reported) == (BLOB[:10], [])
    bring(files, peer)
    assert files.bytes == BLOB


def test_an_unreadable_answer_is_asked_for_once_more() -> None:
    """The second answer may be readable. A peer whose answers stay unreadable does not stop the page."""
    files, peer = Files(), Peer(answers=[MalformedMessage("spoilt")])
    bring(files, peer)
    assert (files.bytes, files.reported) == (BLOB, [])
    files, peer = Files(), Peer(answers=[MalformedMessage("spoilt")] * 1000)
    bring(files, peer)
    assert (len(files.reported), "unreadable" in files.reported[0]) == (1, True)


def test_a_full_store_is_reported_as_retryable() -> None:
    """The store's own retryable error goes to the receiver, which offers the page again."""
    files = Files()
    files.error = Refused(retryable=True)
    with pytest.raises(Refused):
        bring(files, Peer())
    assert files.reported == []


def test_an_artifact_beyond_the_peers_quota_delays_no_other() -> None:
    """It fits once the facts that refer to it are stored: the others are fetched, it is offered once, and the caller
    learns that the page is not whole."""

    class Narrow(Files):
        def __init__(self) -> None:
            super().__init__()
            self.offered = list[str]()

        def missing(self, _: object) -> list[ArtifactReference]:
            return [ArtifactReference("sha256:" + "f" * 64, 5), *super().missing(None)]

        def put_chunk(self, zone: str, digest: str, size: int, offset: int, data: bytes):  # noqa: ANN202
            if digest == DIGEST:
                return super().put_chunk(zone, digest, size, offset, data)
            self.offered.append(digest)
            raise QuotaExceeded

    class QuotaExceeded(Refused):
        waits_for_facts = True

        def __init__(self) -> None:
            super().__init__(retryable=True)

    files = Narrow()
    assert not asyncio.run(asyncio.wait_for(pull_from(Peer(), files).fetch([]), LIMIT_S))
    assert files.bytes == BLOB
    assert len(files.offered) == 1
    assert files.reported == []


@pytest.mark.parametrize(
    "peer",
    [
        Peer(answers=[refused("unknown_artifact", retryable=False)]),
        Peer(answers=[refused("unknown_operation", retryable=False)]),
        Peer(blob=BLOB[:-1] + b"?"),
        Peer(blob=BLOB + b"more"),
        Peer(blob=b"s"),
    ],
    ids=["gone", "an older version", "changed", "longer", "shorter"],
)
def test_a_final_refusal_is_reported_once_and_delays_nothing(peer: Peer) -> None:
    """An artifact that is refused for good, or does not match its digest, is reported, no byte of it is kept, and the
    page is stored. Damaged bytes are requested twice, because a part of them may be from an earlier life."""
    files = Files()
    bring(files, peer)
    assert (files.bytes, len(files.reported)) == (b"", 1)
    assert files.reported[0].startswith(DIGEST)
    assert len([request for request in peer.asked if request.offset == 0]) <= 2


def test_damaged_bytes_of_an_earlier_life_cost_one_more_attempt() -> None:
    """Partial bytes that do not match the digest are discarded, and the artifact is fetched again."""
    files, peer = Files(), Peer()
    files.bytes = b"?" * 1_000_000
    bring(files, peer)
    assert files.bytes == BLOB
    assert files.reported == []


def test_a_repair_takes_the_size_from_the_peer_and_adds_no_incident() -> None:
    """An artifact of held facts is fetched if the peer has it now; if it has none, or other bytes, that is counted, and
    no second incident is added."""
    files = Files()
    gone, changed = Peer(answers=[refused("unknown_artifact", retryable=False)]), Peer(BLOB[::-1])
    there = Peer()
    assert asyncio.run(pull_from(gone, files).fetch_absent("s")) == (0, 1)
    assert asyncio.run(pull_from(changed, files).fetch_absent("s")) == (0, 1)
    assert asyncio.run(pull_from(there, files).fetch_absent("s")) == (1, 0)
    assert asyncio.run(pull_from(there, files).fetch_absent("s")) == (0, 0)
    assert (files.bytes, files.reported) == (BLOB, [])
    files.absent = lambda *_: (["sha256:" + "f" * 64, DIGEST], None)  # type: ignore[method-assign]
    for answers in ([refused("unknown_artifact", retryable=False)], []):
        found = asyncio.run(pull_from(Peer(answers=answers), files).fetch_absent("s"))
        assert found == (2 - len(answers), len(answers)), "each of them counts"


def test_another_answer_than_an_artifact_is_no_artifact() -> None:
    """A peer that answers another message does not have the artifact."""

    class Confused(Peer):
        async def ask(self, request: GetObject | ListStreams, _: float) -> PeerReply:
            del request
            return PeerReply(StreamsAnswer(store_zone="plant", life=LIFE, streams=[]), [])

    files = Files()
    bring(files, Confused())
    assert "another answer" in files.reported[0]


@pytest.mark.parametrize("shift, data", [(0, b""), (1, b"x")], ids=["nothing", "another place"])
def test_a_chunk_that_does_not_go_on_ends_the_transfer(shift: int, data: bytes) -> None:
    """A peer whose chunks bring nothing, or are of another place than asked for, is not asked again and again, and none
    of its bytes are stored."""

    class Odd(Peer):
        async def ask(self, request: GetObject, _: float) -> PeerReply:
            self.asked.append(request)
            assert len(self.asked) < 100, "it is asked without end"
            own = {"store_zone": "plant", "life": LIFE, "size": len(BLOB)}
            answer = ObjectAnswer(**own, offset=request.offset + shift, bytes=len(data))  # type: ignore[arg-type]
            return PeerReply(answer, [data] if data else [], 300)

    files = Files()
    bring(files, Odd())
    assert files.bytes == b""
    (reported,) = files.reported
    assert "other bytes" in reported


def test_a_page_waits_for_few_artifacts_that_are_nowhere() -> None:
    """A page's facts refer to thousands of artifacts that the peer does not have: a few are requested, the others are
    left to a comparison with one incident, and the page is stored. Later facts of other zones do not wait."""

    class Thousands(Files):
        def missing(self, _: object) -> list[ArtifactReference]:
            return [ArtifactReference(f"sha256:{number:064x}", 5) for number in range(3_000)]

    files, peer = Thousands(), Peer(answers=[refused("unknown_artifact", retryable=False)] * 3_000)
    bring(files, peer)
    assert len(peer.asked) == LOST_OF_PAGE_MAX
    assert len(files.reported) == LOST_OF_PAGE_MAX + 1
    assert f"{3_000 - LOST_OF_PAGE_MAX - 1} others" in files.reported[-1]
