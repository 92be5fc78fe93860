"""Sender and receiver cores in simulation: hundreds of seeded schedules, and cores broken on purpose that must be
caught."""

import itertools
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from agent.pages import Hole, Page
from agent.positions import NOTHING_READ, Position
from agent.replication.protocol.messages import FetchFacts
from agent.replication.pulling.pull_events import (
    Append,
    Effect,
    Event,
    NoteKind,
    PageArrived,
    ReceiverSettings,
)
from agent.replication.pulling.receiver import Receiver
from agent.replication.serving.consumer_core import ConsumerCore
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import ReadPlan
from agent.replication.serving.reading import PageRead
from tests.replication.simulation.broken import (
    AcceptsAnyPage,
    AcceptsNewestOnly,
    ConfirmsTooEarly,
    NamesNoTrail,
    NeverRetries,
    SkipsRefusedPage,
)
from tests.replication.simulation.pair import Faults, Violation, World
from tests.sim import first_seed, scaled

SEEDS = scaled(20, 1000)
"""Schedules per fault."""

FAULTS: dict[str, Faults] = {
    "none": Faults(),
    "loss": Faults(loss=0.3),
    "duplicate": Faults(duplicate=0.4, delay_ms_max=200),
    "slow_network": Faults(delay_ms_max=15_000),
    "receiver_crash": Faults(receiver_crash_ms=4_000, append_ms_max=50),
    "sender_crash": Faults(sender_crash_ms=4_000),
    "link_cut": Faults(link_cut_ms=5_000),
    "slow_append": Faults(append_ms_max=3_000),
    "store_full": Faults(store_full_ms=10_000),
    "page_refused": Faults(page_refused=0.05),
    "sender_replaced": Faults(sender_replaced_ms=20_000, delay_ms_max=2_000),
    "retention_releases_unconfirmed": Faults(
        retention_releases_unconfirmed_ms=5_000, link_cut_ms=8_000, receiver_crash_ms=20_000, append_ms_max=500
    ),
    "batch_damaged": Faults(batch_damaged_ms=3_000, link_cut_ms=8_000, receiver_crash_ms=20_000, append_ms_max=500),
    "everything": Faults(
        loss=0.1,
        duplicate=0.1,
        delay_ms_max=5_000,
        receiver_crash_ms=15_000,
        sender_crash_ms=15_000,
        link_cut_ms=20_000,
        store_full_ms=30_000,
        append_ms_max=300,
        sender_replaced_ms=60_000,
        page_refused=0.01,
        retention_releases_unconfirmed_ms=30_000,
        batch_damaged_ms=20_000,
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("name", FAULTS)
def test_cores_keep_their_promises_under(name: str) -> None:
    """Under every fault: nothing is lost without a report, nothing duplicated or reordered, no confirmation before
    durability, and it converges."""
    first = first_seed()
    worlds_with_holes = 0
    for seed in range(first, first + SEEDS):
        world = World(seed, replace(FAULTS[name], injected={}))
        try:
            world.run()
        except Violation as error:
            error.add_note(f"fault {name}, SEED={seed}")
            raise
        assert any(log.end_offset for log in world.logs)
        worlds_with_holes += bool(world.holes)
    if name not in {"none", "slow_network", "slow_append"}:
        assert world.faults.injected, "the fault never bit"
    assert bool(worlds_with_holes) == (name in {"retention_releases_unconfirmed", "batch_damaged", "everything"})


class TrustingCore(ConsumerCore):
    """A core that takes every position for its own."""

    def _resolve(self, request: FetchFacts, _stream: str) -> Generator[Any, Any, Any]:
        named = [*(request.trail or []), *([request.after] if request.after else [])]
        yield from ()
        return named[-1].position if named else NOTHING_READ


class TrustingWorld(World):
    """A sender that takes every position for its own."""

    make_core = TrustingCore


class WaitsAtHoles(Receiver):
    """A receiver that takes a page with only a hole for an empty one."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        if isinstance(event, PageArrived) and event.page.first_offset:
            runs, holes = event.page.content  # type: ignore[misc]
            if len(runs) == len(holes):
                event = replace(event, page=replace(event.page, first_offset=0, last_offset=0))
        return super().handle(event, now_ms, jitter)


class SilentWorld(World):
    """A sender that leaves out holes without reporting them."""

    def read(self, plan: ReadPlan) -> Page:
        page = super().read(plan)
        return replace(page, batches=page.batches[:1], holes=())


class HastyWorld(World):
    """A sender that reports every hole it has read, also those after a batch that did not fit."""

    def read_page(self, plan: ReadPlan) -> PageRead | Refuse:
        found = super().read_page(plan)
        holes = [(one.first_offset, one.last_offset, one.reason) for one in self.read(plan).holes]
        return replace(found, holes=holes) if isinstance(found, PageRead) else found


class LyingWorld(World):
    """A sender that reports its last batch as gone although it is there."""

    def read(self, plan: ReadPlan) -> Page:
        page = super().read(plan)
        if page.batches:
            *batches, last = page.batches
            hole = Hole(last.first_offset, last.last_offset, "damaged")
            page = replace(page, batches=batches, holes=(*page.holes, hole))
        return page


class RottenTailWorld(World):
    """A sender whose newest batch is always damaged, so that some pages have only a hole."""

    def record(self) -> None:
        super().record()
        self.log.damaged.add(self.log.end_offset)


class ForgetfulWorld(World):
    """A receiver's store whose position stays at the last fact, not at the end of the page."""

    def read_by(self, effect: Append) -> tuple[Position, ...]:
        runs, holes = effect.page.content  # type: ignore[misc]
        ends = {last for _, last in runs} - {last for _, last, _ in holes}
        return tuple(one._replace(offset=max(ends)) for one in effect.page.lives[-1:] if ends)


WORLDS: dict[str, type[World]] = {
    "trusting_sender": TrustingWorld,
    "silent_sender": SilentWorld,
    "hasty_sender": HastyWorld,
    "lying_sender": LyingWorld,
    "rotten_tail": RottenTailWorld,
    "forgetful_store": ForgetfulWorld,
}
SHORT_PATIENCE = ReceiverSettings(wait_ms=100, answer_timeout_ms=100)


@pytest.mark.sim
@pytest.mark.parametrize(
    "broken, fault, settings",
    [
        (ConfirmsTooEarly, "slow_append", None),
        (AcceptsAnyPage, "slow_network", None),
        (SkipsRefusedPage, "page_refused", None),
        (SkipsRefusedPage, "store_full", None),
        (NeverRetries, "loss", None),
        (AcceptsNewestOnly, "endless_round_trip", SHORT_PATIENCE),
        (NamesNoTrail, "sender_replaced", None),
        (Receiver, "trusting_sender", None),
        (WaitsAtHoles, "rotten_tail", None),
        (AcceptsAnyPage, "silent_sender", None),
        (Receiver, "hasty_sender", None),
        (Receiver, "lying_sender", None),
        (Receiver, "forgetful_store", None),
    ],
)
def test_checkers_catch(broken: Callable[..., Receiver], fault: str, settings: ReceiverSettings | None) -> None:
    """A core broken on purpose is caught within the seeds of one run: this tests the checkers."""
    kind = WORLDS.get(fault, World)
    faults = {
        "endless_round_trip": Faults(delay_ms_max=60_000),
        "trusting_sender": FAULTS["sender_replaced"],
        "silent_sender": FAULTS["batch_damaged"],
        "hasty_sender": FAULTS["batch_damaged"],
        "lying_sender": FAULTS["none"],
        "rotten_tail": FAULTS["none"],
        "forgetful_store": Faults(retention_releases_unconfirmed_ms=1_000, receiver_crash_ms=3_000),
    }.get(fault) or FAULTS[fault]
    caught = 0
    for seed in range(SEEDS):
        try:
            kind(seed, replace(faults, injected={}), broken, settings).run()
        except Violation:
            caught += 1
    assert caught, f"{broken} passed {SEEDS} schedules"


@pytest.mark.sim
def test_a_page_that_holds_only_a_hole_moves_the_receiver_on() -> None:
    """With a damaged newest batch, the receiver reaches the end all the same, and so does the sender's frontier."""
    for seed in range(SEEDS):
        world = RottenTailWorld(seed, Faults(receiver_crash_ms=10_000, link_cut_ms=10_000))
        world.run()
        assert world.holes[world.log.life][-1][1] == world.log.end_offset


@pytest.mark.sim
@pytest.mark.parametrize("fault", ["retention_releases_unconfirmed", "batch_damaged"])
def test_an_unnamed_hole_is_never_skipped(fault: str) -> None:
    """A receiver whose peer does not report its holes stops before them, from the first fetch on, and stores nothing
    wrong."""
    stood_still = 0
    for seed in range(SEEDS):
        try:
            SilentWorld(seed, replace(FAULTS[fault], sender_replaced_ms=15_000, injected={})).run()
        except Violation as error:
            assert str(error).startswith(("converges", "page")), f"SEED={seed}: {error}"  # noqa: PT017
            stood_still += 1
    assert stood_still


@pytest.mark.sim
def test_each_loss_is_noted_once() -> None:
    """A lost peer is one line in the log, and one when it returns, however often it is asked in between."""
    world = World(7, Faults(link_cut_ms=10_000, loss=0.2))
    world.run()
    kinds = [note.kind for note in world.notes if note.kind in {NoteKind.PEER_LOST, NoteKind.PEER_RETURNED}]
    assert kinds
    assert all(first is not second for first, second in itertools.pairwise(kinds))
