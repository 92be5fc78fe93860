"""A peer's page: batches sealed elsewhere, stored once, byte for byte, together with the peer's position.

A page is stored whole or not at all, and only when the tag definitions of its batches are held. A batch of the peer's
present epoch that contradicts the facts held refuses the page, and only an incident is recorded. A batch of another
epoch that contradicts them is passed over and reported (decision 0041). A batch that is held already is compared with
the stored one before it is skipped: a gateway restored from an old image sends other facts under the same sequences,
and taking them for duplicates would lose them. What retention has released here is compared by the rows after it. Where
those are gone too it cannot be compared; where the origin may have two histories, that is reported.

A zone of which this store keeps no more (epochs, definitions, ranges) loses what is beyond, by name: facts of other
zones that the same peer relays are stored. Only a page of the peer's own facts is refused for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from agent import batch as batch_format
from agent.batch import Batch
from agent.columns import BatchError
from agent.fact_store.append.append import append_notice
from agent.fact_store.append.definitions import are_held, lacking_definitions
from agent.fact_store.append.page_plan import PagePlan, ReceivedPage
from agent.fact_store.append.renamed import Search
from agent.fact_store.append.second_history import add_uncompared, may_have_two_histories, note_released, restarts
from agent.fact_store.log import (
    DefinitionsMissing,
    Duplicate,
    FactsRefused,
    Fork,
    ForkError,
    Insert,
    decide_insert,
    digests_in,
    messages_in,
    origins_with_other_facts,
)
from agent.fact_store.sqlite import Transaction
from agent.pages import BatchEnd, HeldRange, LackingDefinitions, OriginRange, PutResult

EPOCHS_OF_ZONE_MAX = 1_000
"""Origins of one zone. Each takes a kilobyte of memory for ever, also after every restart, so a peer that sends each
batch under an epoch of its own would otherwise end this process."""
DEFINITIONS_OF_ZONE_MAX = 200_000
"""With those of tags that were changed or removed."""
RANGES_OF_ZONE_MAX = 10_000
"""Held ranges of one zone, in all streams and epochs. Each takes a quarter of a kilobyte of memory for ever, also after
every restart, so a peer whose sequences are nothing but gaps would otherwise end this process."""
REPORTED_MAX = 16
"""Ranges of one page that are named for one reason; each is an incident and a notice, and a page may have 2,048."""


_T = TypeVar("_T")
_BatchName = tuple[batch_format.Origin, int, bytes]
"""Origin, first sequence and digest."""


class _NoRoom(NamedTuple):
    """This store keeps no more of a zone. `beyond`: the batches of a page that are more, by name."""

    zone: str
    why: str
    hint: str
    beyond: Collection[_BatchName]


def check_headers(stream: str, batches: Iterable[Batch]) -> None:
    """Raise BatchError for a batch that cannot be stored in `stream`: a slice, or a batch of another stream. Reads
    headers only: the caller has parsed each batch and read its content (`agent.batch.parse`, `agent.batch.verify`)."""
    for batch in batches:
        header = batch.header
        if header.is_slice:
            raise BatchError(
                f"slice: {header.origin} {header.first_sequence} was cut for a reader and cannot be stored"
            )
        if header.stream != stream:
            raise BatchError(f"stream: a batch of {header.stream!r} cannot be stored in {stream!r}")


def store_page(transaction: Transaction, page: ReceivedPage) -> PutResult:
    """Store what is not held yet and move the peer's position. Raises ForkError, FactsRefused, and DefinitionsMissing
    with all that the page lacks; then nothing is stored."""
    if not page.read:  # whatever epoch the peer has begun since
        epoch = transaction.catalog.peer_epochs.get((page.peer, page.stream))
        if epoch is None:
            raise FactsRefused(f"nothing of {page.stream} was pulled from {page.peer} yet", "pull it first")
        page = replace(page, epoch=epoch)
    plan = _plan_within_limits(transaction, page)
    recorded = [(one.header.origin.zone, message) for one in plan.inserts for message in messages_in([one])]
    contradicted = origins_with_other_facts(recorded, page.stream)
    add_uncompared(transaction, plan, page, contradicted)
    stream = transaction.stream(page.stream)
    for origin in plan.ranges:  # 0055: numbered in the order in which their facts came
        transaction.origin(origin)
    transaction.add_signers(page.signers, page.peer)
    if plan.inserts:
        transaction.add_batches(
            *(stream, plan.inserts), verified=plan.verified, is_backlog=page.is_backlog, writer=page.peer
        )
        kept = transaction.catalog.streams[page.stream]
        transaction.add_artifacts(kept, digests_in(message for _, message in recorded), kept.end_offset)
    for origin, ranges in plan.ranges.items():
        transaction.set_held(stream.id, transaction.origin(origin), ranges)
    for gap, others in _first_ones(plan.gaps, "gaps"):
        subject = f"{page.stream} of {batch_format.Origin(gap.zone, gap.epoch)}"
        detail = f"{page.peer} had no sequences {gap.first_sequence} to {gap.last_sequence}{others}"
        transaction.add_incident("gap", subject, detail)
    _report_holes(transaction, page)
    _report_declined(transaction, page)
    for why, left_out in plan.left_out.items():
        for one, others in _first_ones(left_out):
            _report(transaction, page, one, "declined", f"{why}{others}")
    _report_refused(transaction, page, plan.refused)
    _report_uncompared(transaction, page, plan.uncompared)
    for shift in plan.renamed:
        transaction.add_renamed(stream.id, transaction.origin(shift.older), transaction.origin(shift.newer), shift.by)
    for number in plan.unproven:
        transaction.add_unproven(stream.id, number)
    for origin in contradicted:
        if (known := transaction.origin_number(origin)) is not None:  # a notice numbers none: it may name invented ones
            transaction.add_contradicted(stream.id, known)
    is_again = restarts(transaction, page)
    transaction.set_peer_position(page.peer, stream, page.read, page.epoch, is_read_again=is_again)
    stored_facts = sum(batch.header.count for batch in plan.inserts)
    end_offset = transaction.catalog.streams[page.stream].end_offset
    refused, uncompared = tuple(plan.refused), tuple(plan.uncompared)
    left = tuple(one for left_out in plan.left_out.values() for one in left_out)
    return PutResult(stored_facts, plan.duplicate_facts, end_offset, tuple(plan.gaps), refused, uncompared, left)


def _plan_within_limits(transaction: Transaction, page: ReceivedPage) -> PagePlan:
    """The plan of a page without what is beyond the limits of a zone. Raises as `store_page`."""
    left_out = dict[str, list[OriginRange]]()
    while True:
        plan = _plan_page(transaction, page)
        lacking = lacking_definitions(transaction, plan.definitions)
        full = (
            _no_more_epochs(transaction, page)
            or _no_more_definitions(transaction, plan, lacking)
            or _no_more_ranges(transaction, page, plan)
        )
        if full is None and lacking:
            zones = ", ".join(one.zone for one in lacking)
            raise DefinitionsMissing(
                f"{page.stream} from {page.peer}: tag definitions of {zones} are not held", lacking
            )
        if full is None:
            plan.left_out = left_out
            return plan
        if full.zone == page.peer:  # no other zone's facts wait behind them
            raise FactsRefused(full.why, full.hint)
        page = _leave_out(page, full, left_out)


def _leave_out(page: ReceivedPage, full: _NoRoom, left_out: dict[str, list[OriginRange]]) -> ReceivedPage:
    """The page without what is beyond the room of a zone. The second time without all of the zone: batches that
    contradict each other would each come in the place of the one before, for a round of its own."""
    of_zone = [one for one in page.batches if one.header.origin.zone == full.zone]
    if not any(one.zone == full.zone for ranges in left_out.values() for one in ranges):
        of_zone = [one for one in of_zone if _name(one) in full.beyond] or of_zone
    ranges = left_out.setdefault(f"{full.why}. {page.peer} sent them; they are not stored here", [])
    for one in of_zone:
        _add_range(ranges, one.header)
    names = set(map(_name, of_zone))
    kept = [at for at, one in enumerate(page.batches) if _name(one) not in names]
    verified = {index for index, at in enumerate(kept) if at in page.verified}
    return replace(page, batches=[page.batches[at] for at in kept], verified=verified)


def _name(batch: Batch) -> _BatchName:
    return batch.header.origin, batch.header.first_sequence, batch.digest


def _is_apart(transaction: Transaction, page: ReceivedPage) -> Callable[[Batch], bool]:
    """Says of the batches of a page, asked in their order, which are not next to facts held or said to be next to."""
    catalog = transaction.catalog
    known = catalog.streams.get(page.stream)
    begins, ends = set[tuple[batch_format.Origin, int]](), set[tuple[batch_format.Origin, int]]()
    for origin in {batch.header.origin for batch in page.batches}:
        for one in transaction.held(known.id, transaction.origin_number(origin)) if known else ():
            begins.add((origin, one.first_sequence))
            ends.add((origin, one.last_sequence))

    def is_apart(batch: Batch) -> bool:
        origin, first, last = batch.header.origin, batch.header.first_sequence, batch.header.last_sequence
        if (origin, first - 1) not in ends and (origin, last + 1) not in begins:
            return True
        begins.add((origin, first))
        ends.add((origin, last))
        return False

    return is_apart


def _no_more_epochs(transaction: Transaction, page: ReceivedPage) -> _NoRoom | None:
    """A zone that would have more epochs here than one that begins a new one each day for years."""
    # Also of facts that are held under another name: their epoch is remembered.
    origins = {batch.header.origin for batch in page.batches}
    new = {origin for origin in origins if transaction.origin_number(origin) is None}
    for zone in {origin.zone for origin in new}:
        count = len(transaction.origins_of(zone)) + sum(origin.zone == zone for origin in new)
        if count > EPOCHS_OF_ZONE_MAX:
            hint = f"find out whether {page.peer} invents facts of {zone}, and take it from pulls or relays if it does"
            why = f"{zone} would have {count} epochs here, at most {EPOCHS_OF_ZONE_MAX}"
            return _NoRoom(zone, why, hint, _names(page.batches, {one for one in new if one.zone == zone}))
    return None


def _no_more_definitions(
    transaction: Transaction, plan: PagePlan, lacking: Sequence[LackingDefinitions]
) -> _NoRoom | None:
    """A zone that would have more tag definitions here than lists of ten thousand tags make in years: no retention
    releases them, and a search for latest values reads all of them."""
    for zone, wanted, held in lacking:
        more = max(wanted.count - max((one.count for one in held), default=0), 1)
        count = transaction.definition_count(zone) + more
        if count > DEFINITIONS_OF_ZONE_MAX:
            hint = "a new tag list adds only what differs; find out what renames its tags, or invents them"
            why = f"{zone} would have {count} tag definitions here, at most {DEFINITIONS_OF_ZONE_MAX}"
            of_zone = (one for one in plan.inserts if one.header.origin.zone == zone)
            return _NoRoom(zone, why, hint, {_name(one) for one in of_zone if one.header.definitions == wanted})
    return None


def _names(batches: Iterable[Batch], origins: Collection[batch_format.Origin]) -> set[_BatchName]:
    return {_name(one) for one in batches if one.header.origin in origins}


def _no_more_ranges(transaction: Transaction, page: ReceivedPage, plan: PagePlan) -> _NoRoom | None:
    """A zone that would have more held ranges here than retention at its peers makes in years."""
    catalog = transaction.catalog
    known = catalog.streams.get(page.stream)
    grown = Counter[str]()
    for origin, ranges in plan.ranges.items():
        held = transaction.held(known.id, transaction.origin_number(origin)) if known else ()
        grown[origin.zone] += len(ranges) - len(held)
    # A zone begins a range with its first batch in a stream, and with a gap: nearly no page does.
    for zone in (one for one, more in grown.items() if more > 0):
        count = grown[zone] + transaction.range_count(zone)
        if count > RANGES_OF_ZONE_MAX:
            hint = f"find out why {page.peer} sends facts of {zone} with so many gaps, and take it from pulls or relays"
            why = f"facts of {zone} would be {count} separate ranges here, at most {RANGES_OF_ZONE_MAX}"
            is_apart = _is_apart(transaction, page)
            of_zone = [one for one in plan.inserts if one.header.origin.zone == zone]
            return _NoRoom(zone, why, hint, {_name(one) for one in of_zone if is_apart(one)})
    return None


def _report_holes(transaction: Transaction, page: ReceivedPage) -> None:
    """Record an incident for facts that the peer released before they were read. What it released before the first
    fetch was never due here, and a page that comes again reports nothing new."""
    trail = transaction.catalog.trails.get((page.peer, page.stream), ())
    known = {one.life: one.offset for one in trail}.get(page.read[-1].life, 0) if page.read else 0
    found = list[tuple[int, int, str]]()
    for first_offset, last_offset, reason in page.holes:
        if last_offset <= known or (not trail and first_offset == 1 and reason == "expired"):
            continue
        found.append((first_offset, last_offset, reason))
    for (first_offset, last_offset, reason), others in _first_ones(found, "holes"):
        what = f"{page.peer} no longer has its offsets {first_offset} to {last_offset}: {reason}{others}"
        transaction.add_incident("peer_hole", f"{page.stream} from {page.peer}", what)


def _report_declined(transaction: Transaction, page: ReceivedPage) -> None:
    """For each range of facts that its origin did not prove, or that cannot be read, an incident here and a notice for
    the zones that read from this store. The same range again counts on."""
    for one in page.declined:
        why = (
            f"{one.reason}. {page.peer} sent them; they are not stored here, and the comparison of both stores requests"
            " them again (docs/operate/threats.md)"
        )
        _report(transaction, page, one.facts, "declined", why)


def _report_refused(transaction: Transaction, page: ReceivedPage, refused: Sequence[OriginRange]) -> None:
    """For each range of sequences under which the peer has other facts, record an incident here, and append a notice
    for the zones that read from this store."""
    for one, others in _first_ones(refused):
        why = (
            f"{page.peer} has other facts under these sequences than this store: {one.zone} continued from an old copy of its store."
            f" They are not stored here; bsfg store export reads them at {page.peer}, as long as it keeps them{others}"
        )
        _report(transaction, page, one, "refused", why)


def _report_uncompared(transaction: Transaction, page: ReceivedPage, uncompared: Mapping[OriginRange, str]) -> None:
    """The same for facts that were taken for duplicates and could not be compared, because they were released here."""
    for one, others in _first_ones(uncompared):
        _report(transaction, page, one, "uncompared", uncompared[one] + others)


def _first_ones(all_of_page: Iterable[_T], what: str = "ranges") -> Iterator[tuple[_T, str]]:
    """The ranges of a page that are named; with the last of them what to say of the others."""
    found = list(all_of_page)
    for number, one in enumerate(found[:REPORTED_MAX], 1):
        left = len(found) - number if number == REPORTED_MAX else 0
        yield one, f"; the same is true of {left} other {what} of the same page" if left else ""


def _report(transaction: Transaction, page: ReceivedPage, one: OriginRange, kind: str, why: str) -> None:
    """An incident and a notice about sequences of an origin."""
    origin = batch_format.Origin(one.zone, one.epoch)
    place = f"{page.stream} of {origin}, {one.first_sequence} to {one.last_sequence}"
    append_notice(transaction, page.stream, f"facts_{kind}", {"from": page.peer, "origins": [one.named()]}, place)
    transaction.add_incident(kind, place, why)


def _plan_page(transaction: Transaction, page: ReceivedPage) -> PagePlan:
    """What to do with each batch. Raises ForkError for a contradiction in the peer's present epoch, which the peer can
    still resolve. A contradiction in any other epoch cannot be resolved: both histories are true, and only one fits
    here. That batch is passed over and reported (decision 0041)."""
    fresh = dict[tuple[batch_format.Origin, int], HeldRange]()
    plan, present = PagePlan(Search(transaction, page.stream), fresh), page.present
    for index, batch in enumerate(page.batches):
        origin, stored_before = batch.header.origin, len(plan.inserts)
        try:
            is_uncompared = _plan_batch(transaction, plan, batch)
        except ForkError:
            if origin in {present, transaction.catalog.origin}:
                raise  # the peer can still resolve it, by a new epoch (decisions 0041, 0047)
            if _is_renamed(transaction, plan, batch):
                continue
            _add_range(plan.refused, batch.header)
            note_released(transaction, plan, page.peer, batch.header, batch.header.first_sequence - 1)
        else:
            if is_uncompared:
                has_two_histories = may_have_two_histories(transaction, plan, page, origin)
                last, peer = batch.header.last_sequence, page.peer
                note_released(transaction, plan, peer, batch.header, last, has_two_histories=has_two_histories)
            if index in page.verified and len(plan.inserts) > stored_before:
                plan.verified.add(stored_before)
    return plan


def _add_range(ranges: list[OriginRange], header: batch_format.Header) -> None:
    """Add the sequences of a batch that is passed over; consecutive ones are reported as one range."""
    zone, epoch, first_sequence = header.origin.zone, header.origin.epoch, header.first_sequence
    last = ranges[-1] if ranges else None
    if last is not None and (zone, epoch, first_sequence) == (last.zone, last.epoch, last.last_sequence + 1):
        first_sequence = ranges.pop().first_sequence
    ranges.append(OriginRange(zone, epoch, first_sequence, header.last_sequence))


def _proof_of_released(transaction: Transaction, stream: int, origin: int, offered: HeldRange) -> HeldRange | None:
    """What the rows after a batch that is held, and whose own row is gone, say of it: the batch itself, another, or
    nothing."""
    if (other := transaction.batch_at(stream, origin, offered.last_sequence)) is not None:
        return other  # batches are never cut: a row that holds the end of this one, and not its begin, is of another history
    digest = transaction.digest_before(stream, origin, offered.last_sequence + 1)
    return None if digest is None else replace(offered, last_digest=digest)


def _is_renamed(transaction: Transaction, plan: PagePlan, batch: Batch) -> bool:
    """Whether the facts of a batch are held under another epoch of their zone (0055); they count as duplicates then."""
    shift = plan.search.find_renamed(batch, _held(transaction, plan, batch))
    if shift is None:
        return False
    plan.renamed.add(shift)
    plan.duplicate_facts += batch.header.count
    return True


def _held(transaction: Transaction, plan: PagePlan, batch: Batch) -> tuple[HeldRange, ...]:
    """The ranges held of the origin of a batch, with the batches before it in the page."""
    header, catalog = batch.header, transaction.catalog
    known = catalog.streams.get(header.stream)
    stored = transaction.held(known.id, transaction.origin_number(header.origin)) if known else ()
    return plan.ranges.get(header.origin, stored)


def _plan_batch(transaction: Transaction, plan: PagePlan, batch: Batch) -> bool:
    """Decide on one batch, with those before it in the page; True where it counts as a duplicate and nothing is left to
    compare it with. Raises ForkError."""
    header, catalog = batch.header, transaction.catalog
    origin, offered = header.origin, HeldRange.of(header, batch.digest)
    known = catalog.streams.get(header.stream)
    number = transaction.origin_number(origin)
    ranges = _held(transaction, plan, batch)
    decision, stored = decide_insert(ranges, offered), None
    if isinstance(decision, Duplicate):
        stored = plan.fresh.get((origin, offered.first_sequence))
        if stored is None and known and number:
            stored = transaction.batch_at(known.id, number, offered.first_sequence)
        if stored is None and known and number:
            stored = _proof_of_released(transaction, known.id, number, offered)
        if stored is not None and stored != offered:
            why = f"{offered.first_sequence} to {offered.last_sequence} is not the batch stored"
            decision = Fork(why, BatchEnd(stored.last_sequence, stored.last_digest))
    if isinstance(decision, Insert) and number == catalog.own_origin:
        decision = Fork(
            f"sequences {offered.first_sequence} to {offered.last_sequence} are of this store, which never wrote them"
        )
    match decision:
        case Fork(why, held):
            raise ForkError(f"{header.stream} of {origin}: {why}", None if number == catalog.own_origin else held)
        case Duplicate():
            plan.duplicate_facts += header.count
            return stored is None
        case Insert() if _is_renamed(transaction, plan, batch):
            pass
        case Insert(ranges, gap):
            needed = origin.zone, header.definitions
            if header.definitions.count and needed not in plan.definitions:
                plan.definitions[needed] = are_held(transaction, *needed)
            plan.ranges[origin] = ranges
            plan.fresh[origin, offered.first_sequence] = offered
            plan.search.add(batch)
            plan.inserts.append(batch)
            if gap is not None:
                plan.gaps.append(OriginRange(origin.zone, origin.epoch, *gap))
    return False
