"""The counters and states of sources, as the status and the metrics show them."""

from __future__ import annotations

from dataclasses import dataclass

from agent.ingest.lifecycle import State

CONNECTED_STATES = (State.CONNECTED, State.STANDBY)


@dataclass(frozen=True, slots=True)
class EventStatistics:
    """The events of a source since the start of the process. A time of 0: none yet."""

    events_total: int
    lost_total: int  # received and not stored; a fact records each loss
    last_event_unix_ms: int
    conditions_retained: int


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """The counters and state of a source since the start of the process. Times of 0: never."""

    name: str
    kind: str
    state: State
    tags: int
    tags_bad: int  # the last sample is bad
    tags_silent: int  # no sample since the start of the process
    values_total: int
    backfilled_total: int  # read from the source's history after a gap
    gaps_open: int  # known and not yet filled from history
    dropped_total: int
    duplicates_total: int
    out_of_order_total: int
    polls_total: int
    polls_missed_total: int
    polls_late_total: int
    store_refused_total: int
    last_value_unix_ms: int
    clock_ahead_s: float | None  # the clock of the source, of ours; None if it has none, or has not been read
    service_level: int | None  # of an OPC UA server, 0 to 255; None if it was not read
    connects_total: int
    errors_total: int
    last_error: str
    remarks: str  # what was learned about the device; empty if it needs no attention
    tags_problem: str  # why the present tag file is not in force; empty if it is
    events: EventStatistics | None  # None if none are configured
    turns_total: int  # grows whenever anything is done for this source, failures included: proof of work

    @property
    def connected(self) -> bool:
        return self.state in CONNECTED_STATES
