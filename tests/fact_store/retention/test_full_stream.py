"""A stream at its limit refuses and recovers, or drops its oldest facts and records that."""

import json
from concurrent.futures import Future
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.append import CommitGroup
from agent.fact_store.core import AppendRefusal
from agent.fact_store.retention.reclaim import Reclaimer
from agent.fact_store.writer import refusals
from agent.fact_store.writer.committer import Committer
from agent.positions import Position
from agent.query.statistics import statistics
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import (
    EVERYTHING,
    LIFE,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    done,
    failed,
    message,
    samples,
    tag,
)
from tests.fact_store.retention.support import (
    fill_up,
    first_offset,
    noise,
    notices,
    rows,
    store_of,
)
from tests.support.received import put_page
from tests.waiting import wait_until


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    """The log records of an event."""
    return [record for record in caplog.records if record.getMessage() == name]


@pytest.mark.parametrize("is_asked_again", [True, False])
def test_refused_appends_name_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_asked_again: bool
) -> None:
    """While a stream is full, the statistics say why, what to do and since when, and the log says it once, not with
    each append. With room again, and no append, both say so too; other streams do not count."""
    caplog.set_level("INFO")
    monkeypatch.setattr(refusals, "REFUSED_NS", 0)
    monkeypatch.setattr(refusals, "time", SimpleNamespace(time_ns=count(10**18, 10**9).__next__))
    with store_of(tmp_path, bytes_max=200_000, keep_hours=0) as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        assert store.statistics().appends_refused == ""
        assert not store.refuses_appends
        error = fill_up(store, noise(1, 50_000))
        failed(store.appends.append_samples(TELEMETRY, samples(1)))
        done(store.appends.append_message(OPERATIONAL, message("another stream")))
        found = store.statistics()
        assert (found.appends_refused, found.refused_remedy) == (error.why, error.hint)
        assert store.refuses_appends
        assert found.refused_since_unix_ms == 10**12, "the first refusal"
        (line,) = events(caplog, "appends_refused")
        assert (line.stream, line.reason, line.hint) == (TELEMETRY, error.why, error.hint)
        wait_until(lambda: events(caplog, "store_near_limit"), "a limit that is near")
        percent = events(caplog, "store_near_limit")[0].percent
        assert percent == round(percent, 1)
        done(store.consumers.confirm("idmz.a", store.end_offset(TELEMETRY)))
        if is_asked_again:
            done(store.appends.append_samples(TELEMETRY, samples(1)))
        wait_until(lambda: events(caplog, "appends_stored_again"), "the store to say that it takes appends")
        assert not store.statistics().appends_refused
        assert not store.refuses_appends
        assert [event.refused for event in events(caplog, "appends_stored_again")] == [2]


def test_each_refusal_ends_by_itself() -> None:
    """A stream that stays full keeps its own, and so does a zone that has tried a moment ago."""
    found, now_ns = refusals.Refusals(), refusals.SHARE_REFUSED_NS
    for name, last_ns in (("a", 1), ("b", 0)):
        found.streams[name] = found.zones[name] = AppendRefusal("", "", 0, last_ns, 1)
    found.look(now_ns, lambda stream: stream == "a")
    assert ([*found.streams], [*found.zones]) == (["a"], ["a"])


def test_a_full_stream_refuses_and_recovers(tmp_path: Path) -> None:
    """At its limit a stream refuses appends with advice, of samples and of messages; acknowledged facts stay,
    confirmations and reads work, and once confirmed facts are released, appends are stored again by themselves."""
    with store_of(tmp_path, bytes_max=1024 * 1024, keep_hours=24) as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        rows_ = noise(8, 30_000)
        error, acknowledged = fill_up(store, rows_), store.end_offset(TELEMETRY)
        assert TELEMETRY in str(error)
        assert str(error).endswith("(bsfg consumer list), free space, or raise its bytes_max")
        assert error.retryable
        assert isinstance(failed(store.appends.append_message(TELEMETRY, message("a"))), StoreFull)
        page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert page.batches[-1].last_offset == acknowledged
        assert done(store.consumers.confirm("idmz.a", acknowledged)) == acknowledged
        assert done(store.appends.append_samples(TELEMETRY, rows_)).first_offset == acknowledged + 1
        assert notices(store) == []


@pytest.mark.parametrize("is_message", [False, True])
def test_what_was_queued_behind_a_refused_append_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_message: bool
) -> None:
    """There is room again when its turn comes. It would be stored before the older one that its producer appends again,
    and the older value would be the last one."""
    with store_of(tmp_path, bytes_max=200_000) as store:
        fill_up(store, noise(1, 50_000))
        behind, commit = list[Future[Any]](), Committer.commit

        def append() -> Future[Any]:
            if is_message:
                return store.appends.append_message(TELEMETRY, message("a"))
            return store.appends.append_samples(TELEMETRY, samples(1))

        def grow_meanwhile(committer: Committer, group: CommitGroup) -> Any:
            found = commit(committer, group)
            if not behind:
                store.set_limits(0, [StreamSettings(TELEMETRY, bytes_max=2 * 1024 * 1024)], {})
                behind.append(append())
            return found

        monkeypatch.setattr(Committer, "commit", grow_meanwhile)
        assert isinstance(failed(append()), StoreFull)
        assert isinstance(failed(behind[0]), StoreFull)
        done(append())


def test_limits_are_replaced_while_the_store_runs(tmp_path: Path) -> None:
    """A stream that refused takes facts again when its limit is raised, and drops its oldest when it may; the forecast
    goes by the new limits, and so does the limit of the whole file."""
    with store_of(tmp_path, bytes_max=1024 * 1024) as store:
        rows_ = noise(8, 30_000)
        fill_up(store, rows_)
        store.set_limits(0, [StreamSettings(TELEMETRY, bytes_max=2 * 1024 * 1024)], {})
        assert store.space().streams[0].bytes_max == 2 * 1024 * 1024
        end = done(store.appends.append_samples(TELEMETRY, rows_)).last_offset
        store.set_limits(0, [StreamSettings(TELEMETRY, bytes_max=1024 * 1024, on_full="drop_oldest")], {})
        assert done(store.appends.append_samples(TELEMETRY, rows_)).first_offset == end + 1
        wait_until(lambda: first_offset(store) > 1, "the oldest to go")
        store.set_limits(8 * 1024 * 1024, [], {})
        assert store.space().bytes_max == 8 * 1024 * 1024
        assert store.policy(TELEMETRY) == StreamSettings(TELEMETRY)


def test_a_full_stream_that_may_drop_drops_the_oldest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With on_full = drop_oldest all appends are stored; the loss is recorded piece by piece without gap or overlap,
    and the stream stays about at its limit. The log reports the first loss once. What goes is deleted before an append
    is stored, which needs its pages, and not after it."""
    monkeypatch.setattr(Reclaimer, "delete", lambda *_: False)
    with store_of(tmp_path, bytes_max=1024 * 1024, on_full="drop_oldest") as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        for _ in range(100):
            done(store.appends.append_samples(TELEMETRY, noise(4, 30_000)))
        released = first_offset(store) - 1
        assert released > 200
        (consumer,) = statistics(store.reader).consumers
        assert consumer.unconfirmed_facts == store.end_offset(TELEMETRY) - released, "what is gone is not kept for it"
        held = next(stream.bytes for stream in store.streams() if stream.name == TELEMETRY)
        assert held < 1.3 * 1024 * 1024
        expired = [incident for incident in store.reader.incidents() if incident.kind == "facts_expired"]
        assert expired[0].count > 1
        assert [record.message for record in caplog.records].count("facts_expired") == 1
        about = [json.loads(fact.object_json) for fact in notices(store)]
        assert {fact["reason"] for fact in about} == {"full"}
        for fact, following in pairwise(about):
            assert following["first_offset"] == fact["last_offset"] + 1
    assert rows(tmp_path) < 50


def test_a_full_stream_refuses_a_peers_page_too(tmp_path: Path) -> None:
    """A peer's page needs room as a local append does. If it is refused, it stays at the peer and is taken when there
    is room; a page of holes alone needs none, and moves the position."""
    elsewhere = Elsewhere("north")
    with store_of(tmp_path, bytes_max=1024 * 1024) as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        rows_ = noise(8, 30_000)
        fill_up(store, rows_)
        sealed, end_offset = elsewhere.seal(3), store.end_offset(TELEMETRY)
        with pytest.raises(StoreFull):
            elsewhere.put(store, [sealed])
        assert store.end_offset(TELEMETRY) == end_offset
        position = Position(LIFE, 20)
        done(put_page(store, "south", TELEMETRY, [], [], position, holes=[(1, 20, "expired")]))
        assert store.inbound.peer_position("south", TELEMETRY) == position
        done(store.consumers.confirm("idmz.a", end_offset))
        assert elsewhere.put(store, [sealed]).stored_facts == 3


def test_kept_facts_of_another_stream_give_way_before_one_is_lost(tmp_path: Path) -> None:
    """Confirmed facts kept for local readers take no room from unconfirmed facts, also in another stream."""
    settings = StoreSettings(commit_interval_ms=0, bytes_max=2 * 1024 * 1024, disk_free_bytes_min=0, ballast_bytes=0)
    streams = [StreamSettings(TELEMETRY, keep_hours=24), StreamSettings(OPERATIONAL, on_full="drop_oldest")]
    with FactStore.open(tmp_path / "facts.db", "plant", settings=settings, streams=streams) as store:
        done(store.appends.define([tag(1)]))
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        done(store.consumers.register("idmz.b", "idmz", OPERATIONAL))
        for _ in range(15):
            done(store.appends.append_samples(TELEMETRY, noise(2, 60_000)))
        done(store.consumers.confirm("idmz.a", store.end_offset(TELEMETRY)))
        for _ in range(20):
            done(store.appends.append_samples(OPERATIONAL, noise(1, 30_000)))
        gone = 1
        for bytes_max in (settings.bytes_max, 1024 * 1024):  # by the appends, then by a lower limit
            store.set_limits(bytes_max, streams, {})
            wait_until(lambda: first_offset(store) > gone, "the kept facts to go")  # noqa: B023
            gone = first_offset(store)
            (kept,) = [stream for stream in store.streams() if stream.name == OPERATIONAL]
            assert (kept.first_offset, kept.end_offset) == (1, 20)
            assert store.reader.incidents() == []
