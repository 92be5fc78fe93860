"""Decides which facts held here may be those of another history: a zone continued from an old copy of its store, and
recorded other facts under the same sequences (decision 0041).

While both are there, they are compared (`receive`). This is about those of which one was released, here or at the
peer. They are reported as uncompared with the first sign of a second history: the next epoch of the zone, another copy
of a peer's log, facts of the page that contradict, or the notice of another zone. The sign may come before the facts,
after them or in the same page, so what is known so far is stored (`unproven`, `contradicted`).
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.batch import Header, Origin
from agent.fact_store.append.page_plan import PagePlan, ReceivedPage
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange, OriginRange
from agent.positions import last_of


def may_have_two_histories(transaction: Transaction, plan: PagePlan, page: ReceivedPage, origin: Origin) -> bool:
    """Whether there may be two histories of an origin: its zone has begun another epoch, or the page shows that it
    should have, or the peer's own log began another epoch, or is another copy of the one that was read before."""
    present, catalog = page.present, transaction.catalog
    if any((one.zone, one.epoch) == (origin.zone, origin.epoch) for one in plan.refused):
        return True
    if (page.peer, page.stream) in catalog.read_again or restarts(transaction, page):
        return True
    if origin.zone == present.zone:
        return origin != present
    if catalog.peer_epochs.get((origin.zone, page.stream), origin.epoch) != origin.epoch:
        return True
    number = transaction.origin_number(origin) or 0
    known = catalog.streams.get(page.stream)
    if known is not None and (known.id, number) in catalog.contradicted:
        return True
    return any(later > number for later in transaction.origins_of(origin.zone).values())


def restarts(transaction: Transaction, page: ReceivedPage) -> bool:
    """Whether the page is the first of another epoch of the peer, or begins elsewhere than the pages before it ended:
    the peer's log is another copy of the one that was read."""
    at = page.peer, page.stream
    epoch, trail = transaction.catalog.peer_epochs.get(at), transaction.catalog.trails.get(at, ())
    if epoch is None or not page.read:
        return False
    return epoch != page.epoch or (page.after is not None and page.after[:2] != last_of(trail)[:2])


def note_released(
    transaction: Transaction,
    plan: PagePlan,
    peer: str,
    header: Header,
    sequence: int,
    *,
    has_two_histories: bool = True,
) -> None:
    """Report the held range around a sequence if the batch with that sequence was released here: then the peer's facts,
    and those before them, can no longer be compared. If the origin is not known to have two histories, this is only
    stored, for the case that it has."""
    catalog = transaction.catalog
    known, number = catalog.streams.get(header.stream), transaction.origin_number(header.origin)
    if known is None or number is None or transaction.batch_at(known.id, number, sequence) is not None:
        return
    for one in transaction.held(known.id, number):
        if one.first_sequence <= sequence <= one.last_sequence:
            if has_two_histories:
                _add_range(plan, header.origin, one, _sent_again(peer, _has_old_copy(header.origin)))
            else:
                plan.unproven.add(number)


def add_uncompared(
    transaction: Transaction, plan: PagePlan, page: ReceivedPage, contradicted: Mapping[Origin, str]
) -> None:
    """Add to the plan what this page, with what was known before it, shows to be uncompared. `contradicted`: the
    origins that have two histories according to notices in the page, each with the zone that reports it."""
    _add_unproven_ranges(transaction, plan, page, contradicted)
    _add_former_ranges(transaction, plan, page)


def _add_unproven_ranges(
    transaction: Transaction, plan: PagePlan, page: ReceivedPage, contradicted: Mapping[Origin, str]
) -> None:
    """Report what could not be compared so far, if this page brings a sign that it was another history: the first facts
    of the next epoch of that zone, or of the peer, which may have relayed them; or the notice of a zone that holds both
    (`contradicted`: the origins that it names, and the zone)."""
    catalog = transaction.catalog
    known = catalog.streams.get(page.stream)
    if known is None or not (catalog.unproven or plan.unproven):
        return
    is_restart = restarts(transaction, page)
    begun = {origin.zone for origin in plan.ranges if not transaction.held(known.id, transaction.origin_number(origin))}
    suspect = {number for stream, number in catalog.unproven if stream == known.id} | plan.unproven
    for origin, number in transaction.origins_numbered(suspect):
        if is_restart or origin.zone in begun:
            sign = _has_old_copy(origin)
        elif origin in contradicted:
            sign = f"{contradicted[origin]} reports two histories of {origin}"
        else:
            continue
        for one in transaction.held(known.id, number):
            if transaction.batch_at(known.id, number, one.first_sequence) is None:
                _add_range(plan, origin, one, _sent_again("a peer", sign))


def _add_former_ranges(transaction: Transaction, plan: PagePlan, page: ReceivedPage) -> None:
    """Report the peer's own facts held here if this page is the first of another copy of its log, and that copy has
    released what would show whether it has the same facts: it served these, and then continued from before them."""
    catalog, present = transaction.catalog, page.present
    known, number = catalog.streams.get(page.stream), transaction.origin_number(present)
    if known is None or number is None:
        return
    if catalog.peer_epochs.get((page.peer, page.stream)) != present.epoch or not restarts(transaction, page):
        return
    has_own = any(batch.header.origin == present for batch in page.batches)
    has_gap = any(Origin(gap.zone, gap.epoch) == present for gap in plan.gaps)
    if not (has_gap if has_own else page.holes):
        return  # a batch of its own could be compared, or may still come
    why = (
        f"{_has_old_copy(present)}, and has released what it recorded there under these sequences: it could not be"
        " compared with what is held here, and may have been other facts"
    )
    for one in transaction.held(known.id, number):
        _add_range(plan, present, one, why)


def _has_old_copy(origin: Origin) -> str:
    return f"{origin.zone} continued from an old copy of its store"


def _sent_again(peer: str, sign: str) -> str:
    return (
        f"{peer} has sent some of these sequences again, and {sign}: what was released here could not be compared, and"
        f" may be other facts there; bsfg store export reads them there, as long as they are kept"
    )


def _add_range(plan: PagePlan, origin: Origin, one: HeldRange, why: str) -> None:
    """Report a held range as uncompared; the first reason stands."""
    plan.uncompared.setdefault(OriginRange(origin.zone, origin.epoch, one.first_sequence, one.last_sequence), why)
