"""The pulling side's decisions, one at a time. Their combination under faults is in test_networks.py."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.positions import NOTHING_READ, Position, last_of
from agent.replication.protocol.pacing import HEARTBEAT_MS
from agent.replication.pulling.receiving.peer_contact import RESTART_MS
from agent.replication.pulling.receiving.pull_events import (
    Append,
    AppendFailed,
    ArrivedPage,
    Asking,
    Check,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    NoteKind,
    PageAppended,
    PageArrived,
    ReceiverSettings,
    Storing,
    Tick,
)
from agent.replication.pulling.receiving.receiver import Receiver

ONE, TWO = "1" * 32, "2" * 32
PATIENCE = ReceiverSettings(
    wait_ms=1_000, answer_timeout_ms=500, backoff_ms_min=100, backoff_ms_max=400, blocked_ms=60_000
)


def at(offset: int, life: str = ONE) -> Position:
    """A position in a life of the peer's log."""
    return Position(bytes.fromhex(life), offset) if offset else NOTHING_READ


def page(
    first: int, last: int, *, more: bool = False, frontier: int = 0, life: str = ONE, **fields: object
) -> ArrivedPage:
    """A page of one run of offsets, that a process serves which has stored them, or an empty one after the frontier."""
    of_log = {"after": at(first - 1 if first else frontier, life), "lives": (at(last, life),) if last else ()}
    run = {"first_offset": first, "last_offset": last, "more": more}
    return ArrivedPage(frontier=frontier, **run, life=life, **(of_log | fields))


def after(fetch: Fetch) -> int | None:
    """The offset after which a request asks."""
    if fetch.after is None and fetch.trail is None:
        return None
    return (fetch.after or last_of(fetch.trail or ())).offset


def confirmed(fetch: Fetch) -> int | None:
    """The offset that a request confirms."""
    return None if fetch.confirm is None else fetch.confirm.offset


class Driver:
    """A connected receiver with a clock; records its requests."""

    def __init__(self, offset: int = 0, settings: ReceiverSettings = PATIENCE) -> None:
        self.core = Receiver(settings, (at(offset),) if offset else ())
        self.now_ms = 0
        self.fetches: list[Fetch] = []
        self(LinkUp())

    def __call__(self, event: Event, after_ms: int = 0) -> list[Effect]:
        self.now_ms += after_ms
        effects = self.core.handle(event, self.now_ms, 0.5)
        self.fetches += [effect for effect in effects if isinstance(effect, Fetch)]
        return [effect for effect in effects if not isinstance(effect, Check)]

    def answer(self, answered: ArrivedPage, fetch: int = -1) -> list[Effect]:
        """A page arrives, as the answer to the newest request or an older one."""
        return self(PageArrived(self.fetches[fetch].fetch_id, answered), 1)


def kinds(effects: list[Effect]) -> list[object]:
    """The kinds of effects, and the notes."""
    return [effect.kind if isinstance(effect, Note) else type(effect) for effect in effects]


def test_a_long_wait_lasts_as_long_as_heartbeats_name_it() -> None:
    """The first is due with the server's interval, each moves the deadline, and none beyond the wait. Of another fetch
    it moves nothing."""
    driver = Driver(10, ReceiverSettings(wait_ms=30_000, answer_timeout_ms=3_000))
    driver.answer(page(0, 0, frontier=10))
    sent_ms, fetch_id = driver.now_ms, driver.fetches[-1].fetch_id
    assert driver.core.deadline_ms == sent_ms + HEARTBEAT_MS + 3_000
    driver.core.still_waits(fetch_id - 1, sent_ms + 4_000)
    assert driver.core.deadline_ms == sent_ms + HEARTBEAT_MS + 3_000
    driver.core.still_waits(fetch_id, sent_ms + 4_000)
    assert driver.core.deadline_ms == sent_ms + 4_000 + HEARTBEAT_MS + 3_000
    driver.core.still_waits(fetch_id, sent_ms + 29_000)
    assert driver.core.deadline_ms == sent_ms + 33_000
    assert kinds(driver(Tick(), 33_000)) == [NoteKind.PEER_LOST]


def test_when_a_pull_was_level() -> None:
    """An answer that ends with the log has all that the peer had when it was asked, once it is stored. Heartbeats say
    that nothing came while the request waited: from the first to the last of them, however late they are read. A page
    with more behind it, a heartbeat of another request, and a page that the store refuses, say nothing."""
    driver = Driver(10, ReceiverSettings(wait_ms=30_000, answer_timeout_ms=3_000))
    assert driver.core.contact.level_ms is None
    first_ms = driver.now_ms
    driver.answer(page(11, 20, more=True))
    assert driver.core.contact.level_ms is None
    asked_ms = driver.now_ms
    driver.now_ms += 40
    driver.answer(page(21, 30))
    driver(PageAppended())
    assert driver.core.contact.level_ms is None
    driver(PageAppended())
    assert driver.core.contact.level_ms == asked_ms >= first_ms
    waits, asked_ms = driver.fetches[-1].fetch_id, driver.now_ms
    for at_ms, level_ms in ((3_000, 0), (8_000, 5_000), (8_001, 5_000), (25_000, 10_000)):
        driver.core.still_waits(waits, asked_ms + at_ms)
        assert driver.core.contact.level_ms == asked_ms + level_ms
    driver.core.still_waits(waits - 1, asked_ms + 30_000)
    assert driver.core.contact.level_ms == asked_ms + 10_000
    driver.now_ms += 30_000
    driver.answer(page(0, 0, frontier=30))
    level_ms = driver.core.contact.level_ms
    assert level_ms == asked_ms + 10_000
    driver(Tick(), 1_000)
    driver.answer(page(31, 40))
    driver(AppendFailed("no", is_retryable=False))
    assert driver.core.contact.level_ms == level_ms
    driver(Tick(), ReceiverSettings().blocked_ms)
    driver.answer(page(31, 35, more=True))
    driver(PageAppended())
    assert driver.core.contact.level_ms == level_ms


def test_a_node_that_is_behind_loses_no_peer() -> None:
    """While requests wait in this node, or answers are unread, no deadline counts: a request that has left late has its
    whole time from then on. But a flood that is never read to its end hides a lost answer for half a minute only."""
    driver = Driver(10, ReceiverSettings(wait_ms=30_000, answer_timeout_ms=3_000))
    fetch_id = driver.fetches[-1].fetch_id
    for _ in range(20):
        assert driver(Tick(is_behind=True), 1_000) == []
    driver.core.taken(fetch_id, driver.now_ms)
    assert driver(Tick(), 2_999) == []
    assert kinds(driver(Tick(), 1)) == [NoteKind.PEER_LOST]
    driver(Tick(), 10_000)
    lost = [driver(Tick(is_behind=True), 1_000) for _ in range(40)]
    assert driver.core.counters.timeouts == 2
    assert lost[30] == []


def test_an_unproven_answer_counts_as_none() -> None:
    """It is counted, the request stays open, and a page that follows is accepted. If none follows, the time-out ends
    the request with the reason, retryably. The next request starts without it."""
    driver = Driver()

    def unproven() -> list[Effect]:
        return driver(FetchFailed(driver.fetches[-1].fetch_id, "unproven_answer", "plant: nobody signed it", True))

    assert unproven() == unproven() == []
    assert (driver.core.asking, driver.core.counters.unproven) == (Asking.WAITING, 2)
    assert Append in kinds(driver.answer(page(1, 10)))
    driver(PageAppended())
    assert unproven() == []
    assert kinds(driver(Tick(), 1_500)) == [NoteKind.PEER_LOST]
    assert (driver.core.asking, driver.core.contact.lost_reason) == (
        Asking.BACKOFF,
        "unproven_answer: plant: nobody signed it",
    )
    driver(Tick(), 400)
    assert kinds(driver.answer(page(0, 0, frontier=10)))[0] is NoteKind.PEER_RETURNED
    driver(Tick(), 1_500)
    assert driver.core.contact.lost_reason == "timeout: no answer"
    driver(Tick(), 400)
    unproven()
    assert kinds(driver(Tick(), 5_000)) == [NoteKind.PEER_LOST]
    assert driver.core.contact.lost_reason == "unproven_answer: plant: nobody signed it", "it needs an operator"


def test_a_peer_that_refused_and_is_gone_is_lost() -> None:
    """An operator who reads why it refused would repair what is right by now. Noted once; if it refuses again, so is
    that."""
    driver = Driver(10)

    def refuse() -> list[Note]:
        found = driver(FetchFailed(driver.fetches[-1].fetch_id, "stream_not_exported", "not exported", False))
        return [effect for effect in found if isinstance(effect, Note)]

    assert [note.kind for note in refuse()] == [NoteKind.PEER_REFUSES]
    driver(Tick(), PATIENCE.blocked_ms)
    assert kinds(driver(Tick(), 1_500)) == [NoteKind.PEER_LOST]
    assert (driver.core.asking, driver.core.contact.lost_reason) == (Asking.BACKOFF, "timeout: no answer")
    driver(Tick(), 1_000)
    assert NoteKind.PEER_LOST not in kinds(driver(Tick(), 3_000))
    driver(Tick(), 5_000)
    assert [note.kind for note in refuse()] == [NoteKind.PEER_REFUSES]
    driver(LinkDown("cut"))
    assert driver.core.contact.lost_reason == "cut"
    driver(LinkUp())
    driver(Tick(), PATIENCE.spread_ms)
    assert kinds(driver(Tick(), 60_000)) == [], "it was noted, and the status says why it is lost now"
    assert driver.core.contact.lost_reason == "timeout: no answer"


def test_start_at_the_end_takes_the_peers_frontier() -> None:
    """With start = "end" the peer's frontier becomes the position, and the next request names it."""
    driver = Driver(settings=ReceiverSettings(start="end"))
    assert after(driver.fetches[-1]) is None
    driver.now_ms += 1_000
    driver.answer(page(0, 0, frontier=40))
    newest = driver.fetches[-1]
    assert (after(newest), confirmed(newest)) == (40, None)


def test_a_late_answer_at_the_position_is_taken() -> None:
    """The answer to a timed-out request is accepted if it starts at the position; the second answer is then dropped."""
    driver = Driver(10)
    assert kinds(driver(Tick(), 1_500)) == [NoteKind.PEER_LOST]
    assert kinds(driver(Tick(), 200)) == [Fetch]
    assert kinds(driver.answer(page(11, 20), fetch=0)) == [NoteKind.PEER_RETURNED, Append]
    assert driver.answer(page(11, 20), fetch=1) == []
    assert (driver.core.counters.pages_late, driver.core.counters.pages_dropped) == (1, 1)


def test_a_slow_answer_is_awaited_longer_each_time() -> None:
    """A line on which an answer takes longer than the time-out must not be requested from for ever in vain: each
    failure doubles the wait, up to eight times, so that a peer that never answers is still noticed. The loss is noted
    once, and so is the return."""
    driver = Driver(10)
    waits, noted = list[int](), list[object]()
    for _ in range(6):
        before, deadline_ms = driver.now_ms, driver.core.deadline_ms
        assert deadline_ms is not None
        waits.append(deadline_ms - before)
        noted += kinds(driver(Tick(), waits[-1]))
        driver(Tick(), PATIENCE.backoff_ms_max)
    assert (waits, noted) == ([500, 1_000, 2_000, 4_000, 4_000, 4_000], [NoteKind.PEER_LOST])
    assert kinds(driver.answer(page(11, 20, more=True))) == [NoteKind.PEER_RETURNED, Fetch, Append]
    assert driver.core.deadline_ms == driver.now_ms + PATIENCE.wait_ms + 500


def test_each_time_out_asks_for_a_smaller_page_and_each_quick_one_for_a_larger() -> None:
    """A page that is too large for the line would never arrive. The sizes of two time-outs and of two quick pages, and
    of a time-out after these."""
    driver = Driver()
    for _ in range(2):
        driver(Tick(), 5_000)
        driver(Tick(), 400)
    for first in (1, 11):
        driver.answer(page(first, first + 9, more=True))
        driver(PageAppended())
    driver(Tick(), 5_000)
    driver(Tick(), 400)
    assert [fetch.bytes_max // 1024 for fetch in driver.fetches] == [256, 128, 64, 128, 256, 128]


@pytest.mark.parametrize("first", [1, 10, 12, 30])
def test_a_page_at_another_position_is_a_failure(first: int) -> None:
    """A page that does not start at the position is not stored; if it answers the newest request, that is a failure."""
    driver = Driver(10)
    driver.answer(page(0, 0, frontier=10))
    assert kinds(driver.answer(page(first, first + 9))) == [NoteKind.PEER_LOST]
    assert driver.core.asking is Asking.BACKOFF


def test_the_trail_is_named_until_a_page_has_come() -> None:
    """After a start, a reconnection and a refused position the request names the whole trail, with the pages that are
    not stored yet; in between only the position."""
    old = at(7, TWO)
    driver = Driver()
    driver.core = Receiver(PATIENCE, (old, at(10)))
    driver(LinkUp())
    assert driver.fetches[-1].trail == (old, at(10))
    driver.answer(page(11, 20, more=True))
    assert (driver.fetches[-1].trail, driver.fetches[-1].after) == (None, at(20))
    driver(LinkDown("gone"))
    driver(LinkUp())
    driver(Tick(), PATIENCE.spread_ms)
    assert driver.fetches[-1].trail == (old, at(20))
    driver.answer(page(21, 30, more=True))
    driver(PageAppended())
    driver(PageAppended())
    refused = FetchFailed(driver.core.open_fetch_id or 0, "life_unknown", "it was restored", is_retryable=True)
    assert kinds(driver(refused)) == [Fetch]
    assert driver.fetches[-1].trail == (old, at(30))


def test_a_log_that_was_put_back_is_read_on_from_where_it_is_the_same() -> None:
    """The page is stored behind those that are under way, and the position is in the log that the peer has now. What
    was read beyond is in the trail: if that log returns, it is read on there."""
    driver = Driver(80)
    driver.answer(page(81, 100, more=True))  # on its way to disk
    driver(FetchFailed(driver.core.open_fetch_id or 0, "life_unknown", "it was restored", is_retryable=True))
    of_copy = page(91, 95, life=TWO, after=at(90))
    assert kinds(driver.answer(of_copy)) == [NoteKind.PEER_RESTORED]
    assert Append in kinds(driver(PageAppended()))
    driver(PageAppended())
    assert (driver.core.place.stored, driver.core.counters.restarts) == ((at(100), at(95, TWO)), 1)
    assert driver.fetches[-1].after == at(95, TWO)


def test_two_machines_that_answer_in_turn_are_asked_rarely() -> None:
    """A life that returns is another machine under the same name, or a memory that was put back. Both are named once,
    their pages are stored, and requests are rare until only one has answered for ten minutes."""
    driver = Driver(10)
    driver.answer(page(0, 0, frontier=10, life=ONE))
    driver.answer(page(0, 0, frontier=10, life=TWO))
    assert driver.core.asking is not Asking.BLOCKED, "a restart is a new life"
    driver(Tick(), 200)
    notes = [effect for effect in driver.answer(page(11, 20, life=ONE)) if isinstance(effect, Note)]
    assert [(note.kind, ONE in note.reason, TWO in note.reason) for note in notes] == [
        (NoteKind.PEER_REFUSES, True, True)
    ]
    driver(PageAppended())
    asked = []
    while driver.core.asking is Asking.BLOCKED:
        asked.append(driver.now_ms)
        driver(Tick(), PATIENCE.blocked_ms)
        assert NoteKind.PEER_REFUSES not in kinds(driver.answer(page(0, 0, frontier=20, after=at(20))))
    assert asked[-1] - asked[0] >= PATIENCE.twins_ms - PATIENCE.blocked_ms
    assert driver.core.contact.lost_reason is None


def test_two_machines_that_refuse_in_turn_are_named() -> None:
    """Each refuses what the other has been asked: the peer is asked again after a pause, not at once for ever. Both are
    named once."""
    driver = Driver(10)
    noted = []
    for life in (TWO, ONE, TWO, ONE):
        if driver.core.asking is Asking.BLOCKED:
            break
        driver(Tick(), RESTART_MS)
        newest = driver.core.open_fetch_id or 0
        noted = driver(FetchFailed(newest, "busy", "another", is_retryable=True, life=life))
    assert driver.core.asking is Asking.BLOCKED
    assert [
        (ONE in effect.reason, TWO in effect.reason)
        for effect in noted
        if getattr(effect, "kind", "") is NoteKind.PEER_REFUSES
    ] == [(True, True)]
    for life in (ONE, TWO):
        driver(Tick(), PATIENCE.blocked_ms)
        assert driver(FetchFailed(driver.core.open_fetch_id or 0, "busy", "another", True, life=life)) == []


def test_store_that_is_full_gets_the_same_page_again() -> None:
    """The pause doubles; its begin and end are logged once; the page stays the same."""
    driver = Driver()
    (offered,) = driver.answer(page(1, 10))
    assert kinds(driver(AppendFailed("full", is_retryable=True))) == [NoteKind.PAGE_WAITS]
    assert driver.core.pages.state is Storing.PAUSED
    assert driver(Tick(), 100) == [offered]
    assert driver(AppendFailed("full", is_retryable=True)) == []
    assert driver(Tick(), 200) == [offered]
    assert kinds(driver(PageAppended())) == [NoteKind.PAGE_STORED, Fetch]
    (later,) = driver.answer(page(11, 20))
    assert kinds(driver(AppendFailed("full", is_retryable=True))) == [NoteKind.PAGE_WAITS], "another time"
    assert driver(Tick(), 100) == [later]
    assert NoteKind.PAGE_REFUSED in kinds(driver(AppendFailed("a fork", is_retryable=False)))
    assert driver.core.pages.waits == "full", "until a page is stored, and then it is said"


def test_a_refused_page_blocks_and_is_logged_once() -> None:
    """A page that was refused for good is requested again rarely; the peer counts as lost until a page has been
    stored."""
    driver = Driver(10)
    driver.answer(page(11, 20, more=True))
    assert kinds(driver(AppendFailed("forked", is_retryable=False))) == [NoteKind.PAGE_REFUSED]
    assert driver.core.asking is Asking.BLOCKED
    assert driver(Tick(), 59_999) == []
    assert kinds(driver(Tick(), 1)) == [Fetch]
    assert after(driver.fetches[-1]) == 10
    driver.answer(page(11, 20))
    assert driver(AppendFailed("forked", is_retryable=False)) == []
    driver(Tick(), 60_000)
    driver.answer(page(11, 20))
    assert kinds(driver(PageAppended())) == [NoteKind.PEER_RETURNED, Fetch]


def test_early_empty_answers_are_not_asked_again_at_once() -> None:
    """A peer that does not wait although it should is asked at most five times a second."""
    driver = Driver(5)
    assert kinds(driver.answer(page(0, 0))) == [Fetch]
    assert driver.answer(page(0, 0)) == []
    assert driver.core.asking is Asking.BACKOFF
    assert kinds(driver(Tick(), 199)) == [Fetch]


def test_a_pull_whose_facts_another_one_brings_asks_at_times() -> None:
    """After a page with nothing new it asks once in a while and waits at no peer, so that each request can name what is
    held by then. A page with new facts ends that at once, and a backlog is never slowed."""
    drive = Driver(settings=replace(PATIENCE, repeated_ms=700))
    drive(LinkUp())
    drive.answer(page(1, 10))
    drive(PageAppended(facts_stored=10))
    assert (len(drive.fetches), drive.fetches[-1].wait_ms) == (2, 1_000)
    drive.answer(page(11, 20))
    drive(PageAppended(facts_duplicate=10))
    assert (len(drive.fetches), drive.core.asking, drive.core.deadline_ms) == (2, Asking.PACED, 701)
    assert drive.core.pace.paced_ms(drive.now_ms + 100) == 0, "that is no limit of the bandwidth"
    drive(Tick(), drive.core.deadline_ms - drive.now_ms)
    assert (len(drive.fetches), drive.fetches[-1].wait_ms, confirmed(drive.fetches[-1])) == (3, 0, 20)
    drive.answer(page(0, 0, frontier=20))
    assert (len(drive.fetches), drive.core.asking) == (3, Asking.PACED)
    drive(Tick(), 700)
    drive.answer(page(21, 30, more=True))
    drive(PageAppended())
    assert len(drive.fetches) == 5, "there is more: nothing is awaited"
    drive.answer(page(31, 40))
    drive(PageAppended(facts_stored=1))
    assert (len(drive.fetches), drive.fetches[-1].wait_ms) == (6, 1_000)


offsets = st.integers(0, 40)
hostile_pages = st.builds(
    ArrivedPage,
    frontier=offsets,
    first_offset=offsets,
    last_offset=offsets,
    more=st.booleans(),
    life=st.sampled_from([ONE, TWO]),
    after=st.builds(at, offsets, st.sampled_from([ONE, TWO])),
    lives=st.tuples(st.builds(at, st.integers(1, 40), st.sampled_from([ONE, TWO]))),
).filter(
    lambda batch: (batch.first_offset == 0) == (batch.last_offset == 0) and batch.first_offset <= batch.last_offset
)
hostile_events = st.one_of(
    st.builds(PageArrived, fetch_id=st.integers(0, 30), page=hostile_pages),
    st.builds(
        FetchFailed,
        fetch_id=st.integers(0, 30),
        code=st.sampled_from(["life_unknown", "busy"]),
        reason=st.just("x"),
        is_retryable=st.booleans(),
        life=st.sampled_from(["", ONE, TWO]),
    ),
)
own_events = st.sampled_from(["up", "down", "appended", "appended", "full", "refused", "tick"])
apt_events = st.tuples(
    st.sampled_from(["page", "pages", "empty", "life_unknown"]),
    st.sampled_from([ONE, TWO]),
)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(apt_events | own_events | hostile_events, st.sampled_from([0, 500, 60_000])), min_size=20, max_size=60
    ),
)
def test_no_answer_of_a_peer_fails_an_assertion(events: list[tuple[object, int]]) -> None:
    """Whatever a peer answers, to any request, also right at our position and alternating between lives, no assertion
    fails, and nothing is confirmed that is not stored."""
    core = Receiver(PATIENCE)
    now_ms, stored = 0, set[Position]()
    core.handle(LinkUp(), 0, 0.5)
    for event, after_ms in events:
        now_ms += after_ms
        happened = possible(core, event)
        if happened is None:
            continue
        for effect in core.handle(happened, now_ms, 0.5):
            if isinstance(effect, Append):
                assert effect.page.last_offset >= 0
                stored |= {*effect.page.lives, effect.page.after}
            if isinstance(effect, Fetch) and effect.confirm is not None:
                assert effect.confirm == last_of(core.place.stored)
                assert effect.confirm in stored


def apt(core: Receiver, word: str, life: str) -> Event | None:
    """An answer to the newest request by a store of `life`, at the place with the largest effect: right at our
    position."""
    if core.open_fetch_id is None:
        return None
    if word == "life_unknown":
        return FetchFailed(core.open_fetch_id, word, f"{word}: x", is_retryable=True)
    read = last_of(core.place.accepted)
    first, how = read.offset + 1, {"life": life, "after": read}
    answered = page(0, 0, **how) if word == "empty" else page(first, first + 4, more=word == "pages", **how)
    return PageArrived(core.open_fetch_id, answered)


def possible(core: Receiver, event: object) -> Event | None:
    """The event, if the shell could report it in this state."""
    match event:
        case "up":
            return LinkUp() if core.asking is Asking.OFFLINE else None
        case "down":
            return LinkDown("gone")
        case "appended":
            return PageAppended() if core.pages.state is Storing.APPENDING else None
        case "full" | "refused":
            failed = AppendFailed("no", is_retryable=event == "full")
            return failed if core.pages.state is Storing.APPENDING else None
        case "tick":
            return Tick()
        case (str(word), str(life)):
            return apt(core, word, life)
        case _:
            assert isinstance(event, PageArrived | FetchFailed)
            return event


def test_a_lease_is_asked_for_once_and_shown_from_then_on() -> None:
    """Fetches request a lease (0) until an answer grants one; answers with an older one are ignored. The lease outlives
    the connection and the peer's store: otherwise a new one would fence a twin at each lost connection."""
    driver = Driver(10)
    driver.answer(page(0, 0, frontier=10))
    assert [fetch.lease for fetch in driver.fetches] == [0, 0]
    driver.answer(page(11, 20, lease=7, more=True))
    driver.answer(page(21, 30, lease=6))
    driver(PageAppended())
    driver(PageAppended())
    driver(LinkDown("gone"))
    driver(LinkUp())
    driver(Tick(), PATIENCE.spread_ms)
    driver.answer(page(0, 0, life=TWO))
    assert [fetch.lease for fetch in driver.fetches[2:]] == [7, 7, 7, 7]


def test_a_lease_is_asked_for_after_the_one_in_force() -> None:
    """The first request assumes that no lease is in force. After an answer that names one, the next request claims the
    one after it at once, without waiting at the peer; once the receiver holds a lease, it claims none. If another
    instance was faster, it first waits a moment, so that a peer that always answers so is not asked in a loop."""
    driver = Driver(10)
    assert kinds(driver.answer(page(0, 0, frontier=10, more=True, lease_in_force=4))) == [Fetch]
    asked = driver.fetches[-1]
    assert (asked.lease, asked.lease_after, asked.wait_ms) == (0, 4, 0)
    assert Fetch not in kinds(driver.answer(page(0, 0, frontier=10, more=True, lease_in_force=5)))
    assert driver.core.asking is Asking.BACKOFF
    assert kinds(driver(Tick(), PATIENCE.backoff_ms_max)) == [Fetch]
    assert driver.fetches[-1].lease_after == 5
    driver.answer(page(11, 20, more=True, lease=6))
    assert (driver.fetches[-1].lease, driver.fetches[-1].lease_after) == (6, None)
    assert driver.core.contact.lost_reason is None


def test_a_lease_that_the_peer_does_not_know_is_asked_for_anew() -> None:
    """The peer's store is new or an old copy: the receiver drops its lease, and the one in force that it was told
    before, and requests a first one, as after a start. Otherwise it would show the lost one for ever."""
    driver = Driver(10)
    driver.answer(page(0, 0, frontier=10, lease_in_force=4))
    driver.answer(page(0, 0, frontier=10, lease=5))
    assert driver.fetches[-1].lease == 5
    driver(FetchFailed(driver.fetches[-1].fetch_id, "lease_unknown", "no lease", is_retryable=True))
    driver(Tick(), PATIENCE.backoff_ms_max)
    assert (driver.fetches[-1].lease, driver.fetches[-1].lease_after) == (0, 0)


def test_a_late_lease_in_force_is_ignored() -> None:
    """The answer belongs to a timed-out request; the request after it is answered separately."""
    driver = Driver(10)
    driver(Tick(), PATIENCE.answer_timeout_ms)
    driver(Tick(), PATIENCE.backoff_ms_max)
    assert len(driver.fetches) == 2
    assert driver.answer(page(0, 0, lease_in_force=4), fetch=0) == []


def test_a_fenced_receiver_stops_for_good() -> None:
    """It logs this once and stores the accepted pages. Neither time, nor a new connection, nor a late page, nor a
    refusal of its own store makes it request again or forget why it stopped."""
    driver = Driver()
    driver.answer(page(1, 10, more=True, lease=1))
    driver.answer(page(11, 20, more=True))
    refused = FetchFailed(driver.fetches[-1].fetch_id, "fenced", "lease 2 is in force", is_retryable=False)
    assert driver(refused) == [Note(NoteKind.RECEIVER_FENCED, "lease 2 is in force")]
    asked = len(driver.fetches)
    assert kinds(driver(PageAppended())) == [Append]
    for event in (LinkDown("gone"), LinkUp(), PageArrived(asked, page(21, 30)), Tick(), refused):
        assert driver(event, 3_600_000) == []
    assert driver(AppendFailed("forged", is_retryable=False)) == [Note(NoteKind.PAGE_REFUSED, "forged")]
    assert driver.core.deadline_ms is None
    assert (driver.core.asking, len(driver.fetches)) == (Asking.FENCED, asked)
    assert (driver.core.place.offset, driver.core.contact.lost_reason) == (10, "lease 2 is in force")
