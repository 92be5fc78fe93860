"""Reports where the history of a zone divides: its store was put back or cloned, and went on from an earlier end; or
two nodes record it, and one has taken over before it had all that the other recorded."""

from __future__ import annotations

from agent.batch import Origin
from agent.fact_store.log import Branch
from agent.fact_store.sqlite import Transaction


def report_branch(transaction: Transaction, stream: str, origin: Origin, branch: Branch) -> None:
    """One incident for each zone and stream, which names the last division: both sides are stored whole."""
    number, known = transaction.origin_number(Origin(origin.zone, branch.life)), transaction.catalog.streams[stream]
    ends = {origin.life: transaction.held(known.id, transaction.origin(origin))[-1].last_sequence}
    if number is not None and (ranges := transaction.held(known.id, number)):
        ends[branch.life] = ranges[-1].last_sequence
    where = f"after sequence {branch.after_sequence}{'' if branch.is_exact else ' or earlier'}"
    sides = " and ".join(
        f"life {life.hex()} has {max(0, end - branch.after_sequence)} facts beyond" for life, end in ends.items()
    )
    subject = f"{stream} of {origin.zone}"
    if origin.zone in transaction.pair_zones:  # expected after a failover: no alarm names this kind
        detail = f"two gateways of {origin.zone} recorded at once {where}: {sides}"
        transaction.add_incident("seam", subject, detail)
        return
    detail = (
        f"the history divides {where}: {sides}; {origin.zone} was put back to a copy, runs twice, or has two gateways"
    )
    transaction.add_incident("branch", subject, detail)
