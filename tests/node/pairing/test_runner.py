"""A node of a pair at work: the store takes the lead before a source is asked, and a silent peer delays nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.concurrency import TaskGroup
from agent.errors import StoreFull
from agent.fact_store import StoreDamaged
from agent.health.snapshot import PairRefusal
from agent.node.pairing import LeadDesk, PairPorts, PairRunner, partner_lacks
from agent.node.pairing.runner import ANSWER_S, MS, SwitchRefused
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.errors import PeerRefused, TransportError
from agent.replication.protocol.messages import ClaimEntry, ClaimLead, LeadAnswer
from agent.replication.serving import store_name_of
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.pair import PairSettings
from tests.support.virtual_time import STARTED_S
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time

ANSWER = {"store_zone": "idmz", "life": "0" * 32}
SETTINGS = NodeSettings(IdentitySettings("plant-a", name="plant-a"), pair=PairSettings("plant-a-2", "idmz"))
Says = Callable[[ClaimLead], Awaitable[LeadAnswer]]


class Peer:
    """A node that is asked; silent until a test says what it says."""

    def __init__(self) -> None:
        self.says: Says | None = None
        self.asked: list[ClaimLead] = []

    async def ask(self, request: Any, timeout_s: float) -> PeerReply:
        """Its answer; a silent one costs the time-out."""
        self.asked.append(request)
        if self.says is None:
            silence: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await asyncio.wait([silence], timeout=timeout_s)
            raise TransportError("peer", "no answer")
        return PeerReply(await self.says(request), [])


class Box:
    """The store and the sources of a node: what was done, in order."""

    zone, node, life = "plant-a", "plant-a", bytes(16)

    def __init__(self) -> None:
        self.done: list[str] = []
        self.notes: list[str] = []
        self.next_life_number = 100
        self.since_ns: int | None = None
        self.has_stored_gaps = False
        self.complete: dict[str, tuple[int, int | None]] = {}
        self.reader = self.appends = self
        self.on_stop: Callable[[], object] = lambda: None
        self.error: Exception | None = None
        self.reaches = 2

    def take_lead(self, term: int) -> Future[bytes]:
        """Begin a term, unless the disk is full."""
        taken: Future[bytes] = Future()
        if self.error is None:
            assert term >= self.next_life_number
            self.next_life_number = term + 1
            self.done.append("took the lead")
            taken.set_result(term.to_bytes(16))
        else:
            taken.set_exception(self.error)
        return taken

    def completeness(self, source: str) -> dict[str, tuple[int, int | None]]:
        assert source == ""
        return self.complete

    def set_completeness(self, source: str, parts: dict[str, tuple[int, int | None]]) -> None:
        assert source == ""
        if self.error is not None:
            raise self.error
        self.complete = parts

    def begin_recording(self, since_ns: int | None) -> None:
        self.since_ns = since_ns
        self.done.append("records" if since_ns is None else "records after the other")

    async def end_recording(self) -> None:
        self.done.append("stopped")
        self.on_stop()

    def fitness(self) -> int:
        return self.reaches

    def gaps_stored(self) -> bool:
        return self.has_stored_gaps

    def note_incident(self, kind: str, subject: str, detail: str) -> None:
        if self.error is not None:
            raise self.error
        self.notes.append(f"{kind} {subject}: {detail}")


class Stage:
    """A runner with its box and its peers."""

    def __init__(self, folder: Path, complete_ns: int | None = None) -> None:
        self.box, self.witness, self.partner = Box(), Peer(), Peer()
        if complete_ns is not None:
            self.box.complete = {"": (complete_ns, None)}
        self.accepts, self.lacks, self.stored = True, "", 0
        self.unseen_s = 0.0
        peers: dict[str, Any] = {"idmz": self.witness, "plant-a-2": self.partner}
        ports = PairPorts(
            self.box,
            self.box,
            peers.get,
            lambda: self.accepts,
            lambda: {"a": self.stored},
            self._lacks,
            unseen_s=lambda: self.unseen_s,
        )
        name = store_name_of("plant-a", "plant-a", bytes(16))
        desk = LeadDesk({"plant-a-2": "plant-a"}, folder / "leads.json", lambda: name, "plant-a-2")
        self.runner = PairRunner(SETTINGS, ports, desk)

    def _lacks(self, ends: Mapping[str, int]) -> str:
        is_newest = ends["a"] == self.stored
        self.stored += 1  # facts arrive all the time, and the other node does not have the newest
        return self.lacks or (BEHIND if is_newest else "")

    @property
    def role(self) -> str:
        """What it is."""
        return self.runner.snapshot().role

    async def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait in virtual time."""
        await wait_until_async(condition, what, 120)


@asynccontextmanager
async def running(folder: Path, complete_ns: int | None = None) -> AsyncIterator[Stage]:
    """A runner at work for the length of a block. `complete_ns`: what an earlier process has stored."""
    stage = Stage(folder, complete_ns)
    async with TaskGroup() as group:
        work = group.create_task(stage.runner.run(), name="pair")
        yield stage
        work.cancel()


def grants() -> Says:
    """A witness that lends the lead to who asks, with the term that was asked for."""

    async def says(request: ClaimLead) -> LeadAnswer:
        term = request.claim.term
        leader = "" if request.claim.state == "releases" else "plant-a"
        return LeadAnswer(**ANSWER, leader=leader, term=term, highest=term, remaining_ms=1_500)

    return says


def lends(node: str, term: int = 200) -> Says:
    """A witness that names a leader."""

    async def says(_: ClaimLead) -> LeadAnswer:
        return LeadAnswer(**ANSWER, leader=node, term=term, highest=term, remaining_ms=1_500)

    return says


def claims(
    state: Any, term: int = 150, fitness: int = 3, *, node: str = "plant-a-2", gaps_stored: bool = False
) -> Says:
    """A partner that claims this."""

    async def says(_: ClaimLead) -> LeadAnswer:
        other = ClaimEntry(
            node=node, instance="cd" * 16, state=state, term=term, fitness=fitness, gaps_stored=gaps_stored
        )
        return LeadAnswer(**ANSWER, other=other)

    return says


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Stage]:
    """A runner to which the witness has granted the lead, and whose partner follows."""
    async with running(folder) as stage:
        stage.witness.says, stage.partner.says = lends("plant-a"), claims("follows")
        await stage.wait(lambda: stage.role == "leads", "the lead")
        yield stage


async def test_the_term_that_was_asked_for_is_taken(tmp_path: Path) -> None:
    """The clock goes on between question and answer: the granted term, the time of the question, is the term of the
    lead, and no other one is begun while it is renewed."""
    async with running(tmp_path) as stage:
        stage.witness.says, stage.partner.says = grants(), claims("follows")
        await stage.wait(lambda: stage.role == "leads", "the lead")
        assert stage.runner.snapshot().term >= int(STARTED_S * 1000)
        asked = len(stage.witness.asked)
        await stage.wait(lambda: len(stage.witness.asked) > asked + 20, "renewals")
        assert stage.box.done == ["took the lead", "records"]


async def test_a_word_counts_from_its_question(tmp_path: Path) -> None:
    """The witness answers late, as over a slow line: the lease here ends no later than the one that it lends."""

    async def late(request: ClaimLead) -> LeadAnswer:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.9 * ANSWER_S)
        return await lends("plant-a")(request)

    async with running(tmp_path) as stage:
        stage.witness.says = late
        await stage.wait(lambda: stage.runner.snapshot().witness_heard_ms is not None, "the answer")
        assert (stage.runner.snapshot().witness_heard_ms or 0) >= 900 * ANSWER_S


@pytest.mark.parametrize("ahead_ms", [3_600_000, -90_000, 0])
async def test_a_clock_that_differs_is_measured(ahead_ms: int, tmp_path: Path) -> None:
    """The other node's clock is ahead, behind or equal; its answers take a while, of which half is its way back."""

    async def tells(request: ClaimLead) -> LeadAnswer:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)
        answer = msgspec.structs.replace(await claims("follows")(request), unix_ms=time.time_ns() // MS + ahead_ms)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)
        return answer

    async with running(tmp_path) as stage:
        stage.partner.says = tells
        await stage.wait(lambda: stage.runner.snapshot().partner_clock_ahead_ms is not None, "an answer")
        assert abs((stage.runner.snapshot().partner_clock_ahead_ms or 0) - ahead_ms) <= 2


@pytest.mark.parametrize(
    "partner", [None, lends(""), claims("leads", 200, node="mes")], ids=["silent", "without a claim", "another node"]
)
async def test_a_node_that_hears_nobody_records(partner: Says | None, tmp_path: Path) -> None:
    """Both peers are silent, or the partner claims nothing, or tells the claim of another node: after its patience the
    node records alone, though each question takes its time-out."""
    async with running(tmp_path) as stage:
        stage.partner.says = partner
        await stage.wait(lambda: stage.role == "alone", "recording alone")
        assert stage.box.done == ["took the lead", "records"]


async def test_a_damaged_store_ends_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier process has stored cannot be read: the node begins without it, and leads."""

    def damaged(*_: object) -> None:
        raise StoreDamaged("a row of the wrong type")

    monkeypatch.setattr(Box, "completeness", damaged)
    async with running(tmp_path) as stage:
        stage.witness.says = lends("plant-a")
        await stage.wait(lambda: stage.role == "leads", "the lead")


async def test_a_busy_store_ends_no_node(tmp_path: Path) -> None:
    """A store that takes no incident at the moment of a change costs the incident, and the node goes on."""
    async with leading(tmp_path) as stage:
        stage.box.error = StoreFull("too much work waits for the disk")
        stage.witness.says, stage.partner.says = lends("plant-a-2", 300), claims("leads", 300)
        await stage.wait(lambda: stage.box.done[-1] == "stopped", "the end of the lead")
        assert stage.role == "follows"


@pytest.mark.parametrize("gaps_stored, unseen_s, gap_s", [(True, 0.0, 30), (True, 3_600.0, 7_200), (False, 0.0, 7_200)])
async def test_the_gap_covers_what_may_be_lost(gaps_stored: bool, unseen_s: float, gap_s: int, tmp_path: Path) -> None:
    """The leader dies: the gap begins when it was last heard. It begins where an earlier process of this node had all
    of it, two hours ago, if this one was behind with pulling, or the leader has not declared what was missing."""
    async with running(tmp_path, time.time_ns() - 7_200 * 10**9) as stage:
        stage.unseen_s = unseen_s
        stage.witness.says, stage.partner.says = lends("plant-a-2"), claims("leads", 200, gaps_stored=gaps_stored)
        await stage.wait(lambda: len(stage.partner.asked) > 50, "words for longer than two leases")
        assert stage.box.complete[""][0] == pytest.approx(time.time_ns() - gap_s * 10**9, abs=30 * 10**9)
        stage.witness.says, stage.partner.says = lends("plant-a", 300), None
        await stage.wait(lambda: stage.role == "leads", "the lead")
        assert stage.box.since_ns == pytest.approx(time.time_ns() - gap_s * 10**9, abs=30 * 10**9)


async def test_a_leader_tells_when_all_is_declared(tmp_path: Path) -> None:
    """Both peers hear of it."""
    async with leading(tmp_path) as stage:
        await stage.wait(lambda: stage.partner.asked and stage.witness.asked, "questions")
        for peer in (stage.witness, stage.partner):
            assert not peer.asked[-1].claim.gaps_stored
        stage.box.has_stored_gaps = True
        for peer in (stage.witness, stage.partner):
            await stage.wait(lambda peer=peer: peer.asked[-1].claim.gaps_stored, "its word")


async def test_a_store_without_room_leaves_the_lead(tmp_path: Path) -> None:
    """The term cannot be stored: no source is asked, the lead is given back, and taken when there is room."""
    async with running(tmp_path) as stage:
        stage.box.error = StoreFull("the disk is full")
        stage.witness.says, stage.partner.says = lends("plant-a"), claims("follows")
        await stage.wait(lambda: any(asked.claim.state == "releases" for asked in stage.witness.asked), "a release")
        assert stage.box.done == []
        stage.box.error = None
        await stage.wait(lambda: stage.role == "leads", "the lead")


async def test_a_planned_switch(tmp_path: Path) -> None:
    """The sources stop, the other node gets what is stored, then the lead is given back; also while facts arrive."""
    async with leading(tmp_path) as stage:
        stage.box.on_stop = lambda: setattr(stage, "lacks", "is behind with pulling")
        switching = asyncio.ensure_future(stage.runner.switch())
        await stage.wait(lambda: stage.box.done[-1] == "stopped", "the sources to stop")
        assert stage.role == "leads"
        stage.lacks = ""
        await stage.wait(lambda: stage.role == "follows", "the release")
        stage.witness.says, stage.partner.says = lends("plant-a-2", 300), claims("leads", 300)
        assert (await switching).leader == "plant-a-2"


async def test_a_second_switch_during_the_first(tmp_path: Path) -> None:
    """It is refused when the first one has handed the lead over."""
    async with leading(tmp_path) as stage:
        stage.box.on_stop = lambda: setattr(stage, "lacks", "is behind with pulling")
        switching = asyncio.ensure_future(stage.runner.switch())
        await stage.wait(lambda: stage.box.done[-1] == "stopped", "the sources to stop")
        second = asyncio.ensure_future(stage.runner.switch())
        await asyncio.sleep(0)  # it waits for the first
        stage.lacks = ""
        await stage.wait(lambda: stage.role == "follows", "the release")
        with pytest.raises(SwitchRefused, match="just ended"):
            await second
        stage.witness.says, stage.partner.says = lends("plant-a-2", 300), claims("leads", 300)
        assert (await switching).leader == "plant-a-2"


BEHIND = "is behind with pulling"


@pytest.mark.parametrize(
    "partner, lacks, why",
    [
        (None, "", "not answer"),
        (claims("follows", fitness=0), "", "takes no facts"),
        (claims("releases"), "", "has just led, or"),
        (claims("follows"), BEHIND, BEHIND),
    ],
    ids=["silent", "full", "unwilling", "behind"],
)
async def test_a_switch_to_a_node_that_cannot(partner: Says | None, lacks: str, why: str, tmp_path: Path) -> None:
    """Before anything stops, the other node is looked at: where it could not record, or does not hold everything within
    ten seconds, this one records on."""
    async with running(tmp_path) as stage:
        stage.witness.says, stage.partner.says, stage.lacks = lends("plant-a"), partner, lacks
        await stage.wait(lambda: stage.role == "leads", "the lead")
        with pytest.raises(SwitchRefused, match=why):
            await stage.runner.switch()
        assert stage.box.done == ["took the lead", "records"]


@pytest.mark.parametrize(
    "exports, ends, frontiers, said",
    [
        (("a", "b"), {"a": 5, "b": 0}, {"plant-a-2.a": 5}, ""),
        (("a", "b"), {"a": 5, "b": 2}, {"plant-a-2.a": 5}, "has never pulled b"),
        (("a", "b"), {"a": 5, "b": 2}, {"plant-a-2.b": 2, "plant-a-2.by-hand": 9}, "has never pulled a"),
        (("a", "b"), {"a": 5, "b": 2}, {"plant-a-2.a": 4, "plant-a-2.b": 2}, "is behind with pulling a"),
        (("a", "health"), {"a": 5, "health": 9}, {"plant-a-2.a": 5}, ""),
    ],
    ids=["empty stream", "never pulled", "by hand", "behind", "health"],
)
def test_what_the_partner_lacks(
    exports: tuple[str, ...], ends: dict[str, int], frontiers: dict[str, int], said: str
) -> None:
    """A stream that the partner may pull and never has is not level, though it has no consumer that is behind."""
    found = partner_lacks("plant-a-2", exports, ends, frontiers)
    assert said in found if said else found == ""


async def test_a_refusal_is_known_until_it_is_answered(tmp_path: Path) -> None:
    """What the other sides say no to is in the status, as long as each does; a time-out tells nothing new."""

    async def refuses(_: ClaimLead) -> LeadAnswer:
        raise PeerRefused("plant-a-2", "lead_not_yours", "partner names no node", "Write it.", retryable=False)

    def refusing() -> list[str]:
        return sorted(refusal.node for refusal in stage.runner.snapshot().refusals)

    async with running(tmp_path) as stage:
        stage.witness.says = stage.partner.says = refuses
        await stage.wait(lambda: refusing() == ["idmz", "plant-a-2"], "both refusals")
        expected = PairRefusal("plant-a-2", "lead_not_yours", "partner names no node", "Write it.")
        assert expected in stage.runner.snapshot().refusals
        stage.witness.says = lends("plant-a")
        await stage.wait(lambda: refusing() == ["plant-a-2"], "the answer of the witness")
        stage.partner.says = claims("follows")
        await stage.wait(lambda: not refusing(), "the answer")
        stage.partner.says = refuses
        await stage.wait(lambda: stage.runner.snapshot().refusals, "the refusal again")
        stage.partner.says = None
        await stage.wait(lambda: not stage.runner.snapshot().refusals, "silence")


async def test_a_follower_does_not_switch(tmp_path: Path) -> None:
    """The command at the wrong box says where to run it."""
    async with running(tmp_path) as stage:
        stage.witness.says, stage.partner.says = lends("plant-a-2"), claims("leads", 200)
        await stage.wait(lambda: stage.runner.snapshot().leader == "plant-a-2", "the leader")
        with pytest.raises(SwitchRefused, match="run it on plant-a-2"):
            await stage.runner.switch()


async def test_each_change_is_an_incident(tmp_path: Path) -> None:
    """Who led before, who leads now, and why; a leader that is confirmed again and again adds none, and keeps its
    term. The store begins the term before the sources record, and they stop when another node leads."""
    async with leading(tmp_path) as stage:
        assert stage.runner.snapshot().term == 200
        asked = len(stage.witness.asked)
        await stage.wait(lambda: len(stage.witness.asked) > asked + 20, "renewals")
        assert stage.box.done == ["took the lead", "records"]
        stage.witness.says, stage.partner.says = lends("plant-a-2", 300), claims("leads", 300)
        await stage.wait(lambda: stage.role == "follows", "the end of the lead")
        assert stage.box.done == ["took the lead", "records", "stopped"]
        assert stage.box.notes == [
            "lead none to plant-a: the witness has granted the lead",
            "lead plant-a to plant-a-2: the witness says that the partner leads",
        ]


async def test_a_leader_whose_new_term_is_refused_stops(tmp_path: Path) -> None:
    """The witness grants a new term and the store cannot begin it: the sources do not record on under the old one."""
    async with leading(tmp_path) as stage:
        stage.box.error, stage.witness.says = StoreFull("the disk is full"), lends("plant-a", 300)
        await stage.wait(lambda: stage.role == "follows", "the end of the lead")
        assert stage.box.done == ["took the lead", "records", "stopped"]


async def test_a_node_that_stops_gives_back_the_lead(tmp_path: Path) -> None:
    """Both are told at once, so that the other node does not wait for the end of the lease; a follower says nothing."""
    async with leading(tmp_path) as stage:
        pass
    await stage.runner.leave()
    assert [peer.asked[-1].claim.state for peer in (stage.witness, stage.partner)] == ["releases", "releases"]
    asked = len(stage.witness.asked)
    await stage.runner.leave()
    assert len(stage.witness.asked) == asked


async def test_a_switch_that_the_other_node_does_not_take(tmp_path: Path) -> None:
    """The other node does not begin: this one leads again, and says so."""
    async with leading(tmp_path) as stage:
        stage.witness.says = lends("", 300)
        with pytest.raises(SwitchRefused, match="this node leads again"):
            await stage.runner.switch()
        assert stage.role == "leads"
