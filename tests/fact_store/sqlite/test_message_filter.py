"""The filter of message ids: it never forgets a key, rarely matches an unknown one, and is restored from its summaries
unchanged."""

from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.fact_store.sqlite.message_filter import MessageFilter, counts, summary_of

# Few different beginnings, so that buckets and fingerprints of different keys coincide.
KEYS = st.builds(
    lambda bucket, fingerprint, rest: bytes((0, bucket, fingerprint, fingerprint)) + bytes(8) + rest.to_bytes(4, "big"),
    st.integers(0, 20),
    st.integers(0, 2),
    st.integers(0, 9),
)
GENERATIONS = st.lists(st.lists(KEYS, max_size=20), min_size=1, max_size=8)


def key(number: int) -> bytes:
    """The key of a message id."""
    return blake2b(f"id-{number}".encode(), digest_size=16).digest()


def made(generations: list[list[bytes]]) -> tuple[MessageFilter, list[bytes]]:
    """A filter with generations, all but the last of them closed; and the summaries of those."""
    found, summaries = MessageFilter(), list[bytes]()
    for number, keys in enumerate(generations):
        for added in keys:
            found.add(added, number)
        if number < len(generations) - 1:
            summaries.append(found.close())
    return found, summaries


def buckets(found: MessageFilter) -> list[bytes]:
    """What a filter holds, to compare it with another."""
    return [bytes(bucket or b"") for bucket in found._buckets]


@settings(max_examples=40)
@given(GENERATIONS)
def test_no_key_is_ever_forgotten(generations: list[list[bytes]]) -> None:
    """Whatever was added is among the candidates with its generation, and candidates come newest first."""
    found, _ = made(generations)
    last = len(generations) - 1
    for number, keys in enumerate(generations):
        for added in keys:
            candidates = list(found.candidates(added, 0, last))
            assert number in candidates
            assert candidates == sorted(candidates, reverse=True)
    assert len(found) == sum(map(len, generations))


@settings(max_examples=40)
@given(GENERATIONS)
def test_a_filter_is_restored_from_its_summaries(generations: list[list[bytes]]) -> None:
    """A filter loaded from its summaries equals the one that made them, and a summary can be made from a table's
    rows."""
    found, summaries = made([*generations, []])
    loaded = MessageFilter()
    for number, summary in enumerate(summaries):
        loaded.load(summary, number)
        of_rows = summary_of(sorted(generations[number]))
        assert counts(of_rows) == counts(summary)
        assert len(of_rows) == len(summary)
    assert buckets(loaded) == buckets(found)
    assert loaded.marks == found.marks
    assert loaded.close() == found.close()


@settings(max_examples=40)
@given(GENERATIONS, st.integers(0, 7))
def test_dropping_leaves_the_younger_generations(generations: list[list[bytes]], dropped: int) -> None:
    """Without its oldest generations a filter equals one that never had them; the open generation is summed up as
    before."""
    dropped = min(dropped, len(generations) - 1)
    found, summaries = made(generations)
    for summary in summaries[:dropped]:
        found.drop(summary)
    young, _ = made([[] for _ in range(dropped)] + generations[dropped:])
    assert buckets(found) == buckets(young)
    assert found.close() == young.close()


def test_more_than_256_generations() -> None:
    """With more than 256 generations a key's own is still among the candidates, and none lies outside the range."""
    found = MessageFilter()
    for number in range(600):
        found.add(key(number), number)
        found.close()
    for number in (0, 255, 256, 300, 599):
        candidates = list(found.candidates(key(number), 0, 600))
        assert number in candidates
        assert all(0 <= generation <= 600 for generation in candidates)
        assert len(candidates) <= 3
    assert list(found.candidates(key(300), 301, 600)) in ([], [556])


def test_unknown_ids_rarely_match() -> None:
    """Of keys that were never added fewer than twice the computed share have a candidate: 100,000 keys, 12.2 in a
    bucket, a chance of 1 in 65536 with each."""
    found = MessageFilter()
    for number in range(100_000):
        found.add(key(number), number >> 16)
    suspected = sum(any(found.candidates(key(-number), 0, 1)) for number in range(1, 200_001))
    expected = 200_000 * 100_000 / 8192 / 65536
    assert suspected < 2 * expected


@pytest.mark.parametrize("summary", [b"", b"x" * 100, bytes(4 * 8192) + b"xx", b"\1" + bytes(4 * 8192 - 1)])
def test_invalid_summaries_are_refused(summary: bytes) -> None:
    """Bytes whose counts do not fit their length are refused."""
    with pytest.raises(ValueError, match="not a summary"):
        MessageFilter().load(summary, 0)
