"""Core: results of checks, and what the measurements of a peer test mean to an operator.

A check yields one `Diagnostic` for each thing it tried, in that order. The `judge_*` functions evaluate what
`peer_test` measured: the peer's answer, round trips, clocks, exported streams. How long an answer was under way is
known to half a round trip only, so a clock difference is reported with that uncertainty.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from agent.replication.pki import IdentityProblem
from agent.replication.protocol.codec import PROTOCOL, VERSION, decode_answer
from agent.replication.protocol.errors import ERRORS, MalformedMessage
from agent.replication.protocol.messages import ErrorAnswer, StreamsAnswer, operation_of
from agent.signing.messages import split_answer

CLOCK_NOTE_MS = 1_000
"""Above this difference, times of two nodes cannot be compared to the second."""
CLOCK_BAD_MS = 60_000
"""Above this difference one clock is wrong, and certificate checks may fail next."""
ROUND_TRIP_NOTE_MS = 500
"""Reading ahead hides longer round trips from replication, but commands feel them."""

USE_GENERATED = "use the configuration of bsfg broker config"

Figures = dict[str, float | str | int | list[str] | None]


class CheckOutcome(Enum):
    """What a result means: in order, worth knowing, must be corrected."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The result of one check; `hint` says what to do if it is bad. A peer test names its `step`, and gives figures for
    programs."""

    outcome: CheckOutcome
    what: str
    hint: str = ""
    step: str = ""
    figures: Figures = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """Whether something must be corrected."""
        return self.outcome is CheckOutcome.BAD


good = partial(Diagnostic, CheckOutcome.GOOD)
note = partial(Diagnostic, CheckOutcome.NOTE)
bad = partial(Diagnostic, CheckOutcome.BAD)


def add_link(serving: str, asking: str) -> str:
    """What to do where the broker's rights lack this link."""
    link = f"--link {serving}:{asking}"
    return f"add the link on the broker's machine: bsfg broker config FOLDER {link}, and restart the broker"


def bad_files(problems: Iterable[IdentityProblem]) -> Iterator[Diagnostic]:
    """Problems of certificate files, as results."""
    return (bad(problem.what, problem.hint) for problem in problems)


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One request and its answer: the time it took, our clock half way, and the peer's clock from the answer."""

    took_ms: float
    middle_unix_ms: float
    peer_unix_ms: int | None


def judge_answer(node: str, payload: bytes) -> tuple[Diagnostic, StreamsAnswer | None]:
    """Evaluate the answer to ListStreams. Returns the answer too, unless it is an error or cannot be read."""
    payload, _ = split_answer(payload)
    try:
        answer, _ = decode_answer(payload)
    except MalformedMessage as error:
        hint = ERRORS["unsupported_version"].hint if error.code == "unsupported_version" else "is the peer a bsfg node?"
        return bad(f"{node} sent an answer that cannot be read: {error}", hint, step="protocol"), None
    if isinstance(answer, ErrorAnswer):
        what = f"{node} refused: {answer.error.code}: {answer.error.message}"
        return bad(what, answer.error.hint, step="protocol"), None
    if not isinstance(answer, StreamsAnswer):
        what = f"{node} answered {operation_of(answer)} in place of ListStreams"
        return bad(what, "is the peer a bsfg node?", step="protocol"), None
    theirs = json.loads(payload[4 : 4 + int.from_bytes(payload[:4], "little")])["version"]
    figures: Figures = {
        "version": VERSION,
        "peer_version": theirs,
        "node": answer.node,
        "life": answer.life,
    }
    if answer.node != node:
        what = f"the node that answers for {node} is {answer.node}"
        return bad(what, "correct [node] name or zone in its node.toml", step="protocol", figures=figures), None
    what = f"{PROTOCOL} {theirs} there, {VERSION} here; node {answer.node}, life {answer.life}"
    return good(what, step="protocol", figures=figures), answer


def judge_timeout(node: str, own_node: str, wait_s: float) -> Diagnostic:
    """The broker accepted a request, but no answer came within `wait_s` seconds. Not every broker says that no node of
    the peer is connected (MQTT 5, 3.4.2.1)."""
    what = f"{node} did not answer within {wait_s:g} s"
    hint = f"is {node} connected (bsfg status there), and is {own_node} a [[peer]] with exports in its node.toml? "
    hint += "Its log names dropped requests"
    return bad(what, hint, step="answer")


def judge_round_trips(trips: Sequence[RoundTrip]) -> Iterator[Diagnostic]:
    """Response times, and the clock difference computed from the fastest round trip."""
    assert trips
    took = sorted(trip.took_ms for trip in trips)
    middle = took[len(took) // 2]
    figures: Figures = {
        "round_trip_ms_p50": round(middle, 3),
        "round_trip_ms_min": round(took[0], 3),
        "trips": len(took),
    }
    outcome = CheckOutcome.NOTE if middle > ROUND_TRIP_NOTE_MS else CheckOutcome.GOOD
    hint = "is the network or the peer overloaded?" if outcome is CheckOutcome.NOTE else ""
    what = f"round trip {middle:.1f} ms (median of {len(took)}), {took[0]:.1f} to {took[-1]:.1f} ms"
    yield Diagnostic(outcome, what, hint, step="round trip", figures=figures)
    yield _judge_clock(min(trips, key=lambda trip: trip.took_ms))


def _judge_clock(best: RoundTrip) -> Diagnostic:
    if best.peer_unix_ms is None:
        what = "the peer sends no time (an older version), so the clocks were not compared"
        return note(what, step="clock")
    ahead_ms, give = best.peer_unix_ms - best.middle_unix_ms, best.took_ms / 2
    figures: Figures = {"clock_ahead_ms": round(ahead_ms, 1), "clock_uncertain_ms": round(give, 1)}
    apart = abs(ahead_ms) - give
    way = "ahead of" if ahead_ms > 0 else "behind"
    what = f"the peer's clock is {_span(abs(ahead_ms))} {way} ours (+/- {give:.1f} ms)"
    if apart <= CLOCK_NOTE_MS:
        return good(what, step="clock", figures=figures)
    hint = "correct the wrong clock (timedatectl on both); facts carry the time of their node"
    return Diagnostic(
        CheckOutcome.BAD if apart > CLOCK_BAD_MS else CheckOutcome.NOTE, what, hint, step="clock", figures=figures
    )


def judge_streams(node: str, answer: StreamsAnswer, pulls: Collection[str]) -> Diagnostic:
    """Compare the peer's exports with the streams that this node pulls."""
    exported = [entry.name for entry in answer.streams]
    figures: Figures = {"exports": exported, "pulls": sorted(pulls)}
    if missing := sorted(set(pulls) - set(exported)):
        what = f"{node} does not export {', '.join(missing)}, which this node pulls"
        hint = f"add it to the exports for this node in the node.toml of {node}, or remove it from pulls here"
        return bad(what, hint, step="streams", figures=figures)
    unused = sorted(set(exported) - set(pulls))
    held = ", ".join(
        f"{entry.name} ({entry.first_offset:,} to {entry.end_offset:,})"
        if entry.first_offset <= entry.end_offset
        else f"{entry.name} (no facts)"
        for entry in answer.streams
    )
    what = f"{node} exports {held or 'nothing'}" + (f"; not pulled: {', '.join(unused)}" if unused else "")
    return Diagnostic(CheckOutcome.NOTE if unused else CheckOutcome.GOOD, what, step="streams", figures=figures)


def _span(ms: float) -> str:
    for unit, length_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 2 * length_ms:
            return f"{ms / length_ms:.1f} {unit}"
    return f"{ms:.1f} ms"
