"""The store against a short model: whatever is asked in whatever order, on a disk that may be full, of a store that
forgets and may die at any moment, both say the same, also after reopening.

The model: a list of values, a list of ids with contents, the received batches, a set of offsets per consumer, and
how many offsets are forgotten: what every consumer has confirmed at once, whole batches of it; everything, when its
time to live is over, and then a fact in the log says what was lost, if anything was. What no consumer waits for stays
`queued` in the model until its answer is asked for; what a full disk refused changes nothing.
"""

import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agent import batch
from agent.append_contract import AppendOutcome
from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.core.errors import ConfirmBeyondLog, DefinitionsMissing
from agent.fact_store.retention.housekeeping import Housekeeping
from agent.fact_store.sqlite.connection import connect
from agent.fact_store.writer.committer import Committer
from agent.pages import Hole
from agent.positions import Position
from agent.settings.store import StreamSettings
from tests.fact_store.durability.faulty_disk import FaultyDisk, the_disk
from tests.fact_store.making import (
    IN_MEMORY,
    LIFE,
    LIMIT_S,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    damages,
    done,
    failed,
    ids_in,
    message,
    parsed,
    read_file,
    samples,
    tag,
)
from tests.sim import patient, scaled
from tests.support.received import put_page

SETTINGS = replace(IN_MEMORY, commit_interval_ms=1, batch_facts_target=7)
STREAMS = (StreamSettings(TELEMETRY, keep_hours=0, ttl_hours=1), StreamSettings(OPERATIONAL, ttl_hours=0))
LONG_NS = 3 * 3_600_000_000_000
OFTEN: dict[str, str | int] = {"wal_autocheckpoint": 12}
CONSUMERS = ("a", "b")
BATCHES, FACTS = 6, 3  # of the other origin
EXAMPLES = scaled(45, 11_000)
STEPS = 100
LIFE_STEPS = 8  # so many steps at least between two openings, which cost more than all of them
ANY = st.integers(0, 1000)
"""Taken modulo what there is: what is drawn must not depend on when exactly a disk became full."""
REFUSED = object()
"""What a full disk answers."""
NOTICE = object()
"""What the store writes of a loss, among the values."""


def at_one_moment(path: Path) -> bytes:
    """A file into which another thread writes: two readings are alike. One alone may hold the end of a commit without
    its beginning, which no killed process leaves behind."""
    before, after = None, path.read_bytes()
    while before != after:
        before, after = after, path.read_bytes()
    return after


class StoreAgainstModel(RuleBasedStateMachine):
    """One store and its model."""

    disk: ClassVar[FaultyDisk | None] = None
    folder: ClassVar[Path]
    counts: ClassVar[Counter[str]] = Counter()
    ahead_ns: ClassVar[int] = 0  # of the present store's age, before the real clock

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="model-", dir=self.folder))
        self.lives = 0
        self.is_full = False
        if self.disk is not None:
            self.disk.arm(0, for_ever=False, full=False)
        self.store = self.open()
        self.origin, self.restored = Elsewhere("north"), Elsewhere("north")
        self.values: list[object] = []
        self.contents: dict[str, str] = {}
        self.received: dict[int, bool] = {}  # by number, whether it is the twin's
        self.told = set[tuple[int, int]]()  # sequences refused
        self.position: int | None = None
        self.confirmed: dict[str, set[int]] = {}
        self.forgotten = 0
        self.ends: dict[int, int] = {}  # of received batches
        self.queued: list[tuple[Future[Any], list[object]]] = []
        self.sampled = 0
        self.definitions = 1

    # --------------------------------------------------------------------------------------------------------- how it
    # asks

    def open(self) -> FactStore:
        path = self.home / f"{self.lives}.db"
        StoreAgainstModel.ahead_ns = 0
        connect_to = connect if self.disk is None else self.disk.connect(OFTEN)
        store = FactStore.open(path, "plant", settings=SETTINGS, streams=STREAMS, connect_to=connect_to)
        done(store.appends.define([tag(1)]))
        self.age = 0
        return store

    def answer(self, future: Future[Any]) -> Any:
        """The store's answer; REFUSED where the disk is full and the store says so. It may have refused the definitions
        of a page, and then have room for the page."""
        error = future.exception(LIMIT_S)
        if self.is_full and isinstance(error, StoreFull | DefinitionsMissing):
            self.counts["refused"] += 1
            return REFUSED
        return future.result()

    def settle(self) -> None:
        """Wait for what is queued, so that the model knows what is durable."""
        for future, values in self.queued:
            if self.answer(future) is not REFUSED:
                self.values += values
        self.queued.clear()

    @initialize()
    def begin(self) -> None:
        """Batches of the other origin; of the twin, all but the first differ."""
        for n in range(BATCHES):
            self.origin.seal(FACTS)
            self.restored.seal(FACTS, salt=0 if n == 0 else 9)

    # --------------------------------------------------------------------------------------------------------------
    # writing

    @rule(count=st.integers(1, 20), is_settled=st.booleans())
    def append(self, count: int, is_settled: bool) -> None:
        """Samples, awaited or not."""
        first, self.sampled = self.sampled + 1, self.sampled + count
        future = self.store.appends.append_samples(TELEMETRY, samples(count, first))
        self.queued.append((future, list(range(first, first + count))))
        if is_settled:
            self.settle()

    @rule(name=st.sampled_from("wxyz"), content=st.sampled_from("12"))
    def append_message(self, name: str, content: str) -> None:
        """A message, perhaps again, perhaps with other content."""
        outcome = self.answer(self.store.appends.append_message(OPERATIONAL, message(name, content)))
        if name not in self.contents:
            if outcome is not REFUSED:
                self.contents[name] = content
                assert outcome == AppendOutcome(len(self.contents), "applied")
        elif outcome is not REFUSED:
            same = self.contents[name] == content
            offset = list(self.contents).index(name) + 1
            assert outcome == AppendOutcome(offset, "noop_already_applied" if same else "conflicting_duplicate")

    @rule()
    def define(self) -> None:
        """One more tag definition."""
        if (numbers := self.answer(self.store.appends.define([tag(self.definitions + 1)]))) is not REFUSED:
            self.definitions += 1
            assert numbers == [self.definitions]

    @rule(numbers=st.lists(st.integers(0, BATCHES - 1), min_size=1, max_size=3), is_twin=st.booleans())
    def put(self, numbers: list[int], is_twin: bool) -> None:
        """A page with any batches of the other origin, or of the twin that ran the same life, in any order, perhaps
        again, perhaps with gaps. What contradicts a held batch is refused; a fork beside one is stored."""
        self.settle()  # which of two kinds of work joins the stream first is a matter of pace, not of the model
        origin, position = self.restored if is_twin else self.origin, Position(LIFE, max(numbers))
        if any(n and self.received.get(n, is_twin) != is_twin and self.is_gone(n) for n in numbers):
            return  # what they contradict can be compared no more
        page = parsed([origin.sealed[n] for n in numbers])
        result = self.answer(put_page(self.store, "north", TELEMETRY, page, origin.received(), position))
        if result is REFUSED:
            return
        fresh = [n for n in dict.fromkeys(numbers) if n not in self.received]
        refused = [n for n in numbers if n and self.received.get(n, is_twin) != is_twin]
        assert result.stored_facts == FACTS * len(fresh)
        assert sum(part.last_sequence - part.first_sequence + 1 for part in result.refused) == FACTS * len(refused)
        assert result.duplicate_facts == FACTS * (len(numbers) - len(fresh) - len(refused))
        self.position = position.offset
        for n in fresh:
            self.received[n] = is_twin
            self.ends[n] = len(self.values) + FACTS
            self.values += batch.open_samples(batch.parse(origin.sealed[n])).values
        told = {(part.first_sequence, part.last_sequence) for part in result.refused} - self.told
        self.values += [NOTICE] * len(told)
        self.told |= told

    def is_gone(self, number: int) -> bool:
        """Whether a received batch is forgotten."""
        return self.ends.get(number, self.forgotten + 1) <= self.forgotten

    # ------------------------------------------------------------------------------------------------------------
    # consumers

    @rule(name=st.sampled_from(CONSUMERS), high=ANY, low=st.none() | ANY)
    def confirm(self, name: str, high: int, low: int | None) -> None:
        """A receipt for any range, perhaps beyond the log, by a consumer that registers with its first receipt."""
        self.settle()
        if self.answer(self.store.consumers.register(name, "idmz", TELEMETRY)) is REFUSED:
            return
        offsets = self.confirmed.setdefault(name, set(range(1, self.forgotten + 1)))
        last = high % (len(self.values) + 1) + 1
        first = 1 if low is None else low % last + 1
        future = self.store.consumers.confirm(name, last, None if low is None else first)
        if last > len(self.values):
            error = failed(future)
            assert isinstance(error, ConfirmBeyondLog) or (self.is_full and isinstance(error, StoreFull))
        elif (frontier := self.answer(future)) is not REFUSED:
            offsets.update(range(1, self.forgotten + 1), range(first, last + 1))
            assert frontier == self.frontier(name)
            self.forget()

    @rule(name=st.sampled_from(CONSUMERS))
    def remove(self, name: str) -> None:
        """A consumer is forgotten."""
        if (
            name in self.confirmed
            and self.answer(self.store.consumers.remove(name, force=True, now=True)) is not REFUSED
        ):
            del self.confirmed[name]
            self.forget()

    @precondition(lambda self: not self.is_full)
    @rule()
    def grow_old(self) -> None:
        """The time to live of all facts is over: the next commit releases them, and reports unconfirmed ones."""
        self.settle()
        end, confirmed = len(self.values), self.confirmed_by_all()
        StoreAgainstModel.ahead_ns += LONG_NS
        self.define()
        if end > confirmed:
            self.values.append(NOTICE)
            self.counts["expired"] += 1
        self.forgotten = end
        assert all(stream.first_offset == end + 1 for stream in self.store.streams() if stream.name == TELEMETRY)
        assert self.store.end_offset(TELEMETRY) == len(self.values)

    def confirmed_by_all(self) -> int:
        """The offset up to which no consumer needs a fact."""
        return max(self.forgotten, min(map(self.frontier, self.confirmed), default=0))

    def forget(self) -> None:
        """What all have confirmed went in the commit that confirmed it, up to the batch that a consumer still
        needs."""
        page = self.store.read(TELEMETRY, 0, 1, 2**40)
        first, last = (
            (page.batches[0].first_offset, page.batches[0].last_offset)
            if page.batches
            else (page.end_offset + 1, 2**40)
        )
        assert self.forgotten <= first - 1 <= self.confirmed_by_all() < last or not self.values
        self.counts["forgotten"] += first - 1 - self.forgotten
        self.forgotten = first - 1

    @rule(after=st.integers(0, 40), count=st.integers(1, 30))
    def fetch(self, after: int, count: int) -> None:
        """A page: whole batches from the one that holds the offset, as many as asked for, and the same values as in the
        model."""
        self.settle()
        page = self.store.read(TELEMETRY, after, count, 2**40)
        assert page.end_offset == len(self.values)
        assert page.holes == ((Hole(after + 1, self.forgotten, "expired"),) if after < self.forgotten else ())
        after, until = max(after, self.forgotten), after + count
        if not page.batches:
            assert after >= len(self.values)
            return
        first, last = page.batches[0], page.batches[-1]
        assert first.first_offset <= after + 1 <= first.last_offset
        assert last.last_offset >= min(until, len(self.values))
        assert len(page.batches) == 1 or page.batches[-2].last_offset < until

    # ------------------------------------------------------------------------------------------------------------- the
    # disk

    @precondition(lambda self: self.disk and not self.is_full)
    @rule(writes=st.integers(1, 12))
    def fill(self, writes: int) -> None:
        """So many writes still fit, then the disk is full."""
        assert self.disk is not None
        self.settle()
        self.disk.arm(writes, for_ever=True, full=True, only="write")
        self.is_full = True

    @precondition(lambda self: self.is_full)
    @rule()
    def make_room(self) -> None:
        """Space returns: the store goes on by itself."""
        assert self.disk is not None
        self.settle()
        self.disk.arm(0, for_ever=False, full=False)
        self.is_full = False
        assert self.store.failure is None

    @precondition(lambda self: self.age > LIFE_STEPS)
    @rule()
    def reopen(self) -> None:
        """An orderly restart. On a full disk the last of what was queued is refused, and it cannot be opened until
        there is room."""
        self.store.close()
        self.settle()
        if self.is_full:
            self.make_room()
        self.store = self.open()
        self.check()

    @precondition(lambda self: self.age > LIFE_STEPS)
    @rule()
    def crash(self) -> None:
        """A new life opens the files as they are at this moment: what was answered is there, and a prefix of what was
        queued."""
        path, self.lives = self.home / f"{self.lives}.db", self.lives + 1
        with closing(connect(f"{path.as_uri()}?mode=ro")) as reader:
            reader.execute("BEGIN")  # while a reader is open the WAL is not restarted: both files are of one moment
            reader.execute("SELECT * FROM store").fetchall()
            for ending in ("", "-wal"):
                (self.home / f"{self.lives}.db{ending}").write_bytes(at_one_moment(Path(f"{path}{ending}")))
        hoped = [value for _, values in self.queued for value in values]
        self.queued.clear()
        self.store.close()
        if self.is_full:
            self.make_room()
        self.store = self.open()
        found = self.held()
        self.values += hoped[: self.forgotten + len(found) - len(self.values)]
        self.check()

    # -------------------------------------------------------------------------------------------------------------
    # comparing

    @invariant()
    def agrees(self) -> None:
        """What can be known without waiting is right at every step."""
        self.counts["steps"] += 1
        self.age += 1
        for name, offsets in self.confirmed.items():
            consumer = self.store.consumers.get(name)
            assert consumer is not None
            assert consumer.frontier == self.frontier(name)
            beyond = {n for first, last in consumer.confirmed.ranges for n in range(first, last + 1)}
            assert beyond == {n for n in offsets if n > consumer.frontier}

    def held(self) -> list[object]:
        """Every value that is not forgotten, in order of offsets."""
        found: list[object] = []
        for stored in read_file(self.store, TELEMETRY, self.forgotten).batches:
            assert stored.first_offset == self.forgotten + len(found) + 1
            parsed = batch.parse(stored.sealed)
            is_notice = parsed.header.kind is batch.Kind.MESSAGES
            found += [NOTICE] if is_notice else batch.open_samples(parsed).values
        return found

    def frontier(self, name: str) -> int:
        offset = 0
        while offset + 1 in self.confirmed[name]:
            offset += 1
        return offset

    def check(self) -> None:
        """Everything in the file, fact by fact."""
        assert self.held() == self.values[self.forgotten :]
        assert ids_in(self.store) == list(self.contents)
        if len({is_twin for n, is_twin in self.received.items() if n}) < 2:
            chain_is_whole(self.store)
        assert not damages(self.store.path, is_quick=True)
        assert {consumer.name for consumer in self.store.consumers.all()} == set(self.confirmed)
        known = self.store.inbound.peer_position("north", TELEMETRY)
        assert known == (None if self.position is None else Position(LIFE, self.position))
        assert self.store.reader.own_definitions().count == self.definitions
        self.counts["reopened"] += 1

    def teardown(self) -> None:
        try:
            self.reopen()
        finally:
            self.store.close()
            shutil.rmtree(self.home)


@patient
def test_the_store_agrees_with_the_model(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See the module. Where this interpreter's SQLite cannot be reached, the disk is never full."""
    model, work = StoreAgainstModel, Housekeeping.work

    def work_at_once(self: Housekeeping, *given: Any, is_idle: bool) -> None:
        self._looked_ns = 0  # ages are looked at with every commit, instead of once a second
        work(self, *given, is_idle=is_idle)

    monkeypatch.setattr(Housekeeping, "work", work_at_once)
    monkeypatch.setattr(Committer, "age_ms", lambda self: self._age.now_ms(time.monotonic_ns() + model.ahead_ns))
    StoreAgainstModel.folder = memory
    StoreAgainstModel.counts = Counter()
    StoreAgainstModel.disk = the_disk()
    began = time.monotonic()
    run_state_machine_as_test(
        StoreAgainstModel,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    seconds, counts = time.monotonic() - began, StoreAgainstModel.counts
    print(f"{counts['steps']} steps in {seconds:.1f} s, {counts['steps'] / seconds:.0f}/s: {dict(counts)}")
    assert counts["steps"] > EXAMPLES * STEPS / 4
