"""The store against a short model: whatever is asked in whatever order, both say the same, also after reopening."""

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.fact_store import FactStore, StoreSettings
from agent.fact_store.errors import ConfirmBeyondLog, ForkError
from agent.fact_store.records import AppendOutcome, PeerPosition
from tests.fact_store.making import (
    EPOCH,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    done,
    failed,
    ids_in,
    message,
    samples,
    tag,
    values_in,
)

SETTINGS = StoreSettings(commit_interval_ms=1, batch_facts_target=7)
CONSUMERS = ("a", "b")


class StoreAgainstModel(RuleBasedStateMachine):
    """The model: a list of values, a list of ids with contents, a set of received batches, a set of offsets per consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.store = self.open()
        self.origin, self.restored = Elsewhere("north"), Elsewhere("north")
        self.values: list[object] = []
        self.contents: dict[str, str] = {}
        self.received = set[int]()
        self.position = 0
        self.confirmed: dict[str, set[int]] = {}
        self.queued: list[Future[Any]] = []
        self.sampled = 0

    def open(self) -> FactStore:
        store = FactStore.open(self.folder / "facts.db", "plant", settings=SETTINGS)
        done(store.define([tag(1)]))
        return store

    def settle(self) -> None:
        """Wait for what is queued, so that the model knows what is durable."""
        while self.queued:
            done(self.queued.pop())

    @initialize()
    def begin(self) -> None:
        """Six batches of the other origin; the second of a restored twin differs."""
        for n in range(6):
            self.origin.seal(3)
            self.restored.seal(3, salt=0 if n == 0 else 9)

    @rule(count=st.integers(1, 20), is_awaited=st.booleans())
    def append(self, count: int, is_awaited: bool) -> None:  # noqa: FBT001
        """Samples, waited for or not."""
        future = self.store.append_samples(TELEMETRY, samples(count, self.sampled + 1), awaited=is_awaited)
        self.queued.append(future)
        if is_awaited:
            done(future)
        self.values += range(self.sampled + 1, self.sampled + count + 1)
        self.sampled += count

    @rule(name=st.sampled_from("wxyz"), content=st.sampled_from("12"))
    def append_message(self, name: str, content: str) -> None:
        """A message, perhaps again, perhaps with other content."""
        outcome = done(self.store.append_message(OPERATIONAL, message(name, content)))
        if name not in self.contents:
            self.contents[name] = content
            assert outcome == AppendOutcome(len(self.contents), "applied")
            return
        same = self.contents[name] == content
        offset = list(self.contents).index(name) + 1
        assert outcome == AppendOutcome(offset, "noop_already_applied" if same else "conflicting_duplicate")

    @rule(numbers=st.lists(st.integers(0, 5), min_size=1, max_size=3))
    def put(self, numbers: list[int]) -> None:
        """A page with any batches of the other origin, in any order, perhaps again."""
        self.settle()  # which of two kinds of work joins the stream first is a matter of pace, not of the model
        fresh = [n for n in dict.fromkeys(numbers) if n not in self.received]
        result = self.origin.put(self.store, [self.origin.sealed[n] for n in numbers], max(numbers))
        assert (result.stored_facts, result.duplicate_facts) == (3 * len(fresh), 3 * (len(numbers) - len(fresh)))
        self.received.update(fresh)
        self.position = max(self.position, *numbers)
        for n in fresh:
            self.values += [3 * n + 1, 3 * n + 2, 3 * n + 3]

    @precondition(lambda self: self.received & {1, 2, 3, 4, 5})
    @rule(number=st.integers(1, 5))
    def put_fork(self, number: int) -> None:
        """A batch of the restored twin, where it contradicts what is held."""
        if not self.received & {number - 1, number, number + 1}:
            return  # far from everything held nobody can tell yet
        if number == 1 and not self.received & {1, 2}:
            return  # the twins still agree on what comes before
        position = PeerPosition(EPOCH, 99)
        future = self.store.put_batches("north", TELEMETRY, [self.restored.sealed[number]], [], position)
        assert isinstance(failed(future), ForkError)

    @rule(name=st.sampled_from(CONSUMERS), data=st.data(), is_cumulative=st.booleans())
    def confirm(self, name: str, data: st.DataObject, is_cumulative: bool) -> None:  # noqa: FBT001
        """A receipt for any range, perhaps beyond the log, by a consumer that registers with its first."""
        self.settle()
        done(self.store.register_consumer(name, "idmz", TELEMETRY))
        offsets = self.confirmed.setdefault(name, set())
        last = data.draw(st.integers(1, len(self.values) + 1))
        first = 1 if is_cumulative else data.draw(st.integers(1, last))
        future = self.store.confirm(name, last, None if is_cumulative else first)
        if last > len(self.values):
            assert isinstance(failed(future), ConfirmBeyondLog)
            return
        offsets.update(range(first, last + 1))
        assert done(future) == self.frontier(name)

    @rule(name=st.sampled_from(CONSUMERS))
    def remove(self, name: str) -> None:
        """A consumer is forgotten."""
        if self.confirmed.pop(name, None) is not None:
            done(self.store.remove_consumer(name, force=True, now=True))

    @rule()
    def reopen(self) -> None:
        """An orderly restart."""
        self.store.close()
        self.settle()
        self.store = self.open()
        self.check()

    @invariant()
    def agrees(self) -> None:
        """What can be known without waiting is right at every step."""
        for name, offsets in self.confirmed.items():
            consumer = self.store.consumer(name)
            assert consumer is not None
            assert consumer.frontier == self.frontier(name)
            beyond = {n for first, last in consumer.confirmed.ranges for n in range(first, last + 1)}
            assert beyond == {n for n in offsets if n > consumer.frontier}

    def frontier(self, name: str) -> int:
        offset = 0
        while offset + 1 in self.confirmed[name]:
            offset += 1
        return offset

    def check(self) -> None:
        """Everything in the file, fact by fact."""
        assert values_in(self.store) == self.values
        assert ids_in(self.store) == list(self.contents)
        chain_is_whole(self.store)
        assert {one.name for one in self.store.consumers()} == set(self.confirmed)
        known = self.store.peer_position("north", TELEMETRY)
        assert known == (PeerPosition(EPOCH, self.position) if self.received else None)

    def teardown(self) -> None:
        try:
            self.reopen()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)


StoreAgainstModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStoreAgainstModel: Callable[[], None] = StoreAgainstModel.TestCase
