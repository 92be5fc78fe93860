"""The consumer core, step by step: its effects, their order, and how each request ends. No store, no clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.lease import NO_LEASE, Lease, LeaseClaim
from agent.positions import LifeList, LogLives
from agent.replication.protocol.messages import (
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    FetchAnswer,
    FetchFacts,
    GetCursor,
    LogPosition,
    UnregisterConsumer,
)
from agent.replication.serving.admission import Caller
from agent.replication.serving.consumer_core import ConsumerCore
from agent.replication.serving.consumer_effects import (
    AnnounceLease,
    AwaitConfirm,
    CheckConfirm,
    Effect,
    FindConsumer,
    GetStreamState,
    HoldLease,
    NoteServed,
    Park,
    Parked,
    ReadPage,
    RegisterConsumer,
    ReportRestored,
    Resolve,
    StartConfirm,
    Steps,
    StreamState,
)
from agent.replication.serving.outcomes import Drop, DropReason, Outcome, Refuse, Reply, store_name_of
from agent.replication.serving.reading import PageRead
from tests.replication.consumers import Registered

STREAM, NAME, LIFE, OTHER = "facts.telemetry", "idmz.facts.telemetry", "a1" * 16, "b2" * 16
CORE = ConsumerCore(
    Caller("idmz", "one", b"12345678"), frozenset({STREAM}), store_name_of("plant-a", "plant-a", bytes.fromhex(LIFE))
)
PAGE = PageRead([(11, 20, 4)], [b"body" * 8], [], [], 20, 30)
EMPTY = PageRead([], [], [], [], 30, 30)
CONFIRMING: Any = object()
"""What a confirmation on its way is to the core."""
MEMORY = (FindConsumer, GetStreamState, Resolve)
"""Effects that change nothing: left out of what is compared."""


@dataclass
class Shell:
    """Answers effects from plain values, and records them."""

    consumer: Registered | None = field(default_factory=lambda: Registered("idmz", STREAM, 10, Lease(3, "one")))
    end_offset: int = 30
    now_ms: int = 0
    page: PageRead | Refuse = field(default_factory=lambda: PAGE)
    answers: dict[type[Effect[Any]], Callable[[Any], object]] = field(default_factory=dict)
    effects: list[Effect[Any]] = field(default_factory=list)

    @property
    def log(self) -> LogLives:
        """One life, which still writes."""
        return LogLives(LifeList([(bytes.fromhex(LIFE), 1)]), self.end_offset, bytes.fromhex(LIFE))

    def run(self, steps: Steps) -> Outcome:
        """Run until the core says how the request ends."""
        result: Any = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as over:
                outcome: Outcome = over.value
                return outcome
            self.effects.append(effect)
            answer = self.answers.get(type(effect))
            result = answer(effect) if answer else self._answer(effect)

    def _answer(self, effect: Effect[Any]) -> object:
        match effect:
            case FindConsumer():
                return self.consumer
            case GetStreamState():
                return StreamState(self.log, 0, self.now_ms)
            case RegisterConsumer():
                self.consumer = Registered(effect.node, effect.stream, 0)
                return self.consumer
            case Resolve():
                return tuple((position, self.log.resolve(position, lambda *_: False)) for position in effect.positions)
            case StartConfirm():
                return CONFIRMING
            case AwaitConfirm():
                return 20
            case ReadPage():
                return self.page
        return None

    @property
    def acts(self) -> list[Effect[Any]]:
        """The effects other than reads from memory, in order."""
        return [effect for effect in self.effects if not isinstance(effect, MEMORY)]

    @property
    def kinds(self) -> list[type]:
        """The kinds of these effects."""
        return [type(effect) for effect in self.acts]


def fetch(**fields: object) -> FetchFacts:
    """A fetch of idmz."""
    return FetchFacts(**{"consumer_name": NAME, "limit": 100, "lease": 3, **fields})


def answer_of(outcome: Outcome) -> FetchAnswer:
    """The page with which a fetch ended."""
    assert isinstance(outcome, Reply), outcome
    assert isinstance(outcome.answer, FetchAnswer)
    return outcome.answer


def at(offset: int, life: str = LIFE) -> LogPosition:
    """A position in the log."""
    return LogPosition(offset=offset, life=life)


CONFIRM = Confirm(last_offset=10, life=LIFE, first_offset=4)


def test_a_page_from_the_frontier_waits_for_the_confirmation_first() -> None:
    """Without a position the page begins at the frontier after the confirmation, so that must be durable before
    anything is read."""
    shell = Shell()
    shell.run(CORE.fetch(fetch(confirm=CONFIRM), 0))
    assert shell.kinds.index(AwaitConfirm) < shell.kinds.index(ReadPage)
    assert [act.plan.after_offset for act in shell.acts if isinstance(act, ReadPage)] == [20]


@pytest.mark.parametrize("page", [EMPTY, Refuse("store_unavailable", "damaged")])
def test_only_a_page_with_facts_goes_out_before_the_confirmation(page: PageRead | Refuse) -> None:
    """An answer without facts is not read ahead: the frontier in it is durable."""
    shell = Shell(page=page, now_ms=50)
    shell.run(CORE.fetch(fetch(after=at(30), confirm=CONFIRM), 0))
    assert AwaitConfirm in shell.kinds
    assert CheckConfirm not in shell.kinds


def test_from_its_first_lease_on_a_fetch_shows_that_and_not_that_it_asks() -> None:
    """If it claimed 0 again after the wait, the store would take the lease back from a newer instance."""
    leases = iter([Lease(4, "one"), Lease(5, "two")])
    shell = Shell(
        Registered("idmz", STREAM, 10, Lease(3, "two")),
        answers={HoldLease: lambda _: next(leases)},
    )
    shell.run(CORE.fetch(fetch(lease=0, confirm=CONFIRM, after=at(10)), 0))
    assert [act.claim for act in shell.acts if isinstance(act, HoldLease | StartConfirm)] == [
        LeaseClaim("one", 0),
        LeaseClaim("one", 4),
        LeaseClaim("one", 4),
    ]


def test_the_lease_is_checked_again_after_the_wait() -> None:
    """Another instance arrives while the fetch is parked: the store decides, and nothing is recorded before that."""

    def taken(_: Park) -> Parked:
        shell.consumer, shell.end_offset = Registered("idmz", STREAM, 10, Lease(4, "two")), 31
        return Parked(is_superseded=False, waited_ns=7_000)

    shell = Shell(answers={Park: taken, HoldLease: lambda _: Lease(4, "two")})
    outcome = shell.run(CORE.fetch(fetch(after=at(30), wait_ms=500), 0))
    assert [kind for kind in shell.kinds if kind in {Park, ReadPage, HoldLease, NoteServed}] == [
        *(Park, ReadPage, HoldLease, NoteServed)
    ]
    assert isinstance(outcome, Reply)
    assert outcome.waited_ns == 7_000


def test_a_fetch_that_lost_its_place_gets_no_answer() -> None:
    """Unless its lease has been taken, which the store then reports."""
    shell = Shell(answers={Park: lambda _: Parked(is_superseded=True, waited_ns=1)})
    outcome = shell.run(CORE.fetch(fetch(after=at(30), wait_ms=500), 0))
    assert outcome == Drop(DropReason.SUPERSEDED)
    assert shell.kinds == [Park]
    assert shell.acts[-1] == Park(NAME, "idmz", STREAM, 30, 500, "", b"12345678")


@pytest.mark.parametrize("after", [2, 3])
def test_a_claim_after_an_old_lease_gets_the_lease_in_force(after: int) -> None:
    """Nothing is confirmed, begun or read for a caller that claims the lease after one that is no longer in force."""
    shell = Shell(
        Registered("idmz", STREAM, 10, Lease(3, "two")),
        answers={HoldLease: lambda effect: Lease(4, effect.claim.holder)},
    )
    answer = answer_of(shell.run(CORE.fetch(fetch(lease=0, lease_after=after, confirm=CONFIRM), 0)))
    if after == 3:
        assert (answer.lease, answer.lease_in_force) == (4, None)
    else:
        assert (answer.lease_in_force, answer.more, answer.runs()) == (3, True, [])
        assert shell.kinds == []


@pytest.mark.parametrize("after", [at(31), at(10, OTHER), at(0, OTHER)])
def test_a_position_that_is_not_in_this_log_changes_nothing(after: LogPosition) -> None:
    """Nothing is registered, leased, confirmed or read; an incident names the peer, and it must name its trail."""
    shell = Shell(None)
    outcome = shell.run(CORE.fetch(fetch(stream=STREAM, after=after, confirm=CONFIRM), 0))
    assert isinstance(outcome, Refuse)
    assert outcome.code == "life_unknown"
    assert shell.kinds == [ReportRestored]


@pytest.mark.parametrize("name", ["enterprise.facts", "local.mes", "idmz", "idmz-2.facts", "plant-a.own"])
def test_a_zone_uses_only_names_that_begin_with_it(name: str) -> None:
    """The answer does not depend on whether a consumer of that name exists, in any operation."""
    for consumer in (None, Registered("idmz", STREAM, 0), Registered("enterprise", STREAM, 0)):
        for steps in (
            CORE.fetch(fetch(consumer_name=name, stream=STREAM), 0),
            CORE.confirm(ConfirmReceipt(consumer_name=name, offset=1, life=LIFE)),
            CORE.get_cursor(GetCursor(consumer_name=name)),
            CORE.unregister(UnregisterConsumer(consumer_name=name)),
        ):
            shell = Shell(consumer)
            outcome = shell.run(steps)
            assert isinstance(outcome, Refuse)
            assert (outcome.code, shell.kinds) == ("consumer_not_yours", [])


def test_a_confirmation_answers_with_a_durable_frontier() -> None:
    """ConfirmReceipt: the lease is checked; the range is passed whole; then it waits."""
    shell = Shell()
    request = ConfirmReceipt(consumer_name=NAME, offset=10, first_offset=4, life=LIFE, lease=3)
    outcome = shell.run(CORE.confirm(request))
    assert shell.acts == [
        StartConfirm(NAME, "idmz", CONFIRM, LeaseClaim("one", 3)),
        AwaitConfirm(CONFIRMING, "idmz"),
    ]
    assert isinstance(outcome, Reply)
    assert outcome.answer == ConfirmAnswer(store_zone="plant-a", life=LIFE, cursor_advanced_to=20, lease=3)


def test_a_confirmation_asks_the_store_about_its_lease_first() -> None:
    """If the caller does not hold the lease in force, the store decides before anything is confirmed."""
    shell = Shell(Registered("idmz", STREAM, 10, Lease(3, "two")), answers={HoldLease: lambda _: Lease(4, "one")})
    shell.run(CORE.confirm(ConfirmReceipt(consumer_name=NAME, offset=10, life=LIFE, lease=4)))
    assert shell.acts[0] == HoldLease(NAME, "idmz", LeaseClaim("one", 4))
    assert shell.kinds == [HoldLease, AnnounceLease, StartConfirm, AwaitConfirm]


@pytest.mark.parametrize(
    "held, epoch, is_asked",
    [
        (NO_LEASE, None, False),
        (NO_LEASE, 0, True),
        (Lease(2, "one"), 2, False),
        (Lease(2, "one"), 0, False),
        (Lease(3, "two"), 2, True),
        (Lease(3, "two"), None, True),
        (Lease(3, "two"), 4, True),
    ],
)
def test_the_store_is_asked_only_where_a_lease_would_change(held: Lease, epoch: int | None, *, is_asked: bool) -> None:
    """The holder is answered from memory; the store decides claims that would change the lease or fence the caller."""
    shell = Shell(Registered("idmz", STREAM, 10, held), answers={HoldLease: lambda _: held})
    shell.run(CORE.confirm(ConfirmReceipt(consumer_name=NAME, offset=10, life=LIFE, lease=epoch)))
    assert (HoldLease in shell.kinds) == is_asked


def test_a_cursor_is_returned_only_to_its_own_zone() -> None:
    """GetCursor answers from memory; another zone's consumer is refused without details."""
    shell = Shell()
    outcome = shell.run(CORE.get_cursor(GetCursor(consumer_name=NAME)))
    assert isinstance(outcome, Reply)
    assert outcome.answer == CursorAnswer(
        store_zone="plant-a", life=LIFE, consumer_name=NAME, stream=STREAM, frontier=10, end_offset=30
    )
    assert shell.kinds == []
    refused = Shell(Registered("enterprise", STREAM, 10)).run(CORE.get_cursor(GetCursor(consumer_name=NAME)))
    assert isinstance(refused, Refuse)
    assert refused.code == "consumer_not_yours"
