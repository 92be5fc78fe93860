"""Core: from a snapshot to a verdict, good, late, full or broken, with every reason and what to do about it.

The person on call sees the level first and then the reasons, worst first. All limits are in one table, `THRESHOLDS`,
with their unit and their reason. Nothing is kept between two verdicts: the same snapshot gives the same verdict.

A store-and-forward node whose peer is away is doing its work, so being behind is *late*, not broken. It becomes an
alert when facts come near their time to live, when the store fills, or when values can no longer be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from agent.health.snapshot import (
    BrokerStatus,
    ConsumerStatus,
    IntegrityStatus,
    NodeSnapshot,
    OriginStatus,
    PeerStatus,
    SourceStatus,
    StoreStatus,
)


class Level(Enum):
    """The state of a node, worst last."""

    GOOD = "good"
    LATE = "late"
    FULL = "full"
    BROKEN = "broken"


_ROOM_HINT = "see which consumer is behind (bsfg status); remove one that will not return, or give the store more room"
SHIFT_HOURS, USED_PERCENT_MIN = 8.0, 5.0
"""`hours_until_full` is judged only if this share of the store is used, or if less than a shift is left. Early in an
outage, the hours on an almost empty store only reflect the size of the disk."""
QUOTA_PERCENT = 90
"""The share of a zone's quota for unreferenced artifacts from which on there is a warning. A producer that appends its
facts stays far below it."""
RANK = {level: rank for rank, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class Threshold:
    """The limits of one value: beyond `warn` it is a warning, beyond `alert` an operator must act."""

    unit: str
    warn: float
    alert: float
    level: Level
    because: str
    low_is_bad: bool = False

    def passed(self, value: float) -> bool | None:
        """True for an alert, False for a warning, None when all is well."""
        sign = -1 if self.low_is_bad else 1
        if sign * value > sign * self.alert:
            return True
        return False if sign * value > sign * self.warn else None


# A table is read by rows.
# fmt: off
THRESHOLDS = {
    # The specification's runbook calls 100 ms healthy, its page on observability 1 s and a high watermark of 5 s. A
    # group commit every 250 ms at each hop makes 100 ms a false alarm, so the second applies.
    "peer_lag": Threshold("s", 1, 5, Level.LATE, "healthy below 1 s, its high watermark below 5 s"),
    "consumer_age": Threshold("s", 60, 86_400, Level.LATE,
                              "a minute without a confirmation is unusual; a day is an outage"),
    # The warning leaves a weekend and the alert a working day. Neither is raised for streams whose consumers keep up: a
    # store sized for twenty hours never has more than twenty hours left.
    "hours_until_ttl_loss": Threshold("h", 72, 24, Level.LATE,
                              "unconfirmed facts are dropped at the end of their time to live", low_is_bad=True),
    "hours_until_full": Threshold("h", 72, 24, Level.FULL,
                              "a full store refuses appends or drops the oldest facts", low_is_bad=True),
    "store_fill": Threshold("%", 50, 80, Level.FULL, "at 80 % back-pressure is near, at 100 % appends are refused"),
    "append_p99": Threshold("s", 0.1, 0.5, Level.LATE, "an append that takes over 100 ms points at the disk"),
    "append_failures": Threshold("%", 0.1, 1, Level.BROKEN, "appends normally do not fail"),
    "certificate_left": Threshold("days", 30, 7, Level.BROKEN, "renew a month before it ends", low_is_bad=True),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Reason:
    """One problem: its subject, what is wrong, what to do, and whether an operator must act now (`alert`)."""

    level: Level
    alert: bool
    subject: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The level of a node and the reasons. `alert`: an operator must act now."""

    level: Level
    alert: bool
    reasons: tuple[Reason, ...]

    def summary(self) -> str:
        """One line for a status display."""
        if not self.reasons:
            return "good"
        first, more = self.reasons[0], len(self.reasons) - 1
        return f"{self.level.value}: {first.subject}: {first.text}" + (f" (and {more} more)" if more else "")


def assess(snapshot: NodeSnapshot) -> Verdict:
    """The verdict on a snapshot. Alerts come first, then the worst level."""
    found = [*_node_reasons(snapshot)]
    for source in snapshot.sources:
        found += _source_reasons(source, snapshot.taken_unix_ms)
    for broker in snapshot.brokers:
        found += _broker_reasons(broker)
        found += _identity_reasons(broker)
    for peer in snapshot.peers:
        found += _peer_reasons(peer)
        found += _comparison_reasons(peer)
    for origin in snapshot.origins:
        found += _origin_reasons(origin, snapshot.taken_unix_ms)
    ttl_hours = {stream.name: stream.ttl_hours for stream in snapshot.streams}
    for consumer in snapshot.consumers:
        found += _consumer_reasons(consumer, ttl_hours.get(consumer.stream))
    reasons = tuple(sorted(found, key=lambda reason: (not reason.alert, -RANK[reason.level], reason.subject)))
    if not reasons:
        return Verdict(Level.GOOD, alert=False, reasons=())
    return Verdict(reasons[0].level, reasons[0].alert, reasons)


def _judge(limit: str, value: float | None, subject: str, text: str, hint: str) -> Iterator[Reason]:
    """A reason, if the value is beyond the threshold `limit`."""
    threshold = THRESHOLDS[limit]
    alert = None if value is None else threshold.passed(value)
    if alert is not None:
        yield Reason(threshold.level, alert, subject, text, hint)


def _node_reasons(snapshot: NodeSnapshot) -> Iterator[Reason]:
    fill, requests = snapshot.store_fill_percent, snapshot.requests
    yield from _config_reasons(snapshot)
    yield from _judge(
        *("store_fill", fill, "store", "" if fill is None else f"{fill:.0f} % full"),
        _ROOM_HINT,
    )
    yield from _full_reasons(snapshot)
    yield from _artifact_reasons(snapshot.store)
    yield from _integrity_reasons(snapshot.integrity)
    days = snapshot.certificate_days_left
    left = "" if days is None else f"{days:.0f} days left" if days > 0 else "has expired"
    yield from _judge("certificate_left", days, "certificate", left, "renew it and install the new one")
    if requests.appends_total:
        failed = 100 * requests.append_failures_total / requests.appends_total
        text = f"{requests.append_failures_total} of {requests.appends_total} appends failed"
        yield from _judge("append_failures", failed, "store", text, "the log names each one; check the disk")
    p99 = requests.append_latency.quantile_s(0.99)
    yield from _judge("append_p99", p99, "store", f"99 % of appends take up to {p99} s", "check the disk and its load")


def _config_reasons(snapshot: NodeSnapshot) -> Iterator[Reason]:
    """node.toml differs from the settings in force."""
    for part in snapshot.config_not_in_force:
        effect = "goes on as it was last in force" if part.is_kept else "is left out"
        hint = "correct node.toml (bsfg check lists every problem); the node then goes on by itself"
        yield Reason(Level.BROKEN, alert=True, subject=part.subject, text=f"{effect}: {part.why}", hint=hint)
    if snapshot.config_refused:
        text = f"was refused when it was reloaded, and the previous settings stay in force: {snapshot.config_refused}"
        hint = "bsfg check lists every problem; then bsfg reload"
        yield Reason(Level.BROKEN, alert=True, subject="node.toml", text=" ".join(text.split()), hint=hint)
    elif snapshot.config_changed:
        text = "changed since the node read it; the change is not in force"
        hint = "bsfg check, then systemctl reload bsfg@ZONE, or bsfg reload"
        yield Reason(Level.GOOD, alert=False, subject="node.toml", text=text, hint=hint)
    if snapshot.config_waits:
        text = f"not in force until a restart: {', '.join(snapshot.config_waits)}"
        yield Reason(Level.GOOD, alert=False, subject="node.toml", text=text, hint="restart the node")


def _full_reasons(snapshot: NodeSnapshot) -> Iterator[Reason]:
    """The stream that will be full first, of those without a consumer that keeps up."""
    late_s = THRESHOLDS["consumer_age"].warn
    keeping_up = {one.stream: True for one in snapshot.consumers}
    for one in snapshot.consumers:
        if one.behind_facts and (one.oldest_unconfirmed_age_s or 0) > late_s and not _catches_up(one):
            keeping_up[one.stream] = False
    at_risk = [
        (one.hours_until_full, one)
        for one in snapshot.streams
        if one.hours_until_full is not None and not keeping_up.get(one.name, False)
    ]
    used = max([snapshot.store_fill_percent or 0.0, *(one.fill_percent or 0.0 for one in snapshot.streams)])
    at_risk = [each for each in at_risk if each[0] <= SHIFT_HOURS or used >= USED_PERCENT_MIN]
    if at_risk:
        hours, stream = min(at_risk, key=lambda each: each[0])
        pace = (stream.inflow_bytes_per_s or 0) / 1000
        text = f"{stream.name} is full in {duration(hours * 3600)} at {pace:.1f} kB/s unless its consumers confirm"
        yield from _judge("hours_until_full", hours, "store", text, _ROOM_HINT)


def _artifact_reasons(store: StoreStatus) -> Iterator[Reason]:
    """An artifact waits for room that only an operator or retention can free, and the facts behind it wait with it; or
    a zone is at its quota."""
    of = "" if store.artifact_bytes_max is None else f" of {store.artifact_bytes_max / 1e6:,.1f}"
    taken = f"artifacts take {store.artifact_bytes / 1e6:,.1f}{of} MB"
    if store.artifact_bytes_lacking:
        lacking = f"{store.artifact_bytes_lacking / 1e6:,.1f} MB"
        text = f"{store.artifact_limit} reached: {taken}, and an artifact needs {lacking} more"
        hint = "raise artifacts_total_bytes_max in [store], or keep the facts that refer to artifacts for less time"
        if store.artifact_limit != "artifacts_total_bytes_max":
            hint = "free disk space; facts are still taken"
        yield Reason(Level.FULL, alert=True, subject="artifacts", text=text, hint=hint)
    quota = store.artifact_unreferenced_bytes_max
    for one in store.artifact_unreferenced:
        if quota and 100 * one.bytes >= QUOTA_PERCENT * quota:
            text = f"zone {one.zone} has {one.bytes / 1e6:,.1f} of {quota / 1e6:,.1f} MB here that no fact refers to"
            hint = "find out what it sends; what no fact refers to is removed after artifact_orphan_hours"
            yield Reason(Level.LATE, alert=False, subject="artifacts", text=text, hint=hint)


def _integrity_reasons(integrity: IntegrityStatus) -> Iterator[Reason]:
    """One changed bit is an alert, because the disk will change more."""
    if integrity.damages:
        text = f"{integrity.damages} places are damaged; the rest is served"
        hint = "bsfg store verify names them; check the disk, and see docs/operate/integrity.md"
        yield Reason(Level.BROKEN, alert=True, subject="store", text=text, hint=hint)
    if integrity.losses:
        text = "at a start within the last day the store was gone, or held less than it had acknowledged"
        hint = "bsfg store stats shows the incident; see docs/operate/integrity.md"
        yield Reason(Level.BROKEN, alert=True, subject="store", text=text, hint=hint)
    if integrity.set_aside_bytes:
        text = f"a damaged file was set aside and takes {integrity.set_aside_bytes / 1e6:,.0f} MB"
        hint = "export what it still holds (bsfg store export --file), then remove it"
        yield Reason(Level.BROKEN, alert=True, subject="store", text=text, hint=hint)


def _source_reasons(source: SourceStatus, now_unix_ms: int) -> Iterator[Reason]:
    subject = f"source {source.name}"
    if source.tags_problem:
        hint = "the tags of the previous file are still read; bsfg check prints every problem of the file"
        if not source.tags:
            hint = "nothing is read, because no earlier file was in force; bsfg check prints every problem of the file"
        yield Reason(Level.BROKEN, True, subject, f"its tag file is not in force: {source.tags_problem}", hint)
        if not source.tags:
            return
    without_value = source.tags_bad + source.tags_silent
    if source.connected and source.tags and without_value >= source.tags:
        text = f"connected, but none of its {source.tags} tags has a good value"
        hint = "see the log (parked, unit lost), then the device behind the server; the node tries again by itself"
        yield Reason(Level.BROKEN, True, subject, text, hint)
    elif source.connected and source.tags_bad:
        text = f"{source.tags_bad} of {source.tags} tags are bad"
        hint = "bsfg latest shows which; the log names those that are refused; correct the tag file or the device"
        yield Reason(Level.BROKEN, False, subject, text, hint)
    days = source.certificate_days_left
    left = "" if days is None else f"ends in {days:.0f} days" if days > 0 else "has ended"
    hint = "bsfg opcua certificate --renew makes the next one; trust it at the server (docs/operate/opcua.md)"
    yield from _judge("certificate_left", days, subject, f"our certificate {left}", hint)
    if source.connected:
        return
    last = source.last_value_unix_ms
    since = "never gave a value" if last is None else f"last value {duration((now_unix_ms - last) / 1000)} ago"
    text = f"not connected, {since}" + (f": {source.trouble}" if source.trouble else "")
    hint = f"check the device and the network to it; values are not being read ({source.kind})"
    if source.trouble.startswith("SourceRefused"):
        hint = f"this does not pass by itself; bsfg {source.kind} test {source.name} tries each step"
    yield Reason(Level.BROKEN, True, subject, text, hint)


def _broker_reasons(broker: BrokerStatus) -> Iterator[Reason]:
    if not broker.connected:
        trouble = " ".join(broker.trouble.split()).rstrip(". ")  # several problems come as lines
        text = "not connected" + (f": {trouble}" if trouble else "")
        hint = "facts wait on both sides until the broker is back; bsfg broker check tries each step"
        if broker.needs_person:
            hint = "this does not pass by itself; bsfg peer test tries each step (docs/operate/certificates.md)"
        yield Reason(Level.BROKEN, broker.needs_person, f"broker {broker.name}", text, hint)


def _identity_reasons(broker: BrokerStatus) -> Iterator[Reason]:
    if broker.identity_trouble:
        text = f"its new certificate is not in force: {broker.identity_trouble}"
        hint = "the previous one is still in use; install the right files, or the old ones again (bsfg check)"
        yield Reason(Level.BROKEN, False, f"broker {broker.name}", text, hint)


def _peer_reasons(peer: PeerStatus) -> Iterator[Reason]:
    subject, lag = f"peer {peer.zone}/{peer.stream}", peer.lag_seconds
    if peer.fenced:
        why = peer.trouble.rstrip(". ")
        text = f"fenced: another instance of this node pulls in its place, and this one has stopped ({why})"
        hint = "docs/operate/peers.md says how to find the other one"
        yield Reason(Level.BROKEN, True, subject, text, hint)
        return
    if not peer.connected:
        what = "blocked" if peer.blocked else "no answer yet" if lag is None else "no answer"
        text = what + (f": {peer.trouble.rstrip('. ')}" if peer.trouble else "")
        hint = "facts wait at the peer and are lost only by their time to live"
        if peer.blocked:
            hint = f"an operator must remove the cause (docs/operate/peers.md); asked again once a minute; {hint}"
        yield Reason(Level.BROKEN, peer.blocked, subject, text, hint)
        if peer.blocked:
            return  # its lag follows from that
    if peer.page_waits:
        hint = "the node tries again by itself; nothing is lost, the facts stay at the peer"
        yield Reason(Level.FULL, False, subject, f"a page that has arrived is not stored: {peer.page_waits}", hint)
    behind = max(0, peer.end_offset - peer.position)
    text = "" if lag is None else f"{duration(lag)} behind, {behind} facts known to be outstanding{_catching_up(peer)}"
    if peer.connected and peer.catch_up is not None and peer.catch_up.seconds_left is not None:
        hint = "it catches up by itself; a new zone, or one that was away, fetches the missing facts page by page"
        yield Reason(Level.LATE, alert=False, subject=subject, text=text or _catching_up(peer).lstrip("; "), hint=hint)
        return
    yield from _judge("peer_lag", lag, subject, text, _lag_hint(peer))


def _origin_reasons(origin: OriginStatus, now_unix_ms: int) -> Iterator[Reason]:
    """Signed facts that do not arrive although newer signatures do: the zone works, and a node on the path withholds
    facts. An origin without any signatures looks like an outage, which the peer's lag shows."""
    subject = f"origin {origin.zone}/{origin.stream}"
    if origin.is_withheld:
        text = f"{origin.behind} facts that it has signed do not arrive: a node in between holds them back"
        hint = "compare with the zone itself, or by another path (docs/operate/threats.md)"
        yield Reason(Level.BROKEN, True, subject, text, hint)
    elif origin.is_stale:
        age = duration((now_unix_ms - origin.signed_at_ms) / 1000)
        hint = "the zone, or a node on the way to it, is away; its facts wait there"
        yield Reason(Level.LATE, False, subject, f"nothing signed by it has been seen for {age}", hint)


def _lag_hint(peer: PeerStatus) -> str:
    if peer.pacing is None or not peer.pacing.waits:
        return "it catches up by itself; look at the peer if this grows"
    limit = peer.pacing.bytes_per_second_max
    return f"bytes_per_second_max = {limit} of this peer in node.toml delays the pull; raise it if this grows"


def _comparison_reasons(peer: PeerStatus) -> Iterator[Reason]:
    """Differences that a comparison could not repair. They do not get worse with time, so they are no alert."""
    if peer.compared is not None and peer.compared.is_equal is False:
        text = "the last comparison left ranges that differ from what the peer holds"
        hint = f"bsfg peer compare {peer.zone} names them; see docs/operate/integrity.md"
        yield Reason(Level.BROKEN, False, f"peer {peer.zone}/{peer.stream}", text, hint)


def _catching_up(peer: PeerStatus) -> str:
    """The progress of a pull that is far behind, and how long it will take."""
    state = peer.catch_up
    if state is None:
        return ""
    pace = "" if state.facts_per_s is None else f" at {state.facts_per_s:,.0f} facts/s"
    left = "" if state.seconds_left is None else f", {duration(state.seconds_left)} left"
    return f"; {state.percent:.0f} % caught up{pace}{left}"


def _consumer_reasons(consumer: ConsumerStatus, ttl_hours: float | None) -> Iterator[Reason]:
    age, subject = consumer.oldest_unconfirmed_age_s, f"consumer {consumer.name}"
    if not consumer.behind_facts:
        return
    catches_up = _catches_up(consumer)
    if age is not None:
        text = f"{duration(age)} behind ({consumer.behind_facts} facts of {consumer.stream}), {consumer.state}"
        kept = "(unconfirmed facts are kept for it)"
        hint = f"is its process running? {kept}"
        if consumer.facts_per_s is not None or consumer.state.startswith("online"):
            hint = f"it reads, and fetches the missing facts page by page {kept}"
        if catches_up:
            text += (
                f", catches up at {consumer.facts_per_s or 0:,.0f} facts/s, {duration(consumer.seconds_left or 0)} left"
            )
        yield from _as_warnings(catches_up, _judge("consumer_age", age, subject, text, hint))
    left = consumer.hours_until_ttl_loss
    if left is not None and ttl_hours is not None and left <= ttl_hours / 2:
        text = f"its oldest fact is dropped unconfirmed in {duration(left * 3600)}, after {ttl_hours:g} h"
        hint = "bring it back, remove it if it will not return, or raise the stream's ttl_hours"
        if catches_up:
            hint = "it catches up; facts that it confirms in time are not dropped"
        has_just_come = age is not None and age < THRESHOLDS["consumer_age"].warn  # its rate is not known yet
        yield from _as_warnings(catches_up or has_just_come, _judge("hours_until_ttl_loss", left, subject, text, hint))


def _catches_up(consumer: ConsumerStatus) -> bool:
    """Whether it will have everything within a day. After a day without progress there is an outage."""
    return consumer.seconds_left is not None and consumer.seconds_left < THRESHOLDS["consumer_age"].alert


def _as_warnings(if_passing: bool, reasons: Iterator[Reason]) -> Iterator[Reason]:  # noqa: FBT001 reads as an if
    """The reasons, none of them an alert if the problem passes by itself."""
    for reason in reasons:
        yield replace(reason, alert=reason.alert and not if_passing)


def duration(seconds: float) -> str:
    """A duration in the unit that a person would use."""
    for unit, length_s in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"
