"""Core: what the steps of a peer test mean, in words an operator can act on.

`peer_test` asks and measures; here its figures are judged: an answer of the peer, round trips, two clocks, two lists of
streams.  Half a round trip is all that is known about how long an answer was under way, so a clock difference is told with that
uncertainty and never below it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from agent.replication.protocol.codec import PROTOCOL, VERSION, decode_answer
from agent.replication.protocol.errors import ERRORS, MalformedMessage
from agent.replication.protocol.messages import ErrorAnswer, StreamsAnswer

CLOCK_NOTE_MS = 1_000
"""From here on times of two zones cannot be compared to the second."""
CLOCK_BAD_MS = 60_000
"""From here on somebody's clock is wrong, and certificates are next."""
ROUND_TRIP_NOTE_MS = 500
"""Reading ahead covers longer ways, but a person at a screen should know."""

Figures = dict[str, float | str | int | list[str] | None]


class Outcome(Enum):
    """What a diagnostic means for the operator: all is well, worth knowing, to be mended."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing tried; `hint` says what to do about a bad one."""

    outcome: Outcome
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing tried, under the name of its step; figures for programs."""

    name: str
    diagnostic: Diagnostic
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One question and its answer: how long it took, our clock half way, and the peer's in the answer."""

    took_ms: float
    middle_unix_ms: float
    peer_unix_ms: int | None


def judge_answer(zone: str, payload: bytes) -> tuple[Step, StreamsAnswer | None]:
    """What the peer said to ListStreams, and its answer if that is one."""
    try:
        answer, _ = decode_answer(payload)
    except MalformedMessage as error:
        hint = ERRORS["unsupported_version"].hint if error.code == "unsupported_version" else "is that a bsfg node?"
        return Step("protocol", Diagnostic(Outcome.BAD, f"{zone} answered what cannot be read: {error}", hint)), None
    if isinstance(answer, ErrorAnswer):
        what = f"{zone} refused: {answer.error.code}: {answer.error.message}"
        return Step("protocol", Diagnostic(Outcome.BAD, what, answer.error.hint)), None
    assert isinstance(answer, StreamsAnswer)
    theirs = json.loads(payload[4 : 4 + int.from_bytes(payload[:4], "little")])["version"]
    figures: Figures = {
        "version": VERSION,
        "peer_version": theirs,
        "store_zone": answer.store_zone,
        "epoch": answer.epoch,
    }
    if answer.store_zone != zone:
        what = f"who answers for {zone} keeps the store of {answer.store_zone}"
        return Step("protocol", Diagnostic(Outcome.BAD, what, "correct node.zone there"), figures), None
    what = f"{PROTOCOL} {theirs} there, {VERSION} here; store of {answer.store_zone}, epoch {answer.epoch}"
    return Step("protocol", Diagnostic(Outcome.GOOD, what), figures), answer


def judge_timeout(zone: str, own_zone: str, wait_s: float) -> Step:
    """A request was taken over by the broker and somebody there listens, but no answer came."""
    what = f"{zone} is connected and did not answer within {wait_s:g} s"
    hint = (
        f"is {own_zone} among the peers of {zone}, with exports? Does the broker's access list let {own_zone} read its answers "
        "(bsfg broker config)? The log of the node there tells what it dropped"
    )
    return Step("answer", Diagnostic(Outcome.BAD, what, hint))


def judge_round_trips(trips: Sequence[RoundTrip]) -> Iterator[Step]:
    """How long an answer takes, and how far the clocks are apart by the shortest one."""
    assert trips
    took = sorted(trip.took_ms for trip in trips)
    middle = took[len(took) // 2]
    figures: Figures = {
        "round_trip_ms_p50": round(middle, 3),
        "round_trip_ms_min": round(took[0], 3),
        "trips": len(took),
    }
    outcome = Outcome.NOTE if middle > ROUND_TRIP_NOTE_MS else Outcome.GOOD
    hint = "is the line loaded, or the peer?" if outcome is Outcome.NOTE else ""
    what = f"an answer takes {middle:.1f} ms (half of {len(took)}), {took[0]:.1f} at least and {took[-1]:.1f} at most"
    yield Step("round trip", Diagnostic(outcome, what, hint), figures)
    yield _judge_clock(min(trips, key=lambda trip: trip.took_ms))


def _judge_clock(best: RoundTrip) -> Step:
    if best.peer_unix_ms is None:
        what = "the peer does not tell its time (an older version), so the clocks were not compared"
        return Step("clock", Diagnostic(Outcome.NOTE, what))
    ahead_ms, give = best.peer_unix_ms - best.middle_unix_ms, best.took_ms / 2
    figures: Figures = {"clock_ahead_ms": round(ahead_ms, 1), "clock_uncertain_ms": round(give, 1)}
    apart = abs(ahead_ms) - give
    way = "ahead of" if ahead_ms > 0 else "behind"
    what = f"the peer's clock is {_span(abs(ahead_ms))} {way} ours (give or take {give:.1f} ms)"
    if apart <= CLOCK_NOTE_MS:
        return Step("clock", Diagnostic(Outcome.GOOD, what), figures)
    hint = "set the wrong one (timedatectl on both); times of facts are only as good as the clock that gave them"
    return Step("clock", Diagnostic(Outcome.BAD if apart > CLOCK_BAD_MS else Outcome.NOTE, what, hint), figures)


def judge_streams(zone: str, answer: StreamsAnswer, pulls: Collection[str]) -> Step:
    """What the peer exports to us, beside what we pull from it."""
    exported = [entry.name for entry in answer.streams]
    figures: Figures = {"exports": exported, "pulls": sorted(pulls)}
    if missing := sorted(set(pulls) - set(exported)):
        what = f"{zone} does not export {', '.join(missing)} to us, which we pull"
        hint = f"add it to exports of this zone in the node.toml of {zone}, or remove it from pulls here"
        return Step("streams", Diagnostic(Outcome.BAD, what, hint), figures)
    unused = sorted(set(exported) - set(pulls))
    held = ", ".join(f"{entry.name} ({entry.first_offset:,} to {entry.end_offset:,})" for entry in answer.streams)
    what = f"{zone} exports {held or 'nothing'}" + (f"; not pulled: {', '.join(unused)}" if unused else "")
    return Step("streams", Diagnostic(Outcome.NOTE if unused else Outcome.GOOD, what), figures)


def _span(ms: float) -> str:
    for unit, length_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 2 * length_ms:
            return f"{ms / length_ms:.1f} {unit}"
    return f"{ms:.1f} ms"
