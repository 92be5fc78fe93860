"""Gaps: values that could not be sampled, recorded as a fact. Core: no IO.

Values are missing while a source is away, and when the store or the line is too slow for a source that cannot wait: a
poll is missed, or the queue of a server overflows. Losses of the same source and reason are merged into one message, so
that many losses make few facts. The caller decides when to append it. `completeness` decides its times.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.message import Envelope, Fact, Message, canonical_json, time_text

TAGS_NAMED_MAX = 20  # a fact names the first tags affected; the count is the number of values lost
GAP_PREDICATE = "samples_lost"

STORE_REFUSED = "store_refused"  # polls that were not made because the store took nothing
POLLS_MISSED = "polls_missed"  # polls that were not made because the ones before took too long
STORE_REJECTED = "store_rejected"  # samples that the store failed to append, other than for lack of room
SERVER_QUEUE_OVERFLOW = "server_queue_overflow"  # the OPC UA server discarded values it had queued for us
NOT_DELIVERED = "not_delivered"  # the server ended a subscription, or what it sent did not arrive or cannot be read
ITEM_GONE = "item_gone"  # a tag had no item that publishes: refused, dead or changed, or its node did not exist
AGENT_STOPPED = "agent_stopped"  # values since the end of the previous process of this node
LEADER_CHANGED = "leader_changed"  # values since another gateway of the zone was last known to record
SOURCE_LOST = "source_lost"  # values since the last sign of life of a lost source
CLOCK_SET_BACK = "clock_set_back"  # a gap, in the times that the server's clock shows twice because it was set back
OUTAGE_REASONS = frozenset({AGENT_STOPPED, LEADER_CHANGED, SOURCE_LOST})
GAP_INTERVAL_S = 10.0  # gaps are merged for this long before they become a fact
EVENTS_PART = "events"  # what is complete by itself (`completeness`), beside the values of a source
BELIEVED_PART = "believed"  # the same as the values, when this node's clock was believed last; only while it is not
FILL_PREDICATE = "history_backfilled"  # the values of some outages were read from the source's own records


@dataclass(frozen=True, slots=True)
class Gap:
    """Values of one source that were lost for one reason. `count_exact` is false where only a lower bound is known."""

    source: str
    reason: str
    first_time_ns: int
    last_time_ns: int
    count: int
    count_exact: bool
    tags: tuple[str, ...] = ()

    def merged(self, later: Gap) -> Gap:
        """This gap and another of the same source and reason as one."""
        assert (self.source, self.reason) == (later.source, later.reason), "only gaps of one source and reason are one"
        tags = tuple(dict.fromkeys(self.tags + later.tags))[:TAGS_NAMED_MAX]
        return Gap(
            self.source,
            self.reason,
            min(self.first_time_ns, later.first_time_ns),
            max(self.last_time_ns, later.last_time_ns),
            self.count + later.count,
            self.count_exact and later.count_exact,
            tags,
        )


@dataclass(frozen=True, slots=True)
class TagGap:
    """A gap with the numbers of all its tags, for filling it from history."""

    reason: str
    first_time_ns: int
    last_time_ns: int
    tags: tuple[int, ...]


_APART = frozenset({LEADER_CHANGED, SOURCE_LOST, CLOCK_SET_BACK, ITEM_GONE})  # one gap would cover the time between
OUTAGES_OPEN_MAX = 100  # beyond it outages are merged too: a source may flap while the store refuses for days


class GapLog:
    """The gaps of one source that are not appended yet: one for each reason, and one for each outage of the source."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Gap] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, gap: Gap) -> None:
        is_apart = gap.reason in _APART and len(self._open) < OUTAGES_OPEN_MAX  # there were values in between
        key = gap.reason, gap.first_time_ns if is_apart else -1
        known = self._open.get(key)
        self._open[key] = gap if known is None else known.merged(gap)

    def take_gaps(self) -> list[Gap]:
        """Remove and return all gaps."""
        gaps = list(self._open.values())
        self._open.clear()
        return gaps


def gap_message(gap: Gap, zone: str, produced_at_unix_ms: int, predicate: str = GAP_PREDICATE) -> Message:
    """The fact that records a gap. Its id is derived from its content, so a repeated append is stored once."""
    content = {
        "count": gap.count,
        "count_exact": gap.count_exact,
        "first_time": time_text(gap.first_time_ns),
        "last_time": time_text(gap.last_time_ns),
        "reason": gap.reason,
        "tags": list(gap.tags),
    }
    identity = f"{zone}/{predicate}/{gap.source}/{gap.reason}/{gap.first_time_ns}-{gap.last_time_ns}/{gap.count}"
    envelope = Envelope(identity, from_zone=zone, to_zone="*", produced_at_unix_ms=produced_at_unix_ms)
    return Message(envelope, Fact(f"source:{gap.source}", predicate, canonical_json(content)))
