"""Facts are read as they were sealed, whole or sliced."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import batch
from agent.message import (
    Envelope,
    Fact,
    Json,
    Message,
    Sample,
    canonical_json,
    check_message,
)
from tests.batch.making import (
    DEFINITIONS,
    JSONS,
    LINK,
    MANY_DEFINITIONS,
    ORIGIN,
    ROWS,
    TEXTS,
    bits,
    row_bits,
    sealed_again,
)

IDS = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
ENVELOPES = st.builds(
    Envelope,
    message_id=IDS,
    from_zone=st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True),
    to_zone=IDS,
    produced_at_unix_ms=st.integers(0, 2**43 - 1),
    correlation_id=st.none() | IDS,
    causation_id=st.none() | IDS,
    labels=st.dictionaries(IDS, IDS, max_size=3),
    object_media_type=st.none() | st.just("application/json"),
    object_schema=st.none() | IDS,
)
FACTS = st.builds(
    Fact,
    subject=st.sampled_from(["batch:B-1", "tag:line-1/temperature.pv", "order:erp/4711"]),
    predicate=st.sampled_from(["released", "value_sampled"]),
    object_json=JSONS.map(canonical_json),
)
MESSAGES = st.lists(st.builds(Message, envelope=ENVELOPES, fact=FACTS), min_size=1, max_size=8)


def seal(rows: list[tuple], link: batch.Link = LINK) -> batch.Batch:
    """Sealed by an origin that has defined every tag number."""
    return batch.seal_samples(link, rows, MANY_DEFINITIONS)


def record_of(header: batch.Header, digest: bytes) -> bytes:
    """A record that names what it signs."""
    return (digest + header.origin.life + bytes([header.first_sequence % 251])).ljust(batch.RECORD_BYTES, b"r")


@given(ROWS, st.integers(0, batch.RECORD_BYTES - 1))
def test_the_chain_covers_records(rows: list, place: int) -> None:
    """A record signs all bytes before it, the digest covers the record: the facts stay the same to the bit, 82 bytes
    are added, and with one other byte of the record the successor follows no more."""
    plain = seal(rows)
    signed = batch.seal_samples(LINK, rows, MANY_DEFINITIONS, record_of)
    parsed = batch.parse(signed.sealed)
    assert parsed == signed
    assert len(signed.sealed) == len(plain.sealed) + batch.RECORD_BYTES
    assert row_bits(list(batch.open_samples(parsed).rows())) == row_bits(rows)
    assert (plain.record, plain.signed_digest) == (b"", plain.digest)
    assert parsed.record == record_of(parsed.header, parsed.signed_digest)
    successor = seal(rows, signed.link)
    assert successor.follows(parsed)
    at = len(signed.sealed) - 16 - batch.RECORD_BYTES + place
    changed = bytearray(signed.sealed)
    changed[at] ^= 1
    with pytest.raises(batch.BatchError, match="digest"):
        batch.parse(bytes(changed))
    other = batch.parse(sealed_again(bytes(changed)))
    assert other.signed_digest == parsed.signed_digest
    assert other.digest != parsed.digest
    assert not successor.follows(other)


@given(ROWS)
def test_samples_round_trip(rows: list) -> None:
    """Every value type to the bit, any order of times, and a header that matches them."""
    sealed = seal(rows)
    parsed = batch.parse(sealed.sealed)
    assert parsed == sealed
    columns = batch.open_samples(parsed)
    assert row_bits(list(columns.rows())) == row_bits(rows)
    assert all(isinstance(row, Sample) for row in columns.rows())
    times = [row[1] for row in rows]
    header = parsed.header
    assert (header.time_min_ns, header.time_max_ns) == (min(times), max(times))
    assert (header.first_sequence, header.count, header.last_sequence) == (1, len(rows), len(rows))
    assert (header.stream, header.origin, header.definitions) == ("facts.telemetry", ORIGIN, MANY_DEFINITIONS)
    assert header.kind is batch.Kind.SAMPLES
    assert not header.is_slice


@given(ROWS)
def test_sealing_what_was_opened_gives_the_same_bytes(rows: list) -> None:
    """The encoding depends only on the values: not on the identity of objects, nor on rows or columns."""
    sealed = seal(rows)
    columns = batch.open_samples(sealed)
    assert seal(list(columns.rows())).sealed == sealed.sealed
    assert batch.seal_columns(LINK, columns, MANY_DEFINITIONS).sealed == sealed.sealed


@pytest.mark.parametrize("columns", [([1], [5], [1.5], []), ([1, 1], [5], [1.5], [0]), ([], [], [], [])])
def test_uneven_columns_are_the_callers_mistake(columns: tuple[list, ...]) -> None:
    """Columns of different lengths raise ValueError."""
    with pytest.raises(ValueError, match=r"columns of|0 facts"):
        batch.seal_columns(LINK, batch.SampleColumns(*columns), MANY_DEFINITIONS)


@given(ROWS, st.data())
def test_a_slice_is_the_rows_between(rows: list, data: st.DataObject) -> None:
    """Slicing anywhere, also a slice of a slice, gives those rows, under a header that cannot pass for the chain's."""
    whole = seal(rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    part = batch.parse(batch.cut(whole, start, stop).sealed)
    assert row_bits(list(batch.open_samples(part).rows())) == row_bits(rows[start:stop])
    header = part.header
    assert header.is_slice
    assert (header.first_sequence, header.last_sequence) == (1 + start, stop)
    assert header.previous_digest == whole.digest
    assert (header.stream, header.origin, header.definitions) == ("facts.telemetry", ORIGIN, MANY_DEFINITIONS)
    with pytest.raises(batch.BatchError, match="slice"):
        _ = part.link
    last = batch.cut(part, header.count - 1, header.count)
    assert row_bits(list(batch.open_samples(last).rows())) == row_bits(rows[stop - 1 : stop])
    assert last.header.first_sequence == stop
    assert last.header.previous_digest == part.digest


@pytest.mark.parametrize("positions", [(0, 0), (2, 1), (-1, 1), (0, 4), (3, 4)])
def test_a_slice_outside_the_batch_is_the_callers_mistake(positions: tuple[int, int]) -> None:
    """Positions outside the batch raise ValueError; they are not clamped."""
    with pytest.raises(ValueError, match="positions"):
        batch.cut(seal([(1, 5, 1.5, 0)] * 3), *positions)


@settings(max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_a_chain_links(runs: list) -> None:
    """Each batch starts where its predecessor ended and names its digest; changing one fact early changes every digest
    after."""

    def chain(runs: list) -> list[batch.Batch]:
        link, batches = LINK, []
        for rows in runs:
            batches.append(seal(rows, link))
            link = batches[-1].link
        return batches

    batches = chain(runs)
    assert batches[0].header.previous_digest == batch.NO_DIGEST
    for before, after in pairwise(batches):
        assert after.header.previous_digest == before.digest
        assert after.header.first_sequence == before.header.last_sequence + 1
    tag, time, value, quality = runs[0][0]
    others = chain([[(tag, time, value, quality ^ 1), *runs[0][1:]], *runs[1:]])
    assert not {b.digest for b in batches} & {b.digest for b in others}


@given(MESSAGES, st.data())
def test_messages_round_trip(messages: list[Message], data: st.DataObject) -> None:
    """Every field of every message, whole and sliced; the header's times are those of production."""
    for message in messages:
        check_message(message)
    sealed = batch.seal_messages(LINK, messages)
    parsed = batch.parse(sealed.sealed)
    assert parsed == sealed
    batch.verify(parsed)
    assert batch.open_messages(parsed) == messages
    times = [message.envelope.produced_at_unix_ms * 1_000_000 for message in messages]
    assert (parsed.header.time_min_ns, parsed.header.time_max_ns) == (min(times), max(times))
    assert parsed.header.definitions == batch.Definitions()
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    assert batch.open_messages(batch.parse(batch.cut(parsed, start, stop).sealed)) == messages[start:stop]


@given(st.lists(TEXTS.map(str.encode), max_size=5))
def test_definitions_digest_depends_on_each_and_their_order(jsons: list[bytes]) -> None:
    """Two origins with the same running digest have the same definitions in the same order."""
    state = batch.Definitions()
    seen = {state.digest}
    for count, definition_json in enumerate(jsons, 1):
        state = state.extended(definition_json)
        assert state.count == count
        seen.add(state.digest)
    assert len(seen) == len(jsons) + 1
    if len(jsons) > 1 and jsons[0] != jsons[1]:
        swapped = batch.Definitions().extended(jsons[1]).extended(jsons[0])
        assert swapped.digest != batch.Definitions().extended(jsons[0]).extended(jsons[1]).digest


@pytest.mark.parametrize("count", [1, 2, 1000, batch.FACTS_MAX])
def test_columns_of_equals_cost_nothing_per_fact(count: int) -> None:
    """All-equal columns collapse: a batch of equal facts is as small for 16,384 as for one, and at a steady pace hardly
    larger."""
    for pace_ns, bytes_max in ((0, 200), (1_000_000_000, 700)):
        rows = [(2, pace_ns * n, -0.0, 0x80000000) for n in range(count)]
        sealed = batch.seal_samples(LINK, rows, DEFINITIONS)
        assert len(sealed.sealed) < bytes_max
        assert row_bits(list(batch.open_samples(sealed).rows())) == row_bits(rows)


def test_a_full_batch_of_the_largest_values() -> None:
    """The longest value of a tag is accepted, one byte more is refused, also where it has few characters."""
    for value in ("x" * 65536, "\u20ac" * 21845, b"x" * 65536, Json(b'"' + b"x" * 65534 + b'"')):
        sealed = batch.seal_samples(LINK, [(1, 0, value, 0)], DEFINITIONS)
        assert bits(batch.open_samples(sealed).values[0]) == bits(value)
    for value in ("x" * 65537, "\u20ac" * 21846, b"x" * 65537, Json(b'"' + b"x" * 65535 + b'"')):
        with pytest.raises(ValueError, match="limit is 65536"):
            batch.seal_samples(LINK, [(1, 0, value, 0)], DEFINITIONS)
