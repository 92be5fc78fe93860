"""A peer's page: batches sealed elsewhere, stored once, byte for byte, together with the peer's position.

A page is always stored, with its position, once the tag definitions of its batches are held. A batch that is held
already is a duplicate. One that overlaps other facts of the same life is refused by name: a life that ran twice, or a
zone that lies (core/held_ranges.py). Where the history of a zone divides, or facts before a batch are missing, both
sides are stored and an incident says so.

A zone of which this store keeps no more (lives, definitions, ranges) loses what is beyond, by name: facts of other
zones that the same peer relays are stored. Only a page of the peer's own facts is refused for it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from agent import batch as batch_format
from agent.batch import Batch, Definitions, Kind, Origin, open_messages
from agent.fact_store.append.append import append_notice, content_digest, message_key, report_branch
from agent.fact_store.append.definitions import HELD_NAMED_MAX, lacking_definitions
from agent.fact_store.append.message_plan import digest
from agent.fact_store.core import (
    Branch,
    DefinitionsMissing,
    Duplicate,
    FactsRefused,
    Insert,
    LifeRefused,
    MissingSequences,
    StoreLimits,
    StreamState,
    decide_insert,
    digests_in,
    find_division,
    find_predecessor,
    is_followed,
    messages_in,
)
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange, OriginRange, PutResult, ReceivedPage

DEFINITIONS_OF_ZONE_MAX = 200_000
"""With those of tags that were changed or removed."""
RANGES_OF_ZONE_MAX = 20_000
"""Held ranges of one zone, in all streams and lives: one or two a life, so that a peer whose sequences are nothing but
gaps does not fill the disk."""
REPORTED_MAX = 16
"""Ranges of one page that are named for one reason; each is an incident and a notice, and a page may have 2,048."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Plan:
    """What storing a page writes, worked out before anything is written."""

    stream: int  # 0: not here yet
    ranges: dict[Origin, tuple[HeldRange, ...]] = field(default_factory=dict)
    fresh: defaultdict[Origin, list[HeldRange]] = field(default_factory=lambda: defaultdict(list))
    inserts: list[Batch] = field(default_factory=list)
    verified: set[int] = field(default_factory=set)  # positions in `inserts`
    divided: list[tuple[Origin, Branch]] = field(default_factory=list)
    gaps: list[OriginRange] = field(default_factory=list)
    forks: list[tuple[Batch, str, Batch | None]] = field(default_factory=list)  # why, and the other batch
    refused: list[OriginRange] = field(default_factory=list)
    definitions: dict[tuple[str, Definitions], bool] = field(default_factory=dict)  # that are needed: are they held
    duplicate_facts: int = 0
    left_out: dict[str, list[OriginRange]] = field(default_factory=dict)  # by reason


def store_page(transaction: Transaction, page: ReceivedPage, limits: StoreLimits) -> PutResult:
    """Store what is not held yet and move the peer's position. Raises FactsRefused, and DefinitionsMissing with all
    that the page lacks; then nothing is stored."""
    known = transaction.catalog.streams.get(page.stream)
    plan = _Plan(known.id if known else 0)
    for index, batch in enumerate(page.batches):
        if _plan_batch(transaction, page, plan, batch) and index in page.verified:
            plan.verified.add(len(plan.inserts) - 1)
    if needed := [definitions for definitions, is_held in plan.definitions.items() if not is_held]:
        lacking = lacking_definitions(transaction, needed)
        zones = ", ".join(definitions.zone for definitions in lacking)
        raise DefinitionsMissing(f"{page.stream} from {page.peer}: tag definitions of {zones} are not held", lacking)
    _write(transaction, page, plan, limits)
    _report(transaction, page, plan)
    stored_facts = sum(batch.header.count for batch in plan.inserts)
    end_offset = transaction.catalog.streams[page.stream].end_offset
    left = tuple(sequences for ranges in plan.left_out.values() for sequences in ranges)
    return PutResult(stored_facts, plan.duplicate_facts, end_offset, tuple(plan.gaps), tuple(plan.refused), left)


# ------------------------------------------------------------------------------------------------------------ decisions


def _plan_batch(transaction: Transaction, page: ReceivedPage, plan: _Plan, batch: Batch) -> bool:
    """Decide on one batch, with those before it in the page; whether it is to be stored."""
    header, origin = batch.header, batch.header.origin
    offered, batch_at = HeldRange.of(header, batch.digest), partial(_batch_at, transaction, plan)
    match decide_insert(_held(transaction, plan, origin), offered, partial(batch_at, origin)):
        case Duplicate():
            plan.duplicate_facts += header.count
            return False
        case LifeRefused(why, held):
            ours = held and transaction.batch(plan.stream, transaction.origin_number(origin) or 0, held.first_sequence)
            plan.forks.append((batch, why, ours or None))
            _add_range(plan.refused, header)
            return False
        case Insert(ranges, is_start, fork):
            if reason := _beyond_limit(transaction, page, plan, batch, is_start=is_start):
                _add_range(plan.left_out.setdefault(reason, []), header)
                return False
            if fork:
                plan.forks.append((batch, fork, None))
            else:
                _plan_history(transaction, page, plan, offered, origin, is_start=is_start)
            plan.ranges[origin] = ranges
            insort(plan.fresh[origin], offered)
            plan.inserts.append(batch)
            return True


def _plan_history(
    transaction: Transaction, page: ReceivedPage, plan: _Plan, offered: HeldRange, origin: Origin, *, is_start: bool
) -> None:
    """Note where the history of the batch's zone divides, or what is missing before the batch. Reads what is held of
    the zone's other lives only where it may: not where the batch continues the newest of them after all that is held,
    as after each restart."""
    newest, highest = transaction.newest_life(plan.stream, origin.zone)
    here = {Origin(origin.zone, newest), *(planned for planned in plan.ranges if planned.zone == origin.zone)}
    last = [ranges[-1] for known in here if (ranges := _held(transaction, plan, known))]
    is_last = offered.first_sequence > max([highest, *(held_range.first_sequence for held_range in last)])
    if is_last and (not is_start or any(is_followed(held_range, offered) for held_range in last)):
        return
    held = {known.life: _held(transaction, plan, known) for known in transaction.origins_of(origin.zone)}
    held |= {planned.life: ranges for planned, ranges in plan.ranges.items() if planned.zone == origin.zone}
    held = {life: ranges for life, ranges in held.items() if ranges}

    def batch_at(life: bytes, sequence: int) -> HeldRange | None:
        return _batch_at(transaction, plan, Origin(origin.zone, life), sequence)

    found = find_division(held, origin.life, offered)
    before = find_predecessor(held, origin.life, offered, batch_at) if is_start else None
    if found is None and isinstance(before, Branch):
        found = before
    if found is not None:
        plan.divided.append((origin, found))
    elif (
        isinstance(before, MissingSequences) and page.read
    ):  # a comparison fetches old lives first, and newer parts of them later
        plan.gaps.append(OriginRange(origin.zone, origin.life, *before))


def _beyond_limit(
    transaction: Transaction, page: ReceivedPage, plan: _Plan, batch: Batch, *, is_start: bool
) -> str | None:
    """Why this store keeps no more of the batch's zone; None if it does. Raises FactsRefused for the peer's own facts:
    those of no other zone wait behind them."""
    origin, needed = batch.header.origin, (batch.header.origin.zone, batch.header.definitions)
    zone, why = origin.zone, ""
    if batch.header.definitions.count and needed not in plan.definitions:
        if (count := transaction.definition_number(*needed)) is not None and count != batch.header.definitions.count:
            why = f"a batch of {zone} names {batch.header.definitions.count} tag definitions by the digest of {count}"
        elif count is None and (total := _definitions_with(transaction, *needed)) > DEFINITIONS_OF_ZONE_MAX:
            why = f"{zone} would have {total} tag definitions here, at most {DEFINITIONS_OF_ZONE_MAX}"
        else:
            plan.definitions[needed] = count is not None
    if is_start and not why:
        grown = sum(len(ranges) for planned, ranges in plan.ranges.items() if planned.zone == zone)
        if transaction.range_count(zone) + grown >= RANGES_OF_ZONE_MAX:
            why = f"facts of {zone} would be more than {RANGES_OF_ZONE_MAX} separate ranges here"
    peer = transaction.peers.get(page.peer)
    if why and zone in {page.peer, peer.zone if peer else ""}:
        hint = f"find out whether {page.peer} invents facts of {zone}, and take it from pulls or relays if it does"
        raise FactsRefused(why, hint)
    return f"{why}. {page.peer} sent them; they are not stored here" if why else None


def _definitions_with(transaction: Transaction, zone: str, needed: Definitions) -> int:
    """How many definitions of a zone are stored if those up to `needed` are."""
    newest = transaction.newest_definitions(zone, HELD_NAMED_MAX)
    return transaction.definition_count(zone) + max(1, needed.count - max((known.count for known in newest), default=0))


def _held(transaction: Transaction, plan: _Plan, origin: Origin) -> tuple[HeldRange, ...]:
    """The ranges held of an origin, with the batches before in the page."""
    if (planned := plan.ranges.get(origin)) is not None:
        return planned
    number = transaction.origin_number(origin)
    return transaction.held(plan.stream, number) if plan.stream and number else ()


def _batch_at(transaction: Transaction, plan: _Plan, origin: Origin, sequence: int) -> HeldRange | None:
    """The batch that holds a sequence, stored or of this page; None if it is released or damaged."""
    fresh = plan.fresh.get(origin, ())
    at = bisect_right(fresh, sequence, key=lambda held: held.first_sequence) - 1
    if at >= 0 and sequence <= fresh[at].last_sequence:
        return fresh[at]
    number = transaction.origin_number(origin)
    return transaction.batch_at(plan.stream, number, sequence) if plan.stream and number else None


def _add_range(ranges: list[OriginRange], header: batch_format.Header) -> None:
    """Add the sequences of a batch that is passed over; consecutive ones are reported as one range."""
    zone, life, first_sequence = header.origin.zone, header.origin.life, header.first_sequence
    last = ranges[-1] if ranges else None
    if last is not None and (zone, life, first_sequence) == (last.zone, last.life, last.last_sequence + 1):
        first_sequence = ranges.pop().first_sequence
    ranges.append(OriginRange(zone, life, first_sequence, header.last_sequence))


# -------------------------------------------------------------------------------------------------------------- writing


def _write(transaction: Transaction, page: ReceivedPage, plan: _Plan, limits: StoreLimits) -> None:
    stream = transaction.stream(page.stream)
    transaction.add_signers(page.signers, page.peer)
    own = {Origin(zone, transaction.catalog.life) for zone in transaction.catalog.names.own_zones}
    if not own.isdisjoint(plan.ranges) or any(batch.header.origin in own for batch, _, _ in plan.forks):
        transaction.begin_life(is_forked=True)  # a batch of the present life that was not sealed in it: it runs twice
    for zone in transaction.catalog.names.own_zones & {origin.zone for origin in plan.ranges}:
        transaction.keep_tip(stream, zone)  # what comes home is not what this store sealed last
    if plan.inserts:
        first_offset = transaction.add_batches(
            stream, plan.inserts, verified=plan.verified, is_backlog=page.is_backlog, writer=page.peer
        )
        if any(batch.header.kind is Kind.MESSAGES for batch in plan.inserts):
            is_strong = limits.policy(page.stream).write_class == "strong"
            _index_messages(transaction, stream, plan.inserts, first_offset, is_strong=is_strong)
            kept = transaction.catalog.streams[page.stream]
            transaction.add_artifacts(kept, digests_in(messages_in(plan.inserts)), kept.end_offset)
    for origin, ranges in plan.ranges.items():
        transaction.set_held(stream.id, transaction.origin(origin), ranges)
    _report_holes(transaction, page)  # before the position says that they are read
    transaction.set_peer_position(page.peer, stream, page.read)


def _index_messages(
    transaction: Transaction, stream: StreamState, batches: Sequence[Batch], first_offset: int, *, is_strong: bool
) -> None:
    """Add the ids and, in a strong stream, the subjects of the zone's messages: a program that tries again at the other
    node of its zone, or after this store was put back, gets the outcome of the message that is held."""
    zone, fresh, subjects = transaction.catalog.names.zone, dict[bytes, tuple[bytes, int]](), dict[bytes, int]()
    for batch in batches:
        if batch.header.kind is Kind.MESSAGES and batch.header.origin.zone == zone:
            for offset, message in enumerate(open_messages(batch), first_offset):
                key = message_key(message, zone)
                if key not in fresh and transaction.message(stream, key) is None:
                    fresh[key] = content_digest(message), offset
                if is_strong:
                    subjects[digest(message.fact.subject.encode())] = offset
        first_offset += batch.header.count
    if fresh:
        transaction.index.add(stream.id, [(key, *stored) for key, stored in fresh.items()])
    transaction.set_subjects(stream, subjects)


def _report(transaction: Transaction, page: ReceivedPage, plan: _Plan) -> None:
    """Incidents, and for what is not stored a notice for the zones that read from this store."""
    for origin, branch in dict(plan.divided).items():
        report_branch(transaction, page.stream, origin, branch)
    for gap, others in _first_ones(plan.gaps, "gaps"):
        subject = f"{page.stream} of {Origin(gap.zone, gap.life)}"
        missing = f"no sequences {gap.first_sequence} to {gap.last_sequence}, or they were declined here"
        detail = f"{page.peer} had {missing}{others}"
        transaction.add_incident("gap", subject, detail)
    for batch, why, ours in plan.forks[:REPORTED_MAX]:
        header = batch.header
        records = [version.record.hex() for version in (batch, ours) if version is not None and version.record]
        detail = (
            f"{why} ({page.peer}): this life ran twice, or {header.origin.zone} lies. Records: {', '.join(records)}"
        )
        transaction.add_incident("fork", f"{page.stream} of {header.origin}", detail)
    for refused, others in _first_ones(plan.refused):
        why = (
            f"{page.peer} has other facts under these sequences of one life; bsfg store export reads them there{others}"
        )
        _report_range(transaction, page, refused, "refused", why)
    for reason, left_out in plan.left_out.items():
        for sequences, others in _first_ones(left_out):
            _report_range(transaction, page, sequences, "declined", f"{reason}{others}")
    for declined in page.declined:
        why = (
            f"{declined.reason}. {page.peer} sent them; they are not stored here, and the comparison of both stores"
            " requests them again (docs/operate/threats.md)"
        )
        _report_range(transaction, page, declined.facts, "declined", why)


def _report_holes(transaction: Transaction, page: ReceivedPage) -> None:
    """Record an incident for facts that the peer released before they were read. What it released before the first
    fetch was never due here, and a page that comes again reports nothing new."""
    trail = transaction.catalog.trails.get((page.peer, page.stream), ())
    known = {point.life: point.offset for point in trail}.get(page.read[-1].life, 0) if page.read else 0
    found = list[tuple[int, int, str]]()
    for first_offset, last_offset, reason in page.holes:
        if last_offset <= known or (not trail and first_offset == 1 and reason == "expired"):
            continue
        found.append((first_offset, last_offset, reason))
    for (first_offset, last_offset, reason), others in _first_ones(found, "holes"):
        what = f"{page.peer} no longer has its offsets {first_offset} to {last_offset}: {reason}{others}"
        transaction.add_incident("peer_hole", f"{page.stream} from {page.peer}", what)


def _first_ones(all_of_page: Iterable[_T], what: str = "ranges") -> Iterator[tuple[_T, str]]:
    """The ranges of a page that are named; with the last of them what to say of the others."""
    found = list(all_of_page)
    for number, item in enumerate(found[:REPORTED_MAX], 1):
        left = len(found) - number if number == REPORTED_MAX else 0
        yield item, f"; the same is true of {left} other {what} of the same page" if left else ""


def _report_range(transaction: Transaction, page: ReceivedPage, sequences: OriginRange, kind: str, why: str) -> None:
    """An incident and a notice about sequences of an origin."""
    place = f"{page.stream} of {Origin(sequences.zone, sequences.life)}, {sequences.first_sequence} to {sequences.last_sequence}"
    append_notice(transaction, page.stream, f"facts_{kind}", {"from": page.peer, "origins": [sequences.named()]}, place)
    transaction.add_incident(kind, place, why)
