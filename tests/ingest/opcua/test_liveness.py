from agent.ingest.opcua.liveness import Liveness, ServerClock

S = 1_000_000_000


def test_values_and_a_moving_clock_are_proofs_and_empty_answers_are_not() -> None:
    """A server that answers without values, while its clock stands, falls silent; the last proof keeps its time."""
    life = Liveness(100.0)
    assert life.alive_ns == 0
    assert life.see_clock("12:00")
    life.see(101.0, 1 * S, is_proof=True)
    assert not life.see_clock("12:00")
    life.see(102.0, 2 * S, is_proof=False)
    assert (life.silent_s(103.0), life.alive_ns) == (2.0, 1 * S)
    life.see(104.0, 4 * S, is_proof=True)
    assert (life.silent_s(104.5), life.alive_ns) == (0.5, 4 * S)


def test_any_answer_counts_where_the_clock_cannot_be_monitored() -> None:
    """Such a server proves its life with keep-alives."""
    life = Liveness(100.0)
    life.has_clock = False
    life.see(101.0, 1 * S, is_proof=False)
    assert (life.silent_s(101.0), life.alive_ns) == (0.0, 1 * S)


def test_a_server_that_is_held_back_is_excused_but_proves_nothing() -> None:
    """The silence starts anew; a loss is still dated at the last proof."""
    life = Liveness(100.0)
    life.see(101.0, 1 * S, is_proof=True)
    life.excuse(120.0)
    assert (life.silent_s(121.0), life.alive_ns) == (1.0, 1 * S)


def test_the_offset_follows_the_largest_and_a_clock_set_back() -> None:
    """A time delayed by publishing does not move it; a jump of the server's clock does, in both directions."""
    clock = ServerClock()
    clock.see(3600 * S, 0)
    clock.see(3600 * S, S)
    assert clock.offset_ns == 3600 * S
    clock.see(10 * S, 10 * S)
    assert clock.offset_ns == 0


def test_a_publish_time_dates_a_proof_unless_it_lies_ahead() -> None:
    """An answer held up on its way is as old as it says. A time that is not set or lies ahead is not used."""
    clock = ServerClock()
    assert clock.proof_time_ns(5 * S, 20 * S) == 5 * S
    assert clock.proof_time_ns(0, 20 * S) == 20 * S
    assert clock.proof_time_ns(3600 * S, 20 * S) == 20 * S
