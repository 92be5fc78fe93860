"""Sender and receiver cores in simulation: hundreds of seeded schedules, and cores broken on purpose that must be caught."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.replication.page import Refuse
from agent.replication.protocol import FetchFacts
from agent.replication.receiver import PAGES_AHEAD_MAX, Receiver
from agent.replication.receiver_words import (
    Appended,
    AppendFailed,
    Effect,
    Event,
    Fetch,
    NoteKind,
    PageArrived,
    Settings,
)
from tests.replication.simulation import Faults, Violation, World
from tests.sim import first_seed, scaled

SEEDS = scaled(40, 1000)
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
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("name", FAULTS)
def test_cores_keep_their_promises_under(name: str) -> None:
    """Whatever the fault: nothing lost, doubled or reordered, no confirmation ahead of the disk, and it converges."""
    first = first_seed(default=0)
    for seed in range(first, first + SEEDS):
        world = World(seed, replace(FAULTS[name], injected={}))
        try:
            world.run()
        except Violation as error:
            error.add_note(f"fault {name}, SEED={seed}")
            raise
        assert any(log.end_offset for log in world.logs)
    if name not in {"none", "slow_network", "slow_append"}:
        assert world.faults.injected, "the fault never bit"


class ConfirmsTooEarly(Receiver):
    """Confirms what it has accepted, not what is durable."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        effects = super().handle(event, now_ms, jitter)
        accepted = self._accepted_offset or 0
        return [
            replace(effect, confirm_offset=accepted) if isinstance(effect, Fetch) and accepted else effect
            for effect in effects
        ]


class TakesAnyPage(Receiver):
    """Takes whatever arrives, wherever it starts."""

    def _fits(self, page: object, *, is_newest: bool) -> bool:  # noqa: ARG002
        return len(self._read_ahead) < PAGES_AHEAD_MAX


class TakesNewestOnly(Receiver):
    """Throws away every answer but the one to its newest request."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        if isinstance(event, PageArrived) and (self._open is None or event.fetch_id != self._open.fetch_id):
            return []
        return super().handle(event, now_ms, jitter)


class SkipsRefusedPage(Receiver):
    """Goes on behind a page that the store refused."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        return super().handle(Appended() if isinstance(event, AppendFailed) else event, now_ms, jitter)


class ForgetsEpoch(Receiver):
    """Does not say which life of the peer's store its offsets belong to."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        effects = super().handle(event, now_ms, jitter)
        return [replace(effect, epoch=None) if isinstance(effect, Fetch) else effect for effect in effects]


class NeverAsksAgain(Receiver):
    """Waits for ever for an answer that was lost."""

    @property
    def deadline_ms(self) -> int | None:
        return None


class TrustingWorld(World):
    """A sender that does not compare epochs and offsets."""

    def check_offsets(self, request: FetchFacts) -> Refuse | None:  # noqa: ARG002
        return None


SHORT_PATIENCE = Settings(wait_ms=100, answer_timeout_ms=100)


@pytest.mark.sim
@pytest.mark.parametrize(
    "broken, fault, settings",
    [
        (ConfirmsTooEarly, "slow_append", None),
        (TakesAnyPage, "slow_network", None),
        (SkipsRefusedPage, "page_refused", None),
        (SkipsRefusedPage, "store_full", None),
        (NeverAsksAgain, "loss", None),
        (TakesNewestOnly, "endless_round_trip", SHORT_PATIENCE),
        (ForgetsEpoch, "trusting_sender", None),
    ],
)
def test_checkers_catch(broken: Callable[..., Receiver], fault: str, settings: Settings | None) -> None:
    """A core broken on purpose is caught within the seeds of one run: the test of the test."""
    kind = TrustingWorld if fault == "trusting_sender" else World
    faults = {
        "endless_round_trip": Faults(delay_ms_max=60_000),
        "trusting_sender": FAULTS["sender_replaced"],
    }.get(fault) or FAULTS[fault]
    caught = 0
    for seed in range(SEEDS):
        try:
            kind(seed, replace(faults, injected={}), broken, settings).run()
        except Violation:
            caught += 1
    assert caught, f"{broken} passed {SEEDS} schedules"


@pytest.mark.sim
def test_each_loss_is_noted_once() -> None:
    """A peer that goes is one line in the log, and one when it returns, however often it is asked in between."""
    world = World(7, Faults(link_cut_ms=10_000, loss=0.2))
    world.run()
    kinds = [note.kind for note in world.notes if note.kind in {NoteKind.PEER_LOST, NoteKind.PEER_RETURNED}]
    assert kinds
    assert all(first is not second for first, second in itertools.pairwise(kinds))
