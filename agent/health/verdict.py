"""Core: from a snapshot to a verdict, good, late, full or broken, with every reason and what to do about it.

The person on call sees the level first and then the reasons: causes before their consequences, worst first
(problems.py). All limits are in one table, `THRESHOLDS`, with their unit and their reason. Nothing is kept between two
verdicts: the same snapshot gives the same verdict.

A store-and-forward node whose peer is away is doing its work, so being behind is *late*, not broken. It becomes an
alert when facts come near their time to live, when the store fills, or when values can no longer be stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf

from agent.health.problems import RANK, Level, Problem, Reason, counted, duration, order_by_cause
from agent.health.snapshot import (
    STANDBY,
    BrokerStatus,
    ConsumerStatus,
    HistoryStatus,
    IntegrityStatus,
    NodeSnapshot,
    PairRefusal,
    PairSnapshot,
    PeerStatus,
    SourceStatus,
    StoreStatus,
)

SHIFT_HOURS, USED_PERCENT_MIN = 8.0, 5.0
"""`hours_until_full` is judged only if this share of the store is used, or if less than a shift is left. Early in an
outage, the hours on an almost empty store only reflect the size of the disk."""
QUOTA_PERCENT = 90
"""The share of a zone's quota for unreferenced artifacts from which on there is a warning. A producer that appends its
facts stays far below it."""
ABUSING_SESSIONS = 256
"""From which on an operator must act: one certificate with so many sessions is no zone that has much to do."""
NOTHING = frozenset[str]()
PAIR = "pair"
HEARD_MS = 2_000
"""Gateways of one zone ask each other several times a second."""
LEADERLESS_S = 10.0
"""A takeover takes six seconds at most."""
SUMMARY_CHARS_MAX = 80
"""Of the first reason in the summary: a line of a terminal with the zone and the level. The reasons have all of it."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The limits of one value: beyond `warn` it is a warning, beyond `alert` an operator must act."""

    unit: str
    warn: float
    alert: float
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
    "peer_lag": Threshold("s", 1, 5, "healthy below 1 s, its high watermark below 5 s"),
    "consumer_age": Threshold("s", 60, 86_400, "a minute without a confirmation is unusual; a day is an outage"),
    # The warning leaves a weekend and the alert a working day. Neither is raised for streams whose consumers keep up: a
    # store sized for twenty hours never has more than twenty hours left.
    "hours_until_ttl_loss": Threshold("h", 72, 24, "unconfirmed facts are dropped at the end of their time to live",
                                      low_is_bad=True),
    "hours_until_full": Threshold("h", 72, 24, "a full store refuses appends or drops the oldest facts",
                                  low_is_bad=True),
    "store_fill": Threshold("%", 50, 80, "at 80 % back-pressure is near, at 100 % appends are refused"),
    "log_mb": Threshold("MB", 256, 1024, "it is cut to 64 MB whenever no reader holds it"),
    # The specification's 100 ms is a wish for a fast disk. A busy machine takes longer now and then, and nothing is
    # late for that; half a second for minutes is what the zones above begin to notice.
    "append_p99": Threshold("s", 0.5, 2.5, "a lag of a second is late, and each hop has an append"),
    "commit": Threshold("s", 5, 30, "a busy disk syncs within a second or two; a kernel resets one after 30 s"),
    "polls_missed": Threshold("%", 5, 25, "a pause of 15 s within five minutes is no slow device"),
    "append_failures": Threshold("%", 0.1, 1, "appends normally do not fail"),
    "certificate_left": Threshold("days", 30, 7, "renew a month before it ends", low_is_bad=True),
    "health_age": Threshold("s", 90, 180, "a node records its health once a minute; three missing ones are no accident"),
    "partner_silence": Threshold("s", 10, 86_400, "a restart takes seconds; a day without a second gateway is an outage"),
    "pair_clock": Threshold("s", 2, inf, "a time server keeps both within milliseconds, and an answer takes half a second"),
    "device_clock": Threshold("s", 60, inf, "drift and the network explain seconds; a minute means that a clock is wrong"),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Verdict:
    """The level of a node and the reasons. `alert`: an operator must act now. `since_unix_ms`: when the node came to
    this level."""

    level: Level
    alert: bool
    reasons: tuple[Reason, ...]
    since_unix_ms: int = 0

    def summary(self) -> str:
        """One line for a status display: the first cause."""
        if not self.reasons:
            return "good"
        first, more = self.reasons[0], len(self.reasons) - 1
        said = f"{first.subject}: {first.text}"
        if len(said) > SUMMARY_CHARS_MAX:
            said = said[: SUMMARY_CHARS_MAX - 3].rstrip() + "..."
        return f"{self.level.value}: {said}" + (f" (and {more} more)" if more else "")


def assess(snapshot: NodeSnapshot) -> Verdict:
    """The verdict on a snapshot. Causes come before their consequences, alerts first, then the worst level."""
    found = [*_node_reasons(snapshot)]
    pair, carriers = snapshot.pair, _carriers(snapshot)
    partner = "" if pair is None else pair.partner
    unheard = partner if pair and (pair.partner_heard_ms is None or pair.partner_heard_ms > HEARD_MS) else ""
    for source in snapshot.sources:
        found += _source_reasons(source, unheard)
    for broker in snapshot.brokers:
        found += _broker_reasons(broker, partner)
    for abuse in snapshot.broker_abuses:
        alert = abuse.sessions > ABUSING_SESSIONS
        found.append(_reason(Problem.BROKER_ABUSED, f"zone {abuse.zone}", abuse.why, alert=alert, zone=abuse.zone))
    if pair is not None:
        found += _pair_reasons(pair, snapshot, carriers)
    # A partner that is not heard is told by _pair_reasons: its zone is recorded.
    found += _silent_reasons([peer for peer in snapshot.peers if peer.zone != unheard])
    for peer in snapshot.peers:
        found += _peer_reasons(peer)
        found += _comparison_reasons(peer)
    ttl_hours = {stream.name: stream.ttl_hours for stream in snapshot.streams}
    for consumer in snapshot.consumers:
        depends_on = carriers.get(consumer.zone, frozenset()) | (
            {PAIR} if pair and consumer.zone in {partner, pair.witness} else NOTHING
        )
        found += _consumer_reasons(consumer, ttl_hours.get(consumer.stream), depends_on)
    since, now_ms = snapshot.since, snapshot.taken_unix_ms
    reasons = tuple(replace(reason, since_unix_ms=since.get(reason.key, now_ms)) for reason in order_by_cause(found))
    urgent = [reason.level for reason in reasons if reason.alert is reasons[0].alert]
    level = max(urgent, default=Level.GOOD, key=RANK.__getitem__)  # a cause may be less than what follows from it
    return Verdict(level, any(reason.alert for reason in reasons), reasons, since.get(level.value, now_ms))


def since_of(verdict: Verdict) -> dict[str, int]:
    """What the next snapshot tells of this verdict, so that what lasts keeps its beginning."""
    return {
        verdict.level.value: verdict.since_unix_ms,
        **{reason.key: reason.since_unix_ms for reason in verdict.reasons},
    }


def _carriers(snapshot: NodeSnapshot) -> Mapping[str, frozenset[str]]:
    """By zone: the broker at which this node meets it."""
    return {zone: frozenset({f"broker {broker.name}"}) for broker in snapshot.brokers for zone in broker.zones}


def _reason(
    problem: Problem,
    subject: str,
    text: str,
    depends_on: frozenset[str] = NOTHING,
    *,
    alert: bool = False,
    **names: str,
) -> Reason:
    """A reason with the remedy of its problem; `names` are those in it."""
    return Reason(problem, alert, subject, text, problem.value.remedy.format(**names), depends_on)


def _judge(
    limit: str,
    value: float | None,
    problem: Problem,
    subject: str,
    text: str,
    depends_on: frozenset[str] = NOTHING,
    **names: str,
) -> Iterator[Reason]:
    """A reason, if the value is beyond the threshold `limit`."""
    alert = None if value is None else THRESHOLDS[limit].passed(value)
    if alert is not None:
        yield _reason(problem, subject, text, depends_on, alert=alert, **names)


def _node_reasons(snapshot: NodeSnapshot) -> Iterator[Reason]:
    fill, store, zone = snapshot.store_fill_percent, snapshot.store, snapshot.name
    yield from _config_reasons(snapshot)
    behind = frozenset(f"consumer {consumer.name}" for consumer in snapshot.consumers if consumer.behind_facts)
    yield from _refused_reasons(store, snapshot.taken_unix_ms)
    for share in store.shares_used_up:
        yield _reason(Problem.SHARE_USED_UP, f"zone {share.zone}", share.why, behind)
    fullest = next(
        (f"stream {stream.name} is " for stream in snapshot.streams if fill and stream.fill_percent == fill), ""
    )
    text = "" if fill is None else f"{fullest}{fill:.0f} % full"
    yield from _judge("store_fill", fill, Problem.STORE_FILL, "store", text, behind)
    yield from _full_reasons(snapshot, behind)
    log_mb = store.log_bytes / 1e6
    yield from _judge("log_mb", log_mb, Problem.LOG_HELD, "store", f"its write-ahead log has {log_mb:,.0f} MB")
    yield from _artifact_reasons(store)
    yield from _integrity_reasons(snapshot.integrity)
    yield from _history_reasons(snapshot.history)
    yield from _clock_reasons(snapshot)
    days = snapshot.certificate_days_left
    text = _certificate_text(snapshot.certificate_file or "certificate", days)
    problem = Problem.CERTIFICATE_ENDS if days is None or days >= 0 else Problem.CERTIFICATE_ENDED
    yield from _judge("certificate_left", days, problem, "certificate", text, zone=zone)
    requests = snapshot.requests
    if requests.appends_total:
        # A full store is a problem only while it is full.
        failed = requests.append_failures_total - requests.appends_full_total
        text = f"{failed:,} of {requests.appends_total:,} appends failed since the start"
        percent = 100 * failed / requests.appends_total
        yield from _judge("append_failures", percent, Problem.APPENDS_FAILED, "store", text, zone=zone)
    p99, text = requests.append_p99_s, f"1 % of appends took over {THRESHOLDS['append_p99'].warn} s in the last 10 min"
    yield from _judge("append_p99", p99, Problem.APPENDS_SLOW, "store", text)
    text = f"a write to the disk has not ended for {duration(requests.commit_s)}"
    yield from _judge("commit", requests.commit_s, Problem.APPENDS_STAND, "store", text)


def _clock_reasons(snapshot: NodeSnapshot) -> Iterator[Reason]:
    doubt, now_ms = snapshot.clock.doubt, snapshot.taken_unix_ms
    shows = f"not believed: it shows {_moment(now_ms)}"
    if doubt == "before_build":
        text = f"{shows}, before this version was made; no value with its time is called good until it is set"
        yield _reason(Problem.CLOCK_UNSET, "clock", text, alert=True)
    elif doubt:
        apart = duration(abs(snapshot.clock.newest_unix_ms - now_ms) / 1000)
        sides = {"behind": f"{apart} before its newest facts", "ahead": f"{apart} after its newest facts"}
        why = sides.get(doubt, "and may have stood still while the machine was off")
        text = f"{shows}, {why}; values are called uncertain until it is set, for a day at most"
        yield _reason(Problem.CLOCK_NOT_BELIEVED, "clock", text)


def _certificate_text(file: str, days: float | None) -> str:
    if days is None or days < 0:
        left = "" if days is None else "has expired"
    else:
        left = "ends within a day" if days < 1 else f"ends in {counted(round(days), 'day')}"
    return f"{file} {left}"


def _refused_reasons(store: StoreStatus, now_unix_ms: int) -> Iterator[Reason]:
    """The store refuses appends now: the disk or a limit is full."""
    if store.appends_refused:
        since = "" if store.refused_since_unix_ms is None else _since(store.refused_since_unix_ms, now_unix_ms)
        text = f"takes no facts{since}: {store.appends_refused}"
        yield _reason(
            Problem.APPENDS_REFUSED, "store", text, remedy=store.refused_remedy or "free disk space", alert=True
        )


def _since(unix_ms: int, now_unix_ms: int) -> str:
    return f" for {duration((now_unix_ms - unix_ms) / 1000)}" if now_unix_ms > unix_ms else ""


def _config_reasons(snapshot: NodeSnapshot) -> Iterator[Reason]:
    """node.toml differs from the settings in force."""
    if snapshot.facts_unsigned:
        text = "facts are recorded without signatures, because the signing key cannot be used"
        yield _reason(Problem.FACTS_UNSIGNED, "signing", text, alert=True)
    for part in snapshot.config_not_in_force:
        effect = "goes on as it was last in force" if part.is_kept else "is left out"
        yield _reason(Problem.CONFIG_PART_REFUSED, part.subject, f"{effect}: {part.why}", alert=True)
    if snapshot.config_refused:
        text = f"was refused when it was reloaded, and the previous settings stay in force: {snapshot.config_refused}"
        yield _reason(Problem.CONFIG_REFUSED, "node.toml", "; ".join(map(str.strip, text.splitlines())), alert=True)
    elif snapshot.config_changed:
        text = "changed since the node read it; the change is not in force"
        yield _reason(Problem.CONFIG_CHANGED, "node.toml", text, zone=snapshot.name)
    if snapshot.config_waits:
        text = f"not in force until a restart: {', '.join(snapshot.config_waits)}"
        yield _reason(Problem.CONFIG_WAITS, "node.toml", text, zone=snapshot.name)


def _full_reasons(snapshot: NodeSnapshot, behind: frozenset[str]) -> Iterator[Reason]:
    """The stream that will be full first, of those without a consumer that keeps up."""
    late_s = THRESHOLDS["consumer_age"].warn
    held_back = {
        consumer.stream
        for consumer in snapshot.consumers
        if consumer.behind_facts and (consumer.oldest_unconfirmed_age_s or 0) > late_s and not _catches_up(consumer)
    }
    keeping_up = {consumer.stream for consumer in snapshot.consumers} - held_back
    at_risk = [
        (stream.hours_until_full, stream)
        for stream in snapshot.streams
        if stream.hours_until_full is not None and stream.name not in keeping_up
    ]
    is_used = (snapshot.store_fill_percent or 0.0) >= USED_PERCENT_MIN
    at_risk = [risk for risk in at_risk if risk[0] <= SHIFT_HOURS or is_used]
    if at_risk:
        hours, stream = min(at_risk, key=lambda risk: risk[0])
        pace = (stream.inflow_bytes_per_s or 0) / 1000
        text = f"{stream.name} is full in {duration(hours * 3600)} at {pace:.1f} kB/s unless its consumers confirm"
        yield from _judge("hours_until_full", hours, Problem.STORE_FULL_SOON, "store", text, behind)


def _artifact_reasons(store: StoreStatus) -> Iterator[Reason]:
    """An artifact waits for room that only an operator or retention can free, and the facts behind it wait with it; or
    a zone is at its quota."""
    of = "" if store.artifact_bytes_max is None else f" of {store.artifact_bytes_max / 1e6:,.1f}"
    taken = f"artifacts take {store.artifact_bytes / 1e6:,.1f}{of} MB"
    if store.artifact_bytes_lacking:
        lacking = f"{store.artifact_bytes_lacking / 1e6:,.1f} MB"
        text = f"{store.artifact_limit} reached: {taken}, and an artifact needs {lacking} more"
        remedy = "raise artifacts_total_bytes_max in [store], or keep the facts that refer to artifacts for less time"
        if store.artifact_limit != "artifacts_total_bytes_max":
            remedy = "free disk space; facts are still taken"
        yield _reason(Problem.ARTIFACTS_FULL, "artifacts", text, remedy=remedy, alert=True)
    quota = store.artifact_unreferenced_bytes_max
    for unreferenced in store.artifact_unreferenced:
        if quota and 100 * unreferenced.bytes >= QUOTA_PERCENT * quota:
            text = f"zone {unreferenced.zone} has {unreferenced.bytes / 1e6:,.1f} of {quota / 1e6:,.1f} MB here that no fact refers to"
            yield _reason(Problem.ARTIFACT_QUOTA, "artifacts", text)


def _integrity_reasons(integrity: IntegrityStatus) -> Iterator[Reason]:
    """One changed bit is an alert, because the disk will change more."""
    if integrity.damages:
        places = counted(integrity.damages, "place")
        text = f"{places} {'are' if integrity.damages > 1 else 'is'} damaged; the rest is served"
        yield _reason(Problem.STORE_DAMAGED, "store", text, alert=True)
    if integrity.losses:
        text = "within the last day it was gone, or an old copy that held less than it had acknowledged"
        yield _reason(Problem.STORE_LOST_FACTS, "store", text, alert=True)
    if integrity.set_aside_bytes:
        text = f"a damaged file was set aside and takes {integrity.set_aside_bytes / 1e6:,.0f} MB"
        yield _reason(Problem.FILE_SET_ASIDE, "store", text, alert=True)


HISTORY = {
    "restored": Problem.LOG_READ_FURTHER,
    "branch": Problem.HISTORY_DIVIDES,
    "gap": Problem.HISTORY_GAP,
    "facts_expired": Problem.FACTS_EXPIRED,
    "fork": Problem.HISTORY_CONTRADICTS,
    "refused": Problem.HISTORY_CONTRADICTS,
    "declined": Problem.PAIR_DECLINED,
}
"""By the kind of incident."""


def _history_reasons(history: Sequence[HistoryStatus]) -> Iterator[Reason]:
    """Nothing of this gets worse with time, so it is no alert."""
    for entry in history:
        yield _reason(HISTORY[entry.kind], entry.subject, entry.text)


def _source_reasons(source: SourceStatus, unheard: str) -> Iterator[Reason]:
    """`unheard`: the other gateway of the zone, if it is silent."""
    subject = f"source {source.name}"
    if source.tags_problem:
        problem = Problem.TAG_FILE_REFUSED if source.tags else Problem.TAG_FILE_MISSING
        yield _reason(problem, subject, f"its tag file is not in force: {source.tags_problem}", alert=True)
        if not source.tags:
            return
    without_value = 0 if source.state == STANDBY else source.tags_bad + source.tags_silent
    if source.connected and source.tags and without_value >= source.tags:
        text = f"connected, but none of its {source.tags:,} tags has a good value"
        yield _reason(Problem.SOURCE_WITHOUT_VALUES, subject, text, alert=True)
    elif source.connected and without_value and source.tags_bad:
        yield _reason(Problem.TAGS_BAD, subject, f"{source.tags_bad:,} of {source.tags:,} tags are bad", alert=True)
    missed = source.polls_missed_percent
    text = f"{missed or 0:.0f} % of its polls were missed in the last 10 min, because those before took too long"
    yield from _judge("polls_missed", missed, Problem.POLLS_MISSED, subject, text)
    days, ahead_s = source.certificate_days_left, source.clock_ahead_s
    problem = Problem.SOURCE_CERTIFICATE_ENDS if days is None or days >= 0 else Problem.SOURCE_CERTIFICATE_ENDED
    text = f"our certificate {_certificate_text(source.certificate_file, days).lstrip()}"
    yield from _judge("certificate_left", days, problem, subject, text)
    if ahead_s is not None:
        text = _clock_text("the device's", ahead_s)
        yield from _judge("device_clock", abs(ahead_s), Problem.DEVICE_CLOCK_OFF, subject, text)
    if not source.connected:
        lost = _lost_source(source, subject)
        if unheard and source.kind == "modbus" and lost.problem is Problem.SOURCE_LOST:
            held = f"{unheard}, if it stands still, may hold the only connection of the device: switch it off"
            lost = replace(lost, hint=f"{held}; {lost.hint}")
        yield lost


def _lost_source(source: SourceStatus, subject: str) -> Reason:
    """A refusal of ours or of the source ends with what to do."""
    kind, _, trouble = source.trouble.partition(": ")
    why, _, remedy = trouble.partition("; ")
    if kind == "ServerCertificateChanged":
        return _reason(Problem.SERVER_CERTIFICATE_CHANGED, subject, why, remedy=remedy, alert=True)
    last = source.last_value_unix_ms
    # Not as an age: the text is recorded, and read later in other zones.
    since = "no value yet" if last is None else f"last value {_moment(last)}"
    is_refused = kind == "SourceRefused"
    said = why if is_refused else trouble if kind == "SourceLost" else source.trouble
    problem = Problem.SOURCE_REFUSED if is_refused else Problem.SOURCE_LOST
    text = _told(f"not connected, {since}", said)
    found = _reason(problem, subject, text, alert=True, source=source.name)
    return replace(found, hint=remedy) if is_refused and remedy else found


def _moment(unix_ms: int) -> str:
    """A time in UTC, to the second."""
    return f"{datetime.fromtimestamp(unix_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _broker_reasons(broker: BrokerStatus, partner: str) -> Iterator[Reason]:
    subject = f"broker {broker.name}"
    if not broker.connected:
        trouble = " ".join(broker.trouble.split()).rstrip(". ")  # several problems come as lines
        if trouble.startswith(f"{subject} ("):  # as its own errors name it
            trouble = trouble.removeprefix(f"{subject} (").replace("): ", ": ", 1)
        text = _told("not connected", trouble)
        lost = Problem.PAIR_BROKER_LOST if broker.zones == (partner,) else Problem.BROKER_LOST
        problem = Problem.BROKER_REFUSES if broker.needs_person else lost
        yield _reason(problem, subject, text, alert=broker.needs_person, peer=next(iter(broker.zones), "ZONE"))
    if broker.identity_trouble:
        text = f"its new certificate is not in force: {broker.identity_trouble}"
        yield _reason(Problem.IDENTITY_REFUSED, subject, text)


def _silent_reasons(peers: Sequence[PeerStatus]) -> Iterator[Reason]:
    """One for each node that does not answer, whatever is pulled from it. One of two of its zone is no outage."""
    silent: dict[str, list[PeerStatus]] = {}
    answering = {peer.pair_zone for peer in peers if peer.pair_zone and not peer.is_silent}
    for peer in peers:
        if peer.is_silent:
            silent.setdefault(peer.subject, []).append(peer)
    for subject, pulls in silent.items():
        lags = [peer.lag_seconds for peer in pulls if peer.lag_seconds is not None]
        lag = max(lags, default=0.0)
        alert, streams = THRESHOLDS["peer_lag"].passed(lag), ", ".join(peer.stream for peer in pulls)
        text = f"no answer{'' if lags else ' yet'} for {streams}"
        text += "" if alert is None else f", {duration(lag)} behind"
        said = [peer.trouble.rstrip(". ") for peer in pulls if f"broker {peer.broker} (" not in peer.trouble]
        trouble = next((why for why in said if why and not why.endswith("no answer")), "")  # not said already
        carriers, told = frozenset(f"broker {peer.broker}" for peer in pulls), _told(text, trouble)
        if pulls[0].pair_zone in answering:
            text = f"{told}; the other gateway of {pulls[0].pair_zone} answers"
            yield _reason(Problem.GATEWAY_SILENT, subject, text, carriers, node=pulls[0].zone)
        else:
            yield _reason(Problem.PEER_SILENT, subject, told, carriers, alert=bool(alert))


def _told(text: str, trouble: str) -> str:
    return f"{text}: {trouble}" if trouble else text


def _peer_reasons(peer: PeerStatus) -> Iterator[Reason]:
    subject, lag = peer.subject, peer.lag_seconds
    carrier = frozenset({f"broker {peer.broker}"})
    trouble = peer.trouble.rstrip(". ")
    if peer.fenced:
        text = f"fenced: another instance of this node pulls in its place, and this one has stopped ({trouble})"
        yield _reason(Problem.PEER_FENCED, subject, text, alert=True)
        return
    if peer.blocked:  # its lag follows from that
        yield _reason(Problem.PEER_BLOCKED, subject, _told("blocked", trouble), carrier, alert=True)
        return
    if peer.page_waits:
        text = f"a page that has arrived is not stored: {peer.page_waits}"
        yield _reason(Problem.PAGE_WAITS, subject, text, carrier)
    if peer.is_silent:
        return
    behind = max(0, peer.end_offset - peer.position)
    text = (
        ""
        if lag is None
        else f"{duration(lag)} behind, {counted(behind, 'fact')} known to be outstanding{_catching_up(peer)}"
    )
    if peer.catch_up is not None and peer.catch_up.seconds_left is not None:
        text = text or _catching_up(peer).lstrip("; ")
        yield _reason(Problem.PEER_CATCHES_UP, subject, text, carrier)
        return
    for found in _judge("peer_lag", lag, Problem.PEER_LAG, subject, text, carrier):
        yield replace(found, hint=_pacing_hint(peer) or found.hint)


def _pacing_hint(peer: PeerStatus) -> str:
    if peer.pacing is None or not peer.pacing.waits:
        return ""
    limit = peer.pacing.bytes_per_second_max
    return f"bytes_per_second_max = {limit} of this peer in node.toml delays the pull; raise it if this grows"


def _comparison_reasons(peer: PeerStatus) -> Iterator[Reason]:
    """Differences that a comparison could not repair. They do not get worse with time, so they are no alert."""
    if peer.compared is not None and peer.compared.is_equal is False:
        text = "the last comparison left ranges that differ from what the peer holds"
        yield _reason(Problem.COMPARISON_DIFFERS, f"peer {peer.zone}/{peer.stream}", text, peer=peer.zone)


def _catching_up(peer: PeerStatus) -> str:
    """The progress of a pull that is far behind, and how long it will take."""
    state = peer.catch_up
    if state is None:
        return ""
    pace = "" if state.facts_per_s is None else f" at {state.facts_per_s:,.0f} facts/s"
    left = "" if state.seconds_left is None else f", {duration(state.seconds_left)} left"
    return f"; {state.percent:.0f} % caught up{pace}{left}"


def _pair_reasons(
    pair: PairSnapshot, snapshot: NodeSnapshot, carriers: Mapping[str, frozenset[str]]
) -> Iterator[Reason]:
    """What is wrong between the two gateways of a zone. A partner that is known to be silent is no peer that is: the
    zone is recorded."""
    up_s = (snapshot.taken_unix_ms - snapshot.started_unix_ms) / 1000
    silent_s = up_s if pair.partner_heard_ms is None else pair.partner_heard_ms / 1000
    is_silent = THRESHOLDS["partner_silence"].passed(silent_s)
    refusing = {refusal.node for refusal in pair.refusals}
    if pair.witness and pair.role != "alone" and pair.witness not in refusing:
        yield from _witness_reasons(pair, up_s, carriers.get(pair.witness, NOTHING))
    role_s = (snapshot.taken_unix_ms - pair.since_unix_ms) / 1000
    ways = carriers.get(pair.partner, NOTHING)
    if not pair.is_recording and not pair.leader and role_s > LEADERLESS_S:
        text = f"no gateway of {pair.zone} records, since {_moment(pair.since_unix_ms)}"
        yield _reason(Problem.PAIR_NO_LEADER, PAIR, text, alert=True)
    for refusal in pair.refusals:
        yield _refusing_reason(pair, refusal, snapshot.name)
    if is_silent is not None and (pair.role == "alone" or pair.partner not in refusing):
        heard = "no answer yet" if pair.partner_heard_ms is None else f"no answer for {duration(silent_s)}"
        problem, text = Problem.PAIR_PARTNER_SILENT, f"the other gateway, {pair.partner}, is silent: {heard}"
        if pair.role == "alone":
            problem, ways = Problem.PAIR_ALONE, ways | carriers.get(pair.witness, NOTHING)
            others = f"{pair.partner} nor {pair.witness}" if pair.witness else f"{pair.partner}, and has no witness"
            text = f"records and hears neither {others}" if pair.witness else f"records and does not hear {others}"
        yield _reason(problem, PAIR, text, ways, alert=is_silent, partner=pair.partner)
    elif pair.is_recording and pair.partner_state == "leads" and silent_s < role_s:  # not said before it died
        text = f"{snapshot.name} and {pair.partner} both record {pair.zone}"
        yield _reason(Problem.PAIR_BOTH_RECORD, PAIR, text)
    if is_silent is None and pair.partner_clock_ahead_ms is not None:
        ahead_s = pair.partner_clock_ahead_ms / 1000
        text = _clock_text(f"{pair.partner}'s", ahead_s)
        yield from _judge("pair_clock", abs(ahead_s), Problem.PAIR_CLOCKS_DIFFER, PAIR, text)


def _clock_text(whose: str, ahead_s: float) -> str:
    return f"{whose} clock is {duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} this node's"


def _witness_reasons(pair: PairSnapshot, up_s: float, ways: frozenset[str]) -> Iterator[Reason]:
    silent_s = up_s if pair.witness_heard_ms is None else pair.witness_heard_ms / 1000
    heard = "no answer yet" if pair.witness_heard_ms is None else f"no answer for {duration(silent_s)}"
    text, names = f"the witness, {pair.witness}, is silent: {heard}", {"witness": pair.witness, "zone": pair.zone}
    yield from _judge("partner_silence", silent_s, Problem.PAIR_WITNESS_SILENT, PAIR, text, ways, **names)


def _refusing_reason(pair: PairSnapshot, refusal: PairRefusal, own: str) -> Reason:
    remedy, there = refusal.hint, f"in node.toml of {refusal.node}"
    if refusal.code == "lead_not_yours" and refusal.node == pair.partner:
        remedy = f'{there}: [pair] with partner = "{own}", then restart it; or correct partner in [pair] here'
    elif refusal.code == "lead_not_yours":
        remedy = (
            f'{there}: a [[peer]] with zone = "{pair.zone}" for each node, {own} and {pair.partner}, then reload it'
        )
    text = f"{refusal.node} does not know this node as one of a pair: {refusal.why}"
    if refusal.code != "lead_not_yours":
        text = f"{refusal.node} cannot be asked who leads: {refusal.why}"
        remedy += f" Is {'partner' if refusal.node == pair.partner else 'witness'} in [pair] the right name?"
    return _reason(Problem.PAIR_REFUSED, PAIR, text, remedy=remedy, alert=True)


def _consumer_reasons(
    consumer: ConsumerStatus, ttl_hours: float | None, depends_on: frozenset[str]
) -> Iterator[Reason]:
    age, subject = consumer.oldest_unconfirmed_age_s, f"consumer {consumer.name}"
    if not consumer.behind_facts or consumer.state == "deletion started":  # the operator has given its facts up
        return
    catches_up = _catches_up(consumer)
    if age is not None:
        text = (
            f"{duration(age)} behind ({counted(consumer.behind_facts, 'fact')} of {consumer.stream}), {consumer.state}"
        )
        kept = "(unconfirmed facts are kept for it)"
        remedy = f"is its process running? If it will not return: bsfg consumer remove {kept}"
        if consumer.facts_per_s is not None or consumer.state.startswith("online"):
            remedy = f"it reads, and fetches the missing facts page by page {kept}"
        if catches_up:
            text += (
                f", catches up at {consumer.facts_per_s or 0:,.0f} facts/s, {duration(consumer.seconds_left or 0)} left"
            )
        late = _judge("consumer_age", age, Problem.CONSUMER_BEHIND, subject, text, depends_on, remedy=remedy)
        yield from _as_warnings(catches_up, late)
    left = consumer.hours_until_ttl_loss
    if left is not None and ttl_hours is not None and left <= ttl_hours / 2:
        text = f"its oldest fact is dropped unconfirmed in {duration(left * 3600)}, after {ttl_hours:g} h"
        remedy = "bring it back, remove it if it will not return, or raise the stream's ttl_hours"
        if catches_up:
            remedy = "it catches up; facts that it confirms in time are not dropped"
        has_just_come = age is not None and age < THRESHOLDS["consumer_age"].warn  # its rate is not known yet
        lost = _judge("hours_until_ttl_loss", left, Problem.CONSUMER_LOSES, subject, text, depends_on, remedy=remedy)
        yield from _as_warnings(catches_up or has_just_come, lost)


def _catches_up(consumer: ConsumerStatus) -> bool:
    """Whether it will have everything within a day. After a day without progress there is an outage."""
    return consumer.seconds_left is not None and consumer.seconds_left < THRESHOLDS["consumer_age"].alert


def _as_warnings(if_passing: bool, reasons: Iterator[Reason]) -> Iterator[Reason]:  # noqa: FBT001 reads as an if
    """The reasons, none of them an alert if the problem passes by itself."""
    for reason in reasons:
        yield replace(reason, alert=reason.alert and not if_passing)
