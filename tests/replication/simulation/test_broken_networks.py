"""For each named fault there is a core or a store, broken on purpose, that the checkers of the simulation must
catch."""

import gc
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Header
from agent.fact_store import FactStore
from agent.fact_store.append import CommitGroup, receive
from agent.fact_store.core.errors import FactsRefused
from agent.fact_store.core.held_ranges import Insert
from agent.fact_store.core.held_ranges import decide_insert as decide_held
from agent.fact_store.integrity.damage_registry import DamageRegistry
from agent.fact_store.sqlite import recovery, transaction
from agent.fact_store.writer import Committer
from agent.lease import Lease, LeaseClaim
from agent.pages import Hole, Page
from agent.positions import UNKNOWN, LogLives, Position, Resolved
from agent.replication.protocol import codec
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import FetchFacts
from agent.replication.pulling.comparing import differences
from agent.replication.pulling.comparing.repair import Repair
from agent.replication.pulling.message_judge import MessageJudge
from agent.replication.pulling.page_judge import PageJudge, TrustPolicy
from agent.replication.pulling.receiving.pull_events import ReceiverSettings
from agent.replication.pulling.receiving.receiver import Receiver
from agent.replication.pulling.shared_zones import SharedZones
from agent.replication.serving import reading
from agent.replication.serving.admission import Caller
from agent.replication.serving.operations import consumers, context
from agent.replication.serving.operations.consumers import Consumers
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import HeldThere, Selection, select_page
from agent.replication.serving.reading import PageQuery, PageRead, read_page
from agent.signing import messages
from tests.replication.simulation import node, stepped
from tests.replication.simulation.broken import (
    AcceptsAnyPage,
    AcceptsNewestOnly,
    ConfirmsTooEarly,
    CountsFacts,
    NamesNoTrail,
    NeverRetries,
    SkipsRefusedPage,
    StaysOffline,
)
from tests.replication.simulation.checkers import Violation
from tests.replication.simulation.faults import NAMED
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.replication.simulation.serving import WatchedConsumers
from tests.replication.simulation.values import ValueJudge
from tests.sim import first_seed, patient, scaled

pytestmark = pytest.mark.usefixtures("quiet")
SCHEDULES_MAX = 40
BY_VALUES = "value "
ENDLESS = ReceiverSettings(backoff_ms_min=200_000, backoff_ms_max=10**9)
OFTEN_EMPTY = ReceiverSettings(wait_ms=2_000)
"""A back-off that practically never ends. It does no harm as long as late answers are accepted."""

Break = Callable[[pytest.MonkeyPatch], None]


def no_change(_: pytest.MonkeyPatch) -> None:
    """Nothing: the receiver or its settings are broken instead."""


def server_continues_after_what_it_sent(patch: pytest.MonkeyPatch) -> None:
    """A server that treats sent facts as received."""
    sent: dict[tuple[int, str], int] = {}
    read_when_due = Consumers._read_when_due

    async def from_there(
        self: Consumers, caller: Caller, request: FetchFacts, stream: str, position: int, until_ms: int
    ) -> Any:
        place = id(self), caller.node
        result = await read_when_due(self, caller, request, stream, max(position, sent.get(place, 0)), until_ms)
        if isinstance(result[0], PageRead):
            sent[place] = result[0].last_offset
        return result

    patch.setattr(Consumers, "_read_when_due", from_there)


def store_answers_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    """A store that answers as durable before the commit."""
    perform, commit = Committer._perform, stepped.SteppedWriter._commit

    def committed(self: stepped.SteppedWriter, group: CommitGroup) -> None:
        def performed(*arguments: Any) -> list[Any]:
            self._answer(perform(self.committer, *arguments))
            return []

        self.committer._perform = performed  # type: ignore[method-assign]
        commit(self, group)

    patch.setattr(stepped.SteppedWriter, "_commit", committed)


def store_has_one_life(patch: pytest.MonkeyPatch) -> None:
    """A store that goes on in the life of the copy from which it was restored."""
    for module in (recovery, transaction):
        patch.setattr(module, "draw_life", lambda *_: bytes(15) + b"1")


def server_takes_any_position(patch: pytest.MonkeyPatch) -> None:
    """A server that compares only the store's own facts, and not which copy of its log was read."""
    patch.setattr(LogLives, "resolve", lambda _, position, *__: Resolved("exact", position.offset))


def lives_have_no_end(patch: pytest.MonkeyPatch) -> None:
    """A store in which a position of an earlier life is valid up to the end of the log."""

    def resolve(log: LogLives, position: Position, *_: object) -> Resolved:
        is_newest = log.newest is not None and log.newest[0] == position.life
        is_known = is_newest or log.rows.first_offset(position.life) is not None
        return Resolved("exact", min(position.offset, log.end_offset)) if is_known else UNKNOWN

    patch.setattr(LogLives, "resolve", resolve)


def every_fork_blocks(patch: pytest.MonkeyPatch) -> None:
    """A receiver that refuses an old fork for good, and everything after it."""

    def refuse(_: object, header: Header) -> None:
        raise FactsRefused(f"{header.first_sequence} to {header.last_sequence}", "")

    patch.setattr(receive, "_add_range", refuse)


def receiver_uses_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """A receiver whose time-outs follow the wall clock."""
    patch.setattr(Node, "receiver_now_ms", lambda self: self.world.now_ms + self.wall_jump_ms)


def server_skips_old_facts(patch: pytest.MonkeyPatch) -> None:
    """A server that skips old facts for a slow reader, unreported."""

    def newest(store: Any, asked: PageQuery) -> PageRead | Refuse:
        after_offset = max(asked.plan.after_offset, store.end_offset(asked.plan.stream) - 30)
        return read_page(store, replace(asked, plan=asked.plan._replace(after_offset=after_offset)))

    patch.setattr(context, "read_page", newest)


def server_fences_no_instance(patch: pytest.MonkeyPatch) -> None:
    """A server that grants leases and compares none."""
    confirm = WatchedConsumers.confirm

    def held(lease: Lease, shown: LeaseClaim) -> Lease | None:
        return None if shown.epoch == 0 else lease

    def hold_lease(self: WatchedConsumers, consumer: str, shown: LeaseClaim) -> Any:
        return watched(self, consumer, LeaseClaim(shown.holder, 0))

    def confirmed(self: WatchedConsumers, *named: Any, claim: object = None, **of_log: Any) -> Any:  # noqa: ARG001
        return confirm(self, *named, **of_log)

    watched = WatchedConsumers.hold_lease
    patch.setattr(consumers, "decide_lease", held)
    patch.setattr(WatchedConsumers, "hold_lease", hold_lease)
    patch.setattr(WatchedConsumers, "confirm", confirmed)


def refuses_a_newer_minor(patch: pytest.MonkeyPatch) -> None:
    """A node that accepts only its own version."""

    def only_ours(head: Any, operation: str) -> None:
        if head.version != codec.VERSION:
            raise MalformedMessage(f"version {head.version}", "unsupported_version", operation)

    patch.setattr(codec, "_check_version", only_ours)


def accepts_any_major(patch: pytest.MonkeyPatch) -> None:
    """A node that accepts messages of another major version."""
    patch.setattr(codec, "_check_version", lambda *_: None)


def repairs_no_damage(patch: pytest.MonkeyPatch) -> None:
    """A node that finds damage and does not repair it."""

    async def found_and_left(*_: object) -> None:
        """Fetch nothing."""

    patch.setattr(Repair, "_fetch_damaged", found_and_left)


def repairs_no_gap(patch: pytest.MonkeyPatch) -> None:
    """A node that does not fetch facts that were reported as gone and are there again."""
    patch.setattr(differences, "missing", lambda *_, **__: [])


def damage_is_known_by_its_start(patch: pytest.MonkeyPatch) -> None:
    """A store that does not notice that a hole grows."""

    def is_reported(self: DamageRegistry, place: Any) -> bool:
        """Whether it is reported, by stream and first offset."""
        return any(reported[:2] == place[:2] for reported in self._reported)

    patch.setattr(DamageRegistry, "_is_reported", is_reported)


def server_reports_no_hole(patch: pytest.MonkeyPatch) -> None:
    """A server that leaves out holes without reporting them."""
    patch.setattr(reading, "select_page", lambda plan, page, *rest: select_page(plan, replace(page, holes=()), *rest))


def server_reports_good_batches_as_gone(patch: pytest.MonkeyPatch) -> None:
    """A server that reports its last batch as damaged although it is intact."""

    def lying(plan: Any, page: Page, *rest: Any) -> Selection | Refuse:
        if page.batches:
            *batches, last = page.batches
            hole = Hole(max(last.first_offset, plan.after_offset + 1), last.last_offset, "damaged")
            page = replace(page, batches=batches, holes=(*page.holes, hole))
        return select_page(plan, page, *rest)

    patch.setattr(reading, "select_page", lying)


def accepts_unsigned_facts(patch: pytest.MonkeyPatch) -> None:
    """A node that demands no signature."""

    def judge(store: FactStore, zones: Iterable[str]) -> PageJudge:
        return PageJudge(store, TrustPolicy(rules=dict.fromkeys(zones, "off")))

    patch.setattr(node, "judge_of", judge)


def accepts_unsigned_answers(patch: pytest.MonkeyPatch) -> None:
    """A node that accepts every answer as its peer's."""
    patch.setattr(MessageJudge, "refuses_answer", lambda *_: None)


def proof_counts_for_any_request(patch: pytest.MonkeyPatch) -> None:
    """Signatures of answers that are bound to the zones, but not to the request."""
    unbound = {"instance": "", "correlation": b""}
    covered = messages._covered
    patch.setattr(messages, "_covered", lambda mark, place, asked: covered(mark, place._replace(**unbound), asked))


def server_echoes(patch: pytest.MonkeyPatch) -> None:
    """A server that sends a zone's own facts back to it."""
    patch.setattr(reading, "select_page", lambda plan, page, _, *rest: select_page(plan, page, HeldThere(), *rest))


def server_proves_nothing(patch: pytest.MonkeyPatch) -> None:
    """A server that leaves out what lies in the named ranges, whatever batches these are."""

    def unproven(*arguments: Any) -> Selection | Refuse:
        chosen = select_page(*arguments)
        return replace(chosen, held_runs=()) if isinstance(chosen, Selection) else chosen

    patch.setattr(reading, "select_page", unproven)


def reader_believes_what_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """A reader that compares no digest of what was left out."""
    patch.setattr(SharedZones, "find_unproven", lambda *_, **__: "")


def store_inserts_duplicates(patch: pytest.MonkeyPatch) -> None:
    """A store that treats each batch as a new one."""

    def fresh(ranges: Any, offered: Any, batch_at: Any) -> Any:
        decision = decide_held(ranges, offered, batch_at)
        return decision if isinstance(decision, Insert) else Insert(ranges, is_start=False)

    patch.setattr(receive, "decide_insert", fresh)


@dataclass(frozen=True)
class Broken:
    """A broken part, the fault and topology that reveal it, and the checkers that may report it first."""

    fault: str
    topology: str
    checkers: tuple[str, ...]
    breaks: Break = no_change
    receiver: type[Receiver] = Receiver
    settings: ReceiverSettings | None = None

    @property
    def is_judged_by_values(self) -> bool:
        """Whether only the judge by values sees it."""
        return self.checkers[0].startswith(BY_VALUES)

    def __str__(self) -> str:
        names = [defect.__name__ for defect in (self.breaks, self.receiver) if defect not in {no_change, Receiver}]
        return "-".join([self.fault, self.topology, *names])


BROKEN = [
    Broken("loss", "chain_2", ("converges",), receiver=NeverRetries),
    Broken("duplicate", "chain_3", ("skipped", "lost", "converges"), receiver=CountsFacts),
    Broken("reorder", "chain_3", ("skipped", "lost", "converges"), receiver=CountsFacts),
    Broken("delay", "chain_3", ("converges",), receiver=AcceptsNewestOnly, settings=ENDLESS),
    Broken("partition_one_way", "chain_2", ("converges",), server_continues_after_what_it_sent),
    Broken("partition_two_way", "chain_3", ("converges",), receiver=StaysOffline),
    Broken("crash", "chain_3", ("frontier",), receiver=ConfirmsTooEarly),
    Broken("torn_store", "chain_2", ("acknowledged",), store_answers_before_its_commit),
    Broken("full_disk", "chain_2", ("frontier", "lost"), receiver=SkipsRefusedPage),
    Broken("restored_image", "chain_2", ("chain", "converges", "lost", "once", "refused"), store_has_one_life),
    Broken("restored_grown", "plants", ("converges", "lost", "skipped"), server_takes_any_position),
    Broken("restored_grown", "ring", ("converges", "lost", "skipped"), server_takes_any_position),
    Broken("resumed_memory", "chain_2", ("converges",), every_fork_blocks),
    Broken("restored_grown_full", "two_readers", ("converges", "lost", "skipped"), server_takes_any_position),
    Broken("restored_grown_restarted", "chain_3", ("lost", "skipped"), lives_have_no_end),
    Broken("clock_jump", "plants", ("converges",), receiver_uses_the_wall_clock, settings=OFTEN_EMPTY),
    Broken("slow_consumer", "chain_3", ("converges",), server_skips_old_facts),
    Broken("fenced_twin", "chain_2", ("fenced",), server_fences_no_instance),
    Broken("serving_twin", "ring", ("converges", "lost", "once", "chain", "skipped"), server_takes_any_position),
    Broken("restored_whole", "two_readers", ("chain", "converges", "lost", "once", "refused"), store_has_one_life),
    Broken("serving_twin_diverged", "ring", ("skipped", "lost", "order", "converges"), server_takes_any_position),
    Broken("serving_twin_relay", "site", ("skipped",), server_takes_any_position),
    Broken("taken_over_relay", "chain_3", ("forged",), accepts_unsigned_facts),
    Broken("taken_over_relay", "two_readers", ("forged",), accepts_unsigned_facts),
    Broken("taken_over_broker", "chain_2", ("proven",), accepts_unsigned_answers),
    Broken("taken_over_broker", "both_ways", ("proven",), proof_counts_for_any_request),
    Broken("version_minor", "chain_2", ("converges",), refuses_a_newer_minor),
    Broken("version_major", "chain_2", ("version",), accepts_any_major),
    Broken("retention", "chain_2", ("converges", "lost", "skipped"), server_reports_no_hole, AcceptsAnyPage),
    Broken("retention", "chain_2", ("converges",), server_reports_no_hole),
    Broken("restored_grown", "chain_2", ("converges",), receiver=NamesNoTrail),
    Broken("wiped", "both_ways", ("converges: not within 180000 ms: home",), repairs_no_gap),
    Broken("log_lost", "chain_2", ("chain", "converges", "lost", "once", "refused"), store_has_one_life),
    Broken("damage", "chain_2", ("lost", "acknowledged", "converges"), server_reports_no_hole),
    Broken("anti_entropy", "chain_3", ("converges",), repairs_no_damage),
    Broken("anti_entropy", "chain_3", ("converges",), repairs_no_gap),
    Broken("anti_entropy", "both_ways", ("converges",), damage_is_known_by_its_start),
    Broken("none", "chain_2", ("holes",), server_reports_good_batches_as_gone),
    Broken("none", "both_ways", ("echo",), server_echoes),
    Broken("restored_image", "both_ways", ("converges: not within 180000 ms: home",), repairs_no_gap),
    Broken("restored_grown", "ring", ("converges: not within 180000 ms: home",), repairs_no_gap),
    Broken("none", "diamond", ("store",), store_inserts_duplicates),
    Broken("resumed_memory", "pair", ("value lost",), server_proves_nothing),
    Broken("resumed_memory", "pair", ("value lost",), reader_believes_what_is_left_out),
]


@patient
def test_broken_parts_are_caught(memory: Path) -> None:
    """Each broken part is caught within forty schedules, by one of its checkers. In `make test` a third of them."""
    seed = first_seed()
    chosen = random.Random(seed).sample(BROKEN, scaled(len(BROKEN) // 3, len(BROKEN)))
    assert not [str(defect) for defect in chosen if not is_caught(defect, memory / str(BROKEN.index(defect)))]


def is_caught(broken: Broken, folder: Path) -> bool:
    """Whether one of the first schedules ends with a report of one of its checkers."""
    with pytest.MonkeyPatch.context() as patch:
        broken.breaks(patch)
        for seed in range(SCHEDULES_MAX):
            topology, fault = TOPOLOGIES[broken.topology], NAMED[broken.fault]
            values = ValueJudge() if broken.is_judged_by_values else None
            world = World(seed, topology, fault, folder / str(seed), broken.receiver, broken.settings, values=values)
            try:
                world.run()
                if values is not None and broken.checkers[0].removeprefix(BY_VALUES) in values.found:
                    print(f"{broken}: schedule {seed + 1}: {values.examples}")
                    return True
            except Violation as error:
                print(f"{broken}: schedule {seed + 1}: {error}")
                assert str(error).startswith(broken.checkers), error  # noqa: PT017
                return True
            finally:
                gc.collect()
    return False


def test_every_fault_catches_a_broken_part() -> None:
    """A fault that reveals no broken part would be injected for nothing."""
    assert {defect.fault for defect in BROKEN} >= set(NAMED) - {"everything"}


def test_every_part_can_be_broken() -> None:
    """Each defect still finds the part that it replaces, also those that `make test` does not run."""
    for defect in BROKEN:
        with pytest.MonkeyPatch.context() as patch:
            defect.breaks(patch)
