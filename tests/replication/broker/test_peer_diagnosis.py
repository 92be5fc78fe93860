"""How measurements of a peer test are evaluated: tables, without a broker."""

import json

import pytest

from agent.replication.broker.diagnosis import (
    CLOCK_BAD_MS,
    CLOCK_NOTE_MS,
    CheckOutcome,
    RoundTrip,
    judge_answer,
    judge_round_trips,
    judge_streams,
)
from agent.replication.protocol.codec import VERSION, encode_error
from agent.replication.protocol.messages import StreamEntry, StreamsAnswer, UnregisterAnswer
from tests.replication.answers import encode_answer

LIFE = "00" * 16


def streams_answer(*names: str, zone: str = "plant-a") -> StreamsAnswer:
    """An answer that exports these streams."""
    entries = [StreamEntry(name=name, first_offset=1, end_offset=9) for name in names]
    return StreamsAnswer(store_zone=zone, life=LIFE, streams=entries, unix_ms=1_700_000_000_000)


def test_a_good_answer_names_versions_and_store() -> None:
    """Versions, zone and life are reported; a higher minor version of the peer is accepted."""
    payload = encode_answer(streams_answer("facts.telemetry"), [])
    step, answer = judge_answer("plant-a", payload)
    assert (step.outcome, step.figures["peer_version"], step.figures["life"]) == (
        CheckOutcome.GOOD,
        VERSION,
        LIFE,
    )
    assert answer is not None
    newer = payload.replace(f'"version":"{VERSION}"'.encode(), b'"version":"1.7"')
    step, answer = judge_answer("plant-a", newer)
    assert (step.figures["peer_version"], step.figures["version"]) == ("1.7", VERSION)
    assert answer is not None


@pytest.mark.parametrize(
    "payload,says",
    [
        (b"", "cannot be read"),
        (b"rubbish", "cannot be read"),
        (encode_answer(streams_answer(), []).replace(b'"version":"1.', b'"version":"2.'), "2."),
        (encode_answer(streams_answer(zone="plant-b"), []), "is plant-b"),
        (encode_answer(UnregisterAnswer(store_zone="plant-a", life=LIFE, was_registered=True), []), "in place of"),
        (encode_error("plant-a", LIFE, "ListStreams", "busy", "too much in hand"), "busy: too much in hand"),
    ],
)
def test_a_bad_answer_is_named(payload: bytes, says: str) -> None:
    """Not the protocol, another major version, another zone's store, another answer, a refusal: each with what to
    do."""
    step, answer = judge_answer("plant-a", payload)
    assert (step.outcome, answer) == (CheckOutcome.BAD, None)
    assert says in step.what
    assert step.hint


@pytest.mark.parametrize(
    "ahead_ms,took_ms,outcome,says",
    [
        (3, 10, CheckOutcome.GOOD, "3.0 ms ahead of ours (+/- 5.0 ms)"),
        (-900, 2, CheckOutcome.GOOD, "900.0 ms behind ours"),
        (CLOCK_NOTE_MS + 400, 1000, CheckOutcome.GOOD, "ahead"),
        (-CLOCK_NOTE_MS - 2, 2, CheckOutcome.NOTE, "behind"),
        (CLOCK_BAD_MS + 2, 2, CheckOutcome.BAD, "60.0 s ahead"),
        (-50 * 365 * 86_400_000, 2, CheckOutcome.BAD, "days behind"),
    ],
)
def test_a_clock_difference_counts_beyond_half_a_round_trip(
    ahead_ms: float, took_ms: float, outcome: CheckOutcome, says: str
) -> None:
    """A difference counts only beyond half a round trip; the fastest round trip decides."""
    trips = [RoundTrip(took_ms, 1_700_000_000_000.0, 1_700_000_000_000 + int(ahead_ms))]
    trips.append(RoundTrip(took_ms * 10, 1_700_000_000_000.0, 0))
    clock = list(judge_round_trips(trips))[1]
    assert clock.outcome is outcome
    assert says in clock.what
    assert bool(clock.hint) is (outcome is not CheckOutcome.GOOD)


def test_a_peer_without_a_clock_in_its_answer() -> None:
    """For a peer without a time in its answer the result says that clocks were not compared."""
    trip, clock = judge_round_trips([RoundTrip(took, 0.0, None) for took in (4.0, 2.0, 9.0)])
    assert (trip.figures["round_trip_ms_p50"], trip.figures["round_trip_ms_min"]) == (4.0, 2.0)
    assert clock.outcome is CheckOutcome.NOTE
    old = encode_answer(streams_answer(), []).replace(b',"unix_ms":1700000000000', b"")
    length = int.from_bytes(old[:4], "little") - len(b',"unix_ms":1700000000000')
    _, answer = judge_answer("plant-a", length.to_bytes(4, "little") + old[4:])
    assert answer is not None
    assert answer.unix_ms is None
    assert "unix_ms" not in json.loads(old[4:])


@pytest.mark.parametrize(
    "exported,pulled,outcome,says",
    [
        (["a", "b"], ["a", "b"], CheckOutcome.GOOD, "exports a (1 to 9), b (1 to 9)"),
        (["a", "b"], ["a"], CheckOutcome.NOTE, "not pulled: b"),
        (["a"], ["a", "b"], CheckOutcome.BAD, "does not export b, which"),
        ([], [], CheckOutcome.GOOD, "exports nothing"),
    ],
)
def test_pulled_streams_must_be_exported(
    exported: list[str], pulled: list[str], outcome: CheckOutcome, says: str
) -> None:
    """A pulled stream must be exported; further exports are only a note."""
    step = judge_streams("plant-a", streams_answer(*exported), pulled)
    assert step.outcome is outcome
    assert says in step.what
