"""Core: every problem that a verdict can name, what it means, what to do, and which other problems it explains.

`EXPLAINS` is read from the cause to its consequences. `order_by_cause` puts a consequence below every cause of it that
is present, so that the first line of a status is a cause: a stopped broker, and not the lag that follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Level(Enum):
    """The state of a node, worst last."""

    GOOD = "good"
    LATE = "late"
    FULL = "full"
    BROKEN = "broken"


RANK = {level: rank for rank, level in enumerate(Level)}


class ProblemKind(NamedTuple):
    """What a problem means and what to do. `remedy` may hold {names} that the reason fills in."""

    level: Level
    meaning: str
    remedy: str


_good, _late, _full, _broken = (partial(ProblemKind, level) for level in Level)


class Problem(Enum):
    """Each problem by the name that the status's JSON gives it."""

    # ------------------------------------------------------------------------------------------- this node and its store
    APPENDS_REFUSED = _full(
        "The store takes no new facts. What it holds is served and confirmed. Sources wait and record a gap.",
        "{remedy}",
    )
    SHARE_USED_UP = _full(
        "A zone has used up its share of the store. Its facts are refused; those of other zones are stored.",
        "see which reader of its streams is behind, or give it more (share_bytes of its [[peer]])",
    )
    STORE_FILL = _full(
        "The store, its stream or its disk is half full or more of what retention cannot free.",
        "see which consumer is behind (remove one that will not return) and what else fills the disk (df -h), or "
        "give the store more room",
    )
    STORE_FULL_SOON = _full(
        "At the present rate a stream reaches its limit soon, because a consumer does not confirm.",
        "see which consumer is behind; remove one that will not return, or give the store more room",
    )
    APPENDS_FAILED = _broken(
        "The disk failed appends since the start, or they were refused for another reason than a full store.",
        "journalctl -u bsfg@{zone}; check the disk (dmesg, SMART)",
    )
    APPENDS_SLOW = _late(
        "Appends take long until they are on the disk.", "check the disk and its load (bsfg hardware check)"
    )
    APPENDS_STAND = _broken(
        "The disk does not end a write. Nothing is stored meanwhile; values wait in memory.",
        "check the disk (dmesg, SMART) and, on a virtual machine, its storage",
    )
    LOG_HELD = _late(
        "The write-ahead log cannot be reused, because a program keeps a read of the database open. It grows.",
        "end that program; as root or as the node's user, bsfg status names it",
    )
    STORE_DAMAGED = _broken(
        "Bytes in the store's file have changed. Readers find a hole there; the rest is served.",
        "bsfg store verify names the places; check the disk, then fetch them: bsfg peer compare ZONE --scan --repair "
        "(docs/operate/integrity.md)",
    )
    STORE_LOST_FACTS = _broken(
        "The store was gone, or an old copy was in its place. What peers hold comes back.",
        "bsfg store stats shows the incident (docs/operate/integrity.md)",
    )
    LOG_READ_FURTHER = _good(
        "A peer has read facts that this store has no more, or those of another copy of it, within the last day.",
        "nothing if it was put back: they come home by comparison. Else a copy of this machine runs: stop one of the two",
    )
    HISTORY_DIVIDES = _good(
        "Within the last day, a zone's store was put back to a copy, ran twice, or the second of its two gateways took over. "
        "Both sides are stored.",
        "nothing if it has two gateways, or was put back on purpose; else a copy of its machine runs: stop one of the two",
    )
    HISTORY_GAP = _good(
        "Facts of a zone before others that arrived within the last day were not at the peer, or declined here.",
        "bsfg peer compare ZONE --repair, with another peer that may hold them",
    )
    FACTS_EXPIRED = _good(
        "Within the last day, facts were deleted that a consumer had not confirmed.",
        "bsfg consumer list: remove one that will not return, or give the stream more room or time "
        "(docs/operate/retention.md)",
    )
    HISTORY_CONTRADICTS = _broken(
        "Two batches of one life contradict each other. What overlaps facts held here is not stored.",
        "never resume a node from a suspended image; export the refused facts where they are (docs/operate/integrity.md)",
    )
    FILE_SET_ASIDE = _broken(
        "The store's file could not be used. It was set aside and a new one begun.",
        "export what it still holds (bsfg store export --file), then remove it",
    )
    ARTIFACTS_FULL = _full("An artifact waits for room, and the facts that refer to it wait with it.", "{remedy}")
    ARTIFACT_QUOTA = _late(
        "A zone has sent many artifacts that no fact refers to.",
        "find out what it sends; what no fact refers to is removed after artifact_orphan_hours",
    )
    FACTS_UNSIGNED = _broken(
        "The node has a signing key that cannot be used. Facts are recorded without signatures.",
        "bsfg check says why; then bsfg reload. The next signed facts prove those before them",
    )
    CONFIG_REFUSED = _broken(
        "node.toml was refused when it was reloaded. The settings before stay in force.",
        "bsfg check lists every problem; then bsfg reload",
    )
    CONFIG_PART_REFUSED = _broken(
        "A section of node.toml is wrong. It is left out, or goes on as it was; everything else runs.",
        "correct node.toml (bsfg check lists every problem); the node then goes on by itself",
    )
    CONFIG_CHANGED = _good(
        "node.toml was edited and not reloaded.", "bsfg check, then systemctl reload bsfg@{zone}, or bsfg reload"
    )
    CONFIG_WAITS = _good("Some settings of node.toml are read only at a start.", "systemctl restart bsfg@{zone}")
    CLOCK_UNSET = _broken(
        "The clock of this machine was never set. Certificates are refused, good values are uncertain.",
        "set the clock (timedatectl set-time), or see why the time server does not (timedatectl timesync-status)",
    )
    CLOCK_NOT_BELIEVED = _late(
        "The clock of this machine is probably wrong. Good values with its times are uncertain.",
        "if it is right, nothing: it was wrong before. Else set the clock (timedatectl set-time), or see why the time server does not (timedatectl timesync-status)",
    )
    CERTIFICATE_ENDED = _broken(
        "The certificate with which this node connects to its brokers has expired; they refuse it.",
        "at the authority: bsfg pki sign {zone}; copy the new certificate over that file",
    )
    CERTIFICATE_ENDS = _broken(
        "The certificate with which this node connects to its brokers expires soon.",
        "at the authority: bsfg pki sign {zone}; copy the new certificate over that file",
    )
    # ------------------------------------------------------------------------------------------------------------ sources
    SERVER_CERTIFICATE_CHANGED = _broken(
        "The OPC UA server presents another certificate than the one that was trusted. Nothing is read.", "{remedy}"
    )
    SOURCE_REFUSED = _broken(
        "The source refuses the connection, or our own rules do. It does not pass by itself.",
        "bsfg source test {source} tries each step",
    )
    SOURCE_LOST = _broken(
        "The source does not answer. Its values are not read; the node tries again by itself.",
        "check the device and the network to it; bsfg source test {source} tries each step",
    )
    SOURCE_WITHOUT_VALUES = _broken(
        "The source is connected, and no tag has a good value.",
        "see the device behind the server, and bsfg latest; the node tries again by itself",
    )
    TAGS_BAD = _late(
        "The device reports some tags as bad, or refuses them. The others are read.",
        "bsfg latest shows which; correct the tag file or the device",
    )
    POLLS_MISSED = _late(
        "The device or server answers more slowly than it is polled. What lies between is in gap facts.",
        "a longer poll_interval_ms, or fewer tags",
    )
    TAG_FILE_REFUSED = _broken(
        "The tag file has a mistake. The tags of the file before are still read.",
        "bsfg check lists the problems of the file",
    )
    TAG_FILE_MISSING = _broken(
        "The tag file has a mistake or is missing, and none was in force before. Nothing is read.",
        "bsfg check lists the problems of the file; once it is right, it is read by itself",
    )
    DEVICE_CLOCK_OFF = _late(
        "The device's clock differs from this node's. Times of its values are its own.",
        "set the clock of the device, or of this node (timedatectl)",
    )
    SOURCE_CERTIFICATE_ENDED = _broken(
        "Our certificate for an OPC UA server has expired; the server refuses it.",
        "bsfg opcua certificate --renew, then trust it at the server (docs/operate/opcua.md)",
    )
    SOURCE_CERTIFICATE_ENDS = _broken(
        "Our certificate for an OPC UA server expires soon.",
        "bsfg opcua certificate --renew, then trust it at the server (docs/operate/opcua.md)",
    )
    # ------------------------------------------------------------------------------------------------- brokers and peers
    BROKER_LOST = _broken(
        "The broker cannot be reached. Facts wait on both sides.",
        "start the broker, or check the network to it; bsfg peer test {peer} tries each step",
    )
    PAIR_BROKER_LOST = _late(
        "The broker between the two gateways cannot be reached.",
        "start the broker, or the gateway it runs on; bsfg peer test {peer} tries each step",
    )
    BROKER_REFUSES = _broken(
        "The broker refuses this node, or its certificate cannot be used. It does not pass by itself.",
        "bsfg peer test {peer} tries each step (docs/operate/certificates.md)",
    )
    IDENTITY_REFUSED = _broken(
        "The certificate in the files was changed and cannot be used. The one before is still in use.",
        "install the right files, or the old ones again (bsfg check)",
    )
    BROKER_ABUSED = _late(
        "A certificate takes more of the broker on this machine than a zone does. It may keep others from connecting.",
        "if it should not: bsfg broker deny {zone}, here; at the authority bsfg pki revoke {zone}",
    )
    PEER_FENCED = _broken(
        "Another instance of this node pulls in its place, and this one has stopped.",
        "find the other one (docs/operate/peers.md)",
    )
    PEER_BLOCKED = _broken(
        "The peer, or this store, refuses for good. It is asked again once a minute.",
        "remove the cause (docs/operate/peers.md); facts wait at the peer until their time to live",
    )
    PEER_SILENT = _broken(
        "The peer does not answer, though the broker is connected.",
        "start the node of that zone; if it runs, bsfg peer test ZONE finds the step that fails; facts wait at the peer until "
        "their time to live",
    )
    GATEWAY_SILENT = _late(
        "One of two gateways of a zone does not answer; the other one does.",
        "start it: systemctl status bsfg@{node}, there; if it runs, bsfg peer test {node} finds what fails",
    )
    PAGE_WAITS = _full(
        "Facts of a peer have arrived and cannot be stored yet. They also stay at the peer.",
        "nothing: the node tries again by itself",
    )
    PEER_CATCHES_UP = _late("A new or returned zone fetches missing facts page by page.", "nothing: wait")
    PEER_LAG = _late(
        "Facts that the peer has are not here yet.", "it catches up by itself; look at the peer if this grows"
    )
    COMPARISON_DIFFERS = _broken(
        "A comparison with the peer left differences that it could not repair.",
        "bsfg peer compare {peer} names them (docs/operate/integrity.md)",
    )
    # --------------------------------------------------------------------------------------------- two gateways of a zone
    PAIR_NO_LEADER = _broken(
        "No gateway records: this one cannot, and the other one does not lead.",
        "on both: bsfg status; a gateway records when its store takes facts and a source is connected",
    )
    PAIR_REFUSED = _broken(
        "The other gateway or the witness does not know this one as one of a pair.",
        "{remedy}",
    )
    PAIR_DECLINED = _broken(
        "Facts of this zone that the other gateway brought are not stored here for want of a trusted signature.",
        "let both sign, each with a key that the other one trusts, or neither; bsfg check on both",
    )
    PAIR_ALONE = _late(
        "This gateway hears neither the other one, which may record too, nor the witness.",
        "check the network between the gateways and to the witness; doubled facts count once, nothing is to be removed",
    )
    PAIR_BOTH_RECORD = _late(
        "Both gateways record; of facts of one time the later leader's counts.",
        "nothing if it ends within a minute; else bsfg pair status on both, and check the network between them",
    )
    PAIR_WITNESS_SILENT = _late(
        "The witness does not answer: gateways that do not hear each other both record.",
        'start it: systemctl status bsfg@{witness}, there; if it runs, it needs a [[peer]] with zone = "{zone}" for each '
        "gateway in its node.toml",
    )
    PAIR_CLOCKS_DIFFER = _late(
        "The clocks of the two gateways differ. Each gives samples and gaps its own times.",
        "set the clock that is wrong (timedatectl), or see on both why the time server does not (timedatectl "
        "timesync-status)",
    )
    PAIR_PARTNER_SILENT = _late(
        "The other gateway does not answer. If this one fails, nothing is recorded.",
        "start it: systemctl status bsfg@{partner}, there; if it runs, bsfg peer test {partner} finds what fails",
    )
    # ---------------------------------------------------------------------------------------------------------- consumers
    CONSUMER_BEHIND = _late("A consumer has not confirmed for a while. Unconfirmed facts are kept for it.", "{remedy}")
    CONSUMER_LOSES = _late("Facts that a consumer has not confirmed reach the end of their time to live.", "{remedy}")

    @property
    def level(self) -> Level:
        return self.value.level


P = Problem
_NO_BROKER = {P.BROKER_LOST, P.BROKER_REFUSES, P.PAIR_BROKER_LOST}
_NOT_HEARD = {P.PAIR_ALONE, P.PAIR_PARTNER_SILENT, P.PAIR_WITNESS_SILENT}

EXPLAINS: Mapping[Problem, frozenset[Problem]] = {
    P.APPENDS_REFUSED: frozenset(
        {P.STORE_FILL, P.STORE_FULL_SOON, P.APPENDS_FAILED, P.APPENDS_SLOW, P.ARTIFACTS_FULL, P.PAGE_WAITS}
        | {P.PEER_LAG, P.PEER_CATCHES_UP, P.POLLS_MISSED}
    ),
    P.APPENDS_STAND: frozenset(
        {P.APPENDS_SLOW, P.PAGE_WAITS, P.PEER_LAG, P.PEER_CATCHES_UP, P.CONSUMER_BEHIND, P.POLLS_MISSED}
    ),
    P.CLOCK_UNSET: frozenset(
        {P.IDENTITY_REFUSED, P.CERTIFICATE_ENDED, P.BROKER_REFUSES, P.DEVICE_CLOCK_OFF, P.SOURCE_REFUSED}
    ),
    P.IDENTITY_REFUSED: frozenset({P.CERTIFICATE_ENDS, P.CERTIFICATE_ENDED, *_NO_BROKER}),
    P.CERTIFICATE_ENDED: frozenset(_NO_BROKER),
    **dict.fromkeys(
        _NO_BROKER,
        frozenset(
            {
                P.PEER_SILENT,
                P.GATEWAY_SILENT,
                P.PEER_LAG,
                P.PEER_CATCHES_UP,
                P.CONSUMER_BEHIND,
                P.CONSUMER_LOSES,
                *_NOT_HEARD,
            }
        ),
    ),
    **dict.fromkeys(_NOT_HEARD, frozenset({P.CONSUMER_BEHIND, P.CONSUMER_LOSES})),
    P.PAIR_REFUSED: frozenset({*_NOT_HEARD, P.PAIR_BOTH_RECORD}),
    P.ARTIFACTS_FULL: frozenset({P.PAGE_WAITS, P.PEER_LAG, P.PEER_CATCHES_UP}),
    P.PAGE_WAITS: frozenset({P.PEER_LAG, P.PEER_CATCHES_UP}),
    P.PEER_SILENT: frozenset({P.PAGE_WAITS}),
    P.CONSUMER_BEHIND: frozenset({P.CONSUMER_LOSES, P.STORE_FILL, P.STORE_FULL_SOON, P.SHARE_USED_UP}),
    P.STORE_DAMAGED: frozenset({P.COMPARISON_DIFFERS}),
    P.STORE_LOST_FACTS: frozenset({P.CONSUMER_BEHIND, P.CONSUMER_LOSES}),
    P.SOURCE_CERTIFICATE_ENDED: frozenset({P.SOURCE_REFUSED, P.SOURCE_LOST}),
}
"""The consequences of each problem that has some. A cause of a part (`of_node` is False) explains only what depends on
that part: a stopped broker explains the lag of the peers at that broker."""
OF_NODE = frozenset(
    {P.APPENDS_REFUSED, P.APPENDS_STAND, P.CLOCK_UNSET, P.CERTIFICATE_ENDED, P.STORE_DAMAGED, P.ARTIFACTS_FULL}
)
"""Problems of the node as a whole, which explain their consequences wherever these are."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A problem of this node: its subject, what is wrong, what to do, and whether an operator must act now (`alert`).

    `depends_on`: the subjects without which this one cannot work. `caused_by`: the subjects that explain it here.
    `since_unix_ms`: when it was first found."""

    problem: Problem
    alert: bool
    subject: str
    text: str
    hint: str
    depends_on: frozenset[str] = frozenset()
    caused_by: tuple[str, ...] = ()
    since_unix_ms: int = 0

    @property
    def key(self) -> str:
        """What it is, whatever its text says now."""
        return f"{self.problem.name.lower()} {self.subject}"

    @property
    def level(self) -> Level:
        return self.problem.level

    def to_json(self) -> dict[str, object]:
        """The reason as a JSON object."""
        named = {"problem": self.problem.name.lower(), "level": self.level.value, "alert": self.alert}
        told = {"subject": self.subject, "text": self.text, "hint": self.hint, "caused_by": list(self.caused_by)}
        return named | told | {"since_unix_ms": self.since_unix_ms}


def order_by_cause(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons, causes first: the most urgent cause, its consequences, then the next cause. The cause of an alert is
    an alert. `EXPLAINS` has no circle, so each reason is reached."""
    given = list(reasons)
    causes = _causes(given)
    effects: list[list[int]] = [[] for _ in given]
    for at, found in enumerate(causes):
        for cause in found:
            effects[cause].append(at)
    alerts: dict[int, bool] = {}

    def leads_to_alert(at: int) -> bool:
        if at not in alerts:
            alerts[at] = given[at].alert or any(map(leads_to_alert, effects[at]))
        return alerts[at]

    def urgency(at: int) -> tuple[bool, int, str, int]:
        reason = given[at]
        return not leads_to_alert(at), -RANK[reason.level], reason.subject, at

    open_causes = [len(found) for found in causes]
    roots = [urgency(at) for at, count in enumerate(open_causes) if not count]
    heapify(roots)
    following: list[tuple[bool, int, str, int]] = []
    ordered = list[Reason]()
    while roots or following:
        at = heappop(following or roots)[-1]
        subjects = dict.fromkeys(given[cause].subject for cause in causes[at])
        ordered.append(replace(given[at], caused_by=tuple(subjects), alert=leads_to_alert(at)))
        for effect in effects[at]:
            open_causes[effect] -= 1
            if not open_causes[effect]:
                heappush(following, urgency(effect))
    assert len(ordered) == len(given), "EXPLAINS has a circle"
    return tuple(ordered)


def _causes(reasons: Sequence[Reason]) -> list[list[int]]:
    """The places of the causes of each reason. By subject, because a node may have thousands of peers."""
    by_subject: dict[str, list[int]] = {}
    for at, reason in enumerate(reasons):
        if reason.problem in EXPLAINS:
            by_subject.setdefault("" if reason.problem in OF_NODE else reason.subject, []).append(at)
    found = list[list[int]]()
    for reason in reasons:
        places = [at for subject in ("", reason.subject, *reason.depends_on) for at in by_subject.get(subject, ())]
        found.append(sorted({at for at in places if reason.problem in EXPLAINS[reasons[at].problem]}))
    return found


def counted(number: int, noun: str) -> str:
    """A number of things: 1 fact, 2,400 facts."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """A duration in the unit that a person would use; nothing is younger than now, whatever two clocks say."""
    seconds = max(0.0, seconds)
    for unit, length_s in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"
