"""Reading a page from a damaged store, and within limits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.batch import Definitions, Link, Origin, parse, seal_samples
from agent.pages import DefinitionChain, LackingDefinitions, Page, StoredBatch
from agent.positions import LifeList, LogLives
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.definition_fetch import DefinitionFetch
from agent.replication.protocol.errors import DefinitionsUnavailable
from agent.replication.protocol.messages import DefinitionRun, DefinitionsAnswer
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import HeldThere, ReadPlan
from agent.replication.serving.reading import (
    PageQuery,
    PageRead,
    read_definitions,
    read_page,
    read_sequences,
    read_whole,
)
from tests.replication.answers import encode_answer
from tests.support.received import chain_of, definitions_of

ORIGIN = Origin("plant-a", bytes(16))


class Rotten:
    """A store with one batch in which one bit has changed."""

    def log(self, _stream: str) -> LogLives:
        """Its log has one life."""
        return LogLives(LifeList([(bytes(16), 1)]), 20)

    def read(self, *_limits: object, **_until: object) -> Page:
        """The batch, as the disk gives it back."""
        rows = [(1, number, float(number), 0) for number in range(10)]
        good = seal_samples(Link("facts", ORIGIN), rows, Definitions().extended(b"{}"))
        bad = good.sealed[:-20] + bytes([good.sealed[-20] ^ 1]) + good.sealed[-19:]
        return Page([StoredBatch(1, replace(good, sealed=bad))], 10)

    def definitions(self, *_range: object) -> list[bytes]:
        """The one definition."""
        return [b"{}"]


def asked(limit: int) -> PageQuery:
    """A page of at most `limit` facts for idmz."""
    return PageQuery(ReadPlan("facts", 0, limit, 10_000), HeldThere(frozenset({"idmz"})), 1_000_000)


def test_damage_is_named_when_a_batch_must_be_opened() -> None:
    """A slice of a damaged batch is an error answer that names the batch."""
    refused = read_page(Rotten(), asked(3))  # type: ignore[arg-type]
    assert isinstance(refused, Refuse)
    assert refused.code == "store_unavailable"
    assert "offset 1 is damaged" in refused.message


def test_damage_in_a_whole_batch_is_the_receivers_to_find() -> None:
    """A whole batch is sent as stored; the receiver checks its digest."""
    assert isinstance(read_page(Rotten(), asked(10)), PageRead)  # type: ignore[arg-type]


class Measured(Rotten):
    """A store that records how many bytes were requested."""

    def __init__(self) -> None:
        self.bytes_max = list[int]()

    def read(self, *limits: object, **until: object) -> Page:
        """As above; the last limit is in bytes."""
        self.bytes_max.append(int(str(limits[-1])))
        return super().read(*limits, **until)


def test_no_more_is_read_than_a_packet_takes() -> None:
    """For a request of eight megabytes, only one packet's worth is read and digested; a smaller limit is kept."""
    store = Measured()
    for bytes_max in (8_000_000, 10_000):
        query = PageQuery(ReadPlan("facts", 0, 10, bytes_max), HeldThere(frozenset({"idmz"})), 1_000_000)
        for read in (read_page, read_whole):
            read(store, query)  # type: ignore[arg-type]
    assert store.bytes_max == [1_000_000, 1_000_000, 10_000, 10_000]


class Repaired:
    """A store with two batches of ten facts, the second of which came late: it needs fewer definitions."""

    log = Rotten.log

    def read(self, *_limits: object, **_until: object) -> Page:
        """Both, whatever is asked for."""
        known = [Definitions().extended(b"{}").extended(b"[]"), Definitions().extended(b"{}")]
        rows = [(1, number, float(number), 0) for number in range(10)]
        sealed = [seal_samples(Link("facts", ORIGIN), rows, definitions) for definitions in known]
        return Page([StoredBatch(1, sealed[0]), StoredBatch(11, sealed[1])], 20)

    def read_sequences(self, *_limits: object, **_until: object) -> Page:
        """Offsets are sequences here."""
        return self.read()


class Defined:
    """A store with chains of definitions, and the requests that it got."""

    def __init__(self, **chains: list[bytes]) -> None:
        self.chains, self.reader = chains, self

    def definitions(self, zone: str, digest: bytes, held: Sequence[bytes] = ()) -> DefinitionChain | None:
        """As the store reads them."""
        bodies = self.chains.get(zone)
        if bodies is None or definitions_of(bodies).digest != digest:
            return None
        starts = [n for n in range(len(bodies), 0, -1) if definitions_of(bodies[:n]).digest.startswith(tuple(held))]
        return chain_of(zone, bodies, (starts[0] if held and starts else 0) + 1)


def lacking(zone: str, bodies: list[bytes], *held: list[bytes]) -> LackingDefinitions:
    """What a requester lacks."""
    return LackingDefinitions(zone, definitions_of(bodies), [definitions_of(held_bodies) for held_bodies in held])


def fetched(store: Defined, bytes_max: int, *wanted: LackingDefinitions) -> tuple[list[DefinitionChain], int]:
    """What a requester gets, and with how many requests."""
    fetch, complete, count = DefinitionFetch(wanted), list[DefinitionChain](), 0
    while (request := fetch.request()) is not None:
        runs, bodies = read_definitions(store, request.wanted, bytes_max)  # type: ignore[arg-type]
        sent = encode_answer(DefinitionsAnswer(store_zone="idmz", life="0" * 32, runs=runs), bodies)
        answer, attachment = decode_answer(sent)
        complete += fetch.take_answer(answer, attachment)
        count += 1
    return complete, count


BODIES = [b"%03d" % number for number in range(120)]


def test_definitions_come_in_as_many_answers_as_they_need() -> None:
    """Those of several zones in one request, each after what the requester has, within its bytes; the next request goes
    on after the last one that came."""
    store = Defined(a=BODIES, b=BODIES[:50], c=BODIES[:2])
    wanted = lacking("a", BODIES, BODIES[:10]), lacking("b", BODIES[:50]), lacking("c", BODIES[:2], BODIES[:1])
    for bytes_max in (100_000, 700, 1):
        found, count = fetched(store, bytes_max, *wanted)
        assert found == [chain_of("a", BODIES, 11), chain_of("b", BODIES[:50]), chain_of("c", BODIES[:2], 2)]
        assert (count == 1) is (bytes_max == 100_000)


def test_a_reader_that_knows_more_definitions_than_a_relay_gets_its_two_pages() -> None:
    """The reader has 120 definitions, by another path and of another branch; the relay has 110, which take two answers.
    What the reader has is unknown to the relay, so the second request must name what has come. (With requests that name
    only what is held, the first page would come for ever.)"""
    relay = Defined(plant=BODIES[:110])
    other = [*BODIES[:50], *(b"other %d" % number for number in range(70))]
    found, count = fetched(relay, 700, lacking("plant", BODIES[:110], other))
    assert (found, count) == ([chain_of("plant", BODIES[:110])], 2)
    found, count = fetched(relay, 700, lacking("plant", BODIES[:110], other, BODIES[:50]))
    assert (found, count) == ([chain_of("plant", BODIES[:110], 51)], 1)


def test_a_relay_that_lacks_definitions_or_sends_others_is_refused() -> None:
    """Nothing, another body, one more than was asked for, a run that goes on elsewhere: none is taken, and no request
    follows without end."""
    for store in (Defined(), Defined(plant=BODIES[:9])):
        with pytest.raises(DefinitionsUnavailable, match="does not have"):
            fetched(store, 700, lacking("plant", BODIES[:10]))
    digest = definitions_of(BODIES[:2]).digest.hex()
    for bodies in ([BODIES[1], BODIES[0]], BODIES[:3], [], [b"x" * 40_000]):
        fetch = DefinitionFetch([lacking("plant", BODIES[:2])])
        run = DefinitionRun(zone="plant", digest=digest, lengths=[len(body) for body in bodies])
        with pytest.raises(DefinitionsUnavailable):
            fetch.take_answer(DefinitionsAnswer(store_zone="idmz", life="0" * 32, runs=[run]), bodies)
    for fields in ({"zone": "mill"}, {"digest": "0" * 32}, {"after": "1" * 16}):
        fetch = DefinitionFetch([lacking("plant", BODIES[:2])])
        named: dict[str, Any] = {"zone": "plant", "digest": digest, "lengths": [3], **fields}
        with pytest.raises(DefinitionsUnavailable):
            fetch.take_answer(
                DefinitionsAnswer(store_zone="idmz", life="0" * 32, runs=[DefinitionRun(**named)]), [BODIES[0]]
            )


@pytest.mark.parametrize("is_by_sequence", [False, True])
def test_a_first_batch_is_whole_wherever_the_range_begins(*, is_by_sequence: bool) -> None:
    """A range that begins inside a batch and asks for fewer facts than it has gets all of it: a part proves nothing,
    and cannot be stored."""
    store: Any = Repaired()
    store.reader = store
    query = PageQuery(ReadPlan("facts", 4, 1, 10_000), HeldThere(frozenset({"idmz"})), 1_000_000)
    page = read_sequences(store, ORIGIN, query) if is_by_sequence else read_whole(store, query)
    assert isinstance(page, PageRead)
    assert [(first, last) for first, last, _ in page.entries] == [(1, 10)]
    assert parse(page.batches[0]).header.count == 10
