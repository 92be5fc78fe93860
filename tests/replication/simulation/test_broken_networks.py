"""Each named fault bites: for each a core or a store broken on purpose, which the checkers of the simulation must
catch."""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Header
from agent.fact_store import store
from agent.fact_store.append import receive
from agent.fact_store.divergence import opening, reseal
from agent.fact_store.divergence.high_water import ReadHighWater, ServedHighWater
from agent.fact_store.integrity.damage_registry import DamageRegistry
from agent.fact_store.log.errors import ForkError
from agent.fact_store.log.held_ranges import Insert
from agent.fact_store.log.held_ranges import decide_insert as decide_held
from agent.lease import Lease, LeaseClaim
from agent.pages import Hole, Page
from agent.replication.protocol import codec
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import FetchFacts
from agent.replication.protocol.pull_events import ReceiverSettings
from agent.replication.pulling import anti_entropy
from agent.replication.pulling.anti_entropy import AntiEntropy
from agent.replication.pulling.receiver import Receiver
from agent.replication.serving import consumer_core, reading
from agent.replication.serving.admission import decide_fetch
from agent.replication.serving.consumer_effects import Effect, LookAtStream, Park, RecordServed
from agent.replication.serving.operations import context
from agent.replication.serving.operations.consumers import Consumers
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import Selection, select_page
from agent.replication.serving.reading import PageQuery, PageRead, read_page
from tests.replication.simulation import stepped
from tests.replication.simulation.broken import (
    BeginsAnewAtEachEpoch,
    ConfirmsTooEarly,
    NeverAsksAgain,
    SkipsRefusedPage,
    StaysOffline,
    TakesAnyPage,
    TakesNewestOnly,
)
from tests.replication.simulation.checkers import Violation
from tests.replication.simulation.faults import NAMED
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.replication.simulation.serving import WatchedConsumers, WatchedStore
from tests.sim import patient

SCHEDULES_MAX = 40
ENDLESS = ReceiverSettings(backoff_ms_min=200_000, backoff_ms_max=10**9)
"""A back-off without a sensible end. It does no harm as long as late answers are taken, which is what must be seen."""

Break = Callable[[pytest.MonkeyPatch], None]


def nothing(_: pytest.MonkeyPatch) -> None:
    """What is broken is the receiver, or how patient it is."""


def forgets_what_it_has_sent(patch: pytest.MonkeyPatch) -> None:
    """A sender that goes on behind what it has sent, as if sent were received."""
    sent: dict[tuple[int, str], int] = {}
    carry_out = Consumers._carry_out

    async def from_there(self: Consumers, effect: Effect[Any]) -> Any:
        match effect:
            case LookAtStream(_, zone):
                patch.setattr(consumer_core, "decide_fetch", partial(decide, (id(self), zone)))
            case Park(_, zone):
                effect = replace(effect, after_offset=max(effect.after_offset, sent.get((id(self), zone), 0)))
            case RecordServed(_, zone):
                sent[id(self), zone] = effect.last_offset
        return await carry_out(self, effect)

    def decide(key: tuple[int, str], request: FetchFacts, stream: str, position: int, *rest: int) -> object:
        return decide_fetch(request, stream, max(position, sent.get(key, 0)), *rest)

    patch.setattr(Consumers, "_carry_out", from_there)


def answers_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    """A store that says durable before it is."""
    perform = stepped.SteppedWriter._perform

    def performed(self: stepped.SteppedWriter, *arguments: Any) -> Any:
        self._answer(perform(self, *arguments))
        return []

    patch.setattr(stepped.SteppedWriter, "_perform", performed)


def keeps_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """A store that does not notice that it is an old copy of itself."""
    patch.setattr(opening, "restored_because", lambda *_: None)
    patch.setattr(consumer_core, "check_offsets", lambda *_: None)


def compares_nothing_it_is_shown(patch: pytest.MonkeyPatch) -> None:
    """A store that believes itself as long as offsets can be its own."""
    patch.setattr(WatchedStore, "contradiction", lambda *_: None, raising=False)
    patch.setattr(WatchedConsumers, "why_not_served", lambda *_: None, raising=False)


def forgets_what_was_taken_of_it(patch: pytest.MonkeyPatch) -> None:
    """A store that compares its own facts alone, though its log holds those of others in the order in which they
    came."""
    compares = store.find_contradiction
    patch.setattr(ServedHighWater, "offset", lambda *_: sys.maxsize)
    patch.setattr(
        store,
        "find_contradiction",
        lambda reader, catalog, stream, _, held: compares(reader, catalog, stream, None, held),
    )


def forgets_whom_it_handed_what(patch: pytest.MonkeyPatch) -> None:
    """A store that compares what is there, and is content where nothing is."""
    patch.setattr(ServedHighWater, "offset", lambda *_: sys.maxsize)


def remembers_no_page(patch: pytest.MonkeyPatch) -> None:
    """A store that believes every page to have been its own."""
    patch.setattr(ServedHighWater, "is_recent_page_end", lambda *_: True)


def remembers_handing_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """A store for which, once it was opened again, everybody may have been handed all that is there."""
    patch.setattr(opening, "_close_served_rows", lambda _: None)


def takes_released_facts_for_equal(patch: pytest.MonkeyPatch) -> None:
    """A receiver that calls a duplicate what it can no longer compare."""
    patch.setattr(receive, "_note_released", lambda *_, **__: None)


def takes_all_for_unseen(patch: pytest.MonkeyPatch) -> None:
    """A store that gives a new name to facts which others have read."""
    patch.setattr(ReadHighWater, "freeze", lambda _: {})
    patch.setattr(reseal, "_confirmed", lambda *_: [0])


def stands_at_every_fork(patch: pytest.MonkeyPatch) -> None:
    """A store that refuses what nothing can mend any more, and all behind it."""

    def refuse(_: object, header: Header) -> None:
        raise ForkError(f"{header.first_sequence} to {header.last_sequence}")

    patch.setattr(receive, "_refuse", refuse)


def reads_the_clock_on_the_wall(patch: pytest.MonkeyPatch) -> None:
    """A receiver whose patience is counted by a clock that people set."""
    patch.setattr(Node, "receiver_now_ms", lambda self: self.world.now_ms + self.wall_jump_ms)


def keeps_the_newest_only(patch: pytest.MonkeyPatch) -> None:
    """A sender that lets go of what is old when its reader is slow, without a word."""

    def newest(store: Any, asked: PageQuery) -> PageRead | Refuse:
        after_offset = max(asked.plan.after_offset, store.end_offset(asked.plan.stream) - 30)
        return read_page(store, replace(asked, plan=replace(asked.plan, after_offset=after_offset)))

    patch.setattr(context, "read_page", newest)


def does_not_fence(patch: pytest.MonkeyPatch) -> None:
    """A sender that gives leases and compares none."""
    confirm = WatchedConsumers.confirm

    def held(lease: Lease, shown: LeaseClaim) -> Lease | None:
        return None if shown.epoch == 0 else lease

    def hold_lease(self: WatchedConsumers, consumer: str, shown: LeaseClaim) -> Any:
        return watched(self, consumer, LeaseClaim(shown.holder, 0))

    def confirmed(self: WatchedConsumers, consumer: str, last_offset: int, *_: object, **__: object) -> Any:
        return confirm(self, consumer, last_offset)

    watched = WatchedConsumers.hold_lease
    patch.setattr(consumer_core, "decide_lease", held)
    patch.setattr(WatchedConsumers, "hold_lease", hold_lease)
    patch.setattr(WatchedConsumers, "confirm", confirmed)


def refuses_a_newer_minor(patch: pytest.MonkeyPatch) -> None:
    """A node that talks to its own version alone."""

    def only_ours(head: Any, operation: str) -> None:
        if head.version != codec.VERSION:
            raise MalformedMessage(f"version {head.version}", "unsupported_version", operation)

    patch.setattr(codec, "_check_version", only_ours)


def reads_any_major(patch: pytest.MonkeyPatch) -> None:
    """A node that takes for its own what another major version says."""
    patch.setattr(codec, "_check_version", lambda *_: None)


def repairs_no_damage(patch: pytest.MonkeyPatch) -> None:
    """A node that finds what its disk has changed and leaves it so."""

    async def found_and_left(*_: object) -> None:
        """Nothing is fetched."""

    patch.setattr(AntiEntropy, "_fetch_damaged", found_and_left)


def misses_no_gap(patch: pytest.MonkeyPatch) -> None:
    """A node to which it is all the same that a peer has what it was once told was gone."""
    patch.setattr(anti_entropy, "missing", lambda *_, **__: [])


def knows_damage_by_where_it_begins(patch: pytest.MonkeyPatch) -> None:
    """A store that does not see a hole grow."""

    def is_reported(self: DamageRegistry, place: Any) -> bool:
        """By stream and first offset."""
        return any(one[:2] == place[:2] for one in self._reported)

    patch.setattr(DamageRegistry, "_is_reported", is_reported)


def passes_over_holes(patch: pytest.MonkeyPatch) -> None:
    """A sender that leaves out what is gone and says nothing."""
    patch.setattr(reading, "select_page", lambda plan, page, *rest: select_page(plan, replace(page, holes=()), *rest))


def calls_good_batches_gone(patch: pytest.MonkeyPatch) -> None:
    """A sender that names its last batch as damaged, which is there."""

    def lying(plan: Any, page: Page, *rest: Any) -> Selection | Refuse:
        if page.batches:
            *batches, last = page.batches
            hole = Hole(max(last.first_offset, plan.after_offset + 1), last.last_offset, "damaged")
            page = replace(page, batches=batches, holes=(*page.holes, hole))
        return select_page(plan, page, *rest)

    patch.setattr(reading, "select_page", lying)


def sends_everything_back(patch: pytest.MonkeyPatch) -> None:
    """A sender that does not ask whose facts they are."""
    patch.setattr(reading, "select_page", lambda plan, page, _, *rest: select_page(plan, page, "nobody", *rest))


def stores_what_it_holds(patch: pytest.MonkeyPatch) -> None:
    """A store that takes each batch for a new one."""

    def fresh(ranges: Any, offered: Any) -> Any:
        decision = decide_held(ranges, offered)
        return decision if isinstance(decision, Insert) else Insert(ranges)

    patch.setattr(receive, "decide_insert", fresh)


@dataclass(frozen=True)
class Broken:
    """What is broken, under which fault it must show, where, and which checkers may see it first."""

    fault: str
    topology: str
    checkers: tuple[str, ...]
    breaks: Break = nothing
    receiver: type[Receiver] = Receiver
    settings: ReceiverSettings | None = None

    def __str__(self) -> str:
        names = [one.__name__ for one in (self.breaks, self.receiver) if one not in {nothing, Receiver}]
        return "-".join([self.fault, self.topology, *names])


BROKEN = [
    Broken("loss", "chain_2", ("converges",), receiver=NeverAsksAgain),
    Broken("duplicate", "chain_3", ("position", "lost"), receiver=TakesAnyPage),
    Broken("reorder", "chain_3", ("position", "lost"), receiver=TakesAnyPage),
    Broken("delay", "chain_3", ("converges",), receiver=TakesNewestOnly, settings=ENDLESS),
    Broken("partition_one_way", "chain_2", ("converges",), forgets_what_it_has_sent),
    Broken("partition_two_way", "chain_3", ("converges",), receiver=StaysOffline),
    Broken("crash", "chain_3", ("frontier",), receiver=ConfirmsTooEarly),
    Broken("torn_store", "chain_2", ("acknowledged",), answers_before_its_commit),
    Broken("full_disk", "chain_2", ("frontier", "lost"), receiver=SkipsRefusedPage),
    Broken("restored_image", "chain_2", ("chain", "converges", "lost", "frontier"), keeps_its_epoch),
    Broken("restored_grown", "chain_2", ("converges", "lost"), compares_nothing_it_is_shown),
    Broken("restored_grown", "plants", ("converges", "lost"), compares_nothing_it_is_shown),
    Broken("restored_grown", "ring", ("converges", "lost"), forgets_what_was_taken_of_it),
    Broken("restored_grown", "diamond", ("resealed", "once"), takes_all_for_unseen),
    Broken("restored_grown", "chain_2", ("converges",), stands_at_every_fork),
    Broken("restored_grown_full", "chain_3", ("lost",), forgets_whom_it_handed_what),
    Broken("restored_grown_restarted", "chain_3", ("lost",), remembers_handing_in_memory_only),
    Broken("restored_grown_restarted", "plants", ("lost",), takes_released_facts_for_equal),
    Broken("clock_jump", "plants", ("converges",), reads_the_clock_on_the_wall),
    Broken("slow_consumer", "chain_3", ("converges",), keeps_the_newest_only),
    Broken("fenced_twin", "chain_2", ("fenced",), does_not_fence),
    Broken("serving_twin", "chain_2", ("position",), receiver=BeginsAnewAtEachEpoch),
    Broken("serving_twin", "ring", ("converges", "lost", "once", "chain"), compares_nothing_it_is_shown),
    Broken("serving_twin_diverged", "ring", ("lost", "order"), remembers_no_page),
    Broken("version_minor", "chain_2", ("converges",), refuses_a_newer_minor),
    Broken("version_major", "chain_2", ("version",), reads_any_major),
    Broken("retention", "chain_2", ("lost", "acknowledged"), passes_over_holes, TakesAnyPage),
    Broken("retention", "chain_2", ("converges",), passes_over_holes),
    Broken("damage", "chain_2", ("lost", "acknowledged", "converges"), passes_over_holes),
    Broken("anti_entropy", "chain_3", ("converges",), repairs_no_damage),
    Broken("anti_entropy", "chain_3", ("converges",), misses_no_gap),
    Broken("anti_entropy", "both_ways", ("converges",), knows_damage_by_where_it_begins),
    Broken("none", "chain_2", ("holes",), calls_good_batches_gone),
    Broken("none", "both_ways", ("echo",), sends_everything_back),
    Broken("none", "diamond", ("once", "store"), stores_what_it_holds),
]


@pytest.fixture(autouse=True)
def _quiet(quiet: None) -> Iterator[None]:  # noqa: ARG001  asked for by name
    """Always."""
    yield
    gc.collect()


@patient
@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_each_broken_part_is_caught(broken: Broken, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken is caught within forty schedules, by the checker that is there for it."""
    broken.breaks(monkeypatch)
    for seed in range(SCHEDULES_MAX):
        folder = memory / str(seed)
        world = World(seed, TOPOLOGIES[broken.topology], NAMED[broken.fault], folder, broken.receiver, broken.settings)
        try:
            world.run()
        except Violation as error:
            print(f"{broken}: schedule {seed + 1}: {error}")
            assert str(error).startswith(broken.checkers), error  # noqa: PT017
            return
    pytest.fail(f"{broken} passed {SCHEDULES_MAX} schedules")


def test_every_fault_catches_a_broken_part() -> None:
    """A fault that nothing is ever caught by may as well not be injected."""
    assert {one.fault for one in BROKEN} >= set(NAMED) - {"everything"}
