"""The heads of a store's own facts, and of facts that peers bring."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import Origin, parse
from agent.fact_store import FactStore, verify_store
from agent.fact_store.integrity import VerifyCounts
from agent.message import Sample
from agent.pages import Declined, KeptHead, OriginRange, PeerPosition, SignerCertificate, StoredBatch, StoredHead
from agent.signing.heads import HEAD_BYTES, RUN_BYTES_MAX, key_id_in, parse_head, sign_head, signed_bytes
from agent.signing.keys import SignerPublic, SigningKey, ZoneSigner
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    done,
    message,
    parsed,
    read_file,
    tag,
)
from tests.signing.signers import make
from tests.waiting import wait_until

MADE = make("plant")
SIGNER = ZoneSigner(SigningKey(MADE.key), MADE.der)


def opened(folder: Path, signer: ZoneSigner | None = SIGNER) -> FactStore:
    """The plant's store, by default with its key."""
    store = FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE, signer=signer)
    done(store.appends.define([tag(1)]))
    return store


def fill(store: FactStore, count: int = 10, *, seed: int = 0) -> None:
    """Samples that hardly compress, so that a commit has several runs."""
    rng = random.Random(seed)
    rows = [Sample(1, n * 1_000_000, rng.random(), 0) for n in range(1, count + 1)]
    done(store.appends.append_samples(TELEMETRY, rows))


def proves(one: StoredBatch, public: SignerPublic = SIGNER.key.public) -> bool:
    """Whether the head of a batch is the key's signature of its chain."""
    head, batch = parse_head(one.head), parse(one.sealed)
    header = batch.header
    data = signed_bytes(
        header.stream, header.origin, header.last_sequence, batch.digest, head.key_id, head.signed_at_ms
    )
    return public.verify(data, head.signature)


def damages(folder: Path) -> list[str]:
    """What verification says."""
    return [str(one) for one in verify_store(folder / "facts.db", VerifyCounts(), lambda *_: None, is_quick=True)]


def runs(batches: list[StoredBatch]) -> Iterator[int]:
    """The bytes of each run. A last run without a head counts too."""
    size = 0
    for one in batches:
        size += len(one.sealed)
        if one.head:
            yield size
            size = 0
    if size:
        yield size


def test_each_commit_ends_with_a_head(tmp_path: Path) -> None:
    """The last batch of each commit is signed, also one of messages and of a definition's first use; a large commit has
    a head each 128 KiB; every signature verifies, from the tail cache and from the file."""
    with opened(tmp_path) as store:
        fill(store)
        fill(store, 90_000, seed=1)
        done(store.appends.append_message(OPERATIONAL, message("a")))
        page = read_file(store, TELEMETRY)
        assert page.batches[0].head
        assert page.batches[-1].head
        signed = [one for one in page.batches if one.head]
        assert all(proves(one) for one in signed)
        most = max(len(one.sealed) for one in page.batches)
        assert len(signed) > 3
        assert all(size < RUN_BYTES_MAX + most for size in runs(page.batches))
        assert min(list(runs(page.batches))[1:-1]) >= RUN_BYTES_MAX, "no more signatures than needed"
        (order,) = store.read(OPERATIONAL, 0, 10, EVERYTHING).batches
        assert proves(order)
        assert store.signed_zones() == {"plant"}
        assert store.signers([SIGNER.key_id]) == [MADE.der]
        last = page.batches[-1]
        last_sequence = parse(last.sealed).header.last_sequence
        head = StoredHead(last_sequence, parse(last.sealed).digest, last.head, ANY)
        assert store.next_head(TELEMETRY, store.origin, last_sequence) == head
    assert damages(tmp_path) == []


def test_the_key_is_replaced_between_two_commits(tmp_path: Path) -> None:
    """Facts recorded before the replacement are signed with the old key, facts after it with the new one, whose
    certificate is kept from then on. The end of the chain is signed with the new key. Without a key nothing is signed
    until there is a key again."""
    made = make("plant")
    new = ZoneSigner(SigningKey(made.key), made.der)

    def keys(store: FactStore) -> list[bytes]:
        return [key_id_in(one.head) for one in read_file(store, TELEMETRY).batches if one.head]

    with opened(tmp_path) as store:
        fill(store)
        done(store.set_signer(new))
        assert (store.signer, store.signers([new.key_id])) == (new, [made.der])
        fill(store, seed=1)
        end = store.signed_end(TELEMETRY)
        assert end is not None
        assert key_id_in(end.head) == new.key_id
        done(store.set_signer(None))
        fill(store, seed=2)
        assert (store.signer, store.signed_end(TELEMETRY)) == (None, None)
        assert keys(store) == [SIGNER.key_id, new.key_id]
        done(store.set_signer(SIGNER))
        assert keys(store) == [SIGNER.key_id, new.key_id, SIGNER.key_id]
    assert damages(tmp_path) == []


def test_without_a_key_nothing_is_signed(tmp_path: Path) -> None:
    """No head, no signed zone, and pages of whole runs are those without."""
    with opened(tmp_path, None) as store:
        fill(store, 30_000)
        assert not any(one.head for one in read_file(store, TELEMETRY).batches)
        assert store.signed_zones() == frozenset()
        assert store.read(TELEMETRY, 0, EVERYTHING, 50_000, whole_runs=True) == store.read(
            TELEMETRY, 0, EVERYTHING, 50_000
        )


def test_facts_from_before_the_key_are_signed_when_the_store_opens(tmp_path: Path) -> None:
    """A store recorded without a key, and again after it was lost. Once opened with a key, its runs have at most 128
    KiB and a batch. Nothing else of the batches changes."""
    with opened(tmp_path, None) as store:
        fill(store, 60_000)
        before = [one.sealed for one in read_file(store, TELEMETRY).batches]
    with opened(tmp_path) as store:
        assert min(list(runs(read_file(store, TELEMETRY).batches))[:-1]) >= RUN_BYTES_MAX, "no more than needed"
        fill(store)
    with opened(tmp_path, None) as store:
        fill(store, 40_000, seed=2)
    with opened(tmp_path) as store:
        batches = read_file(store, TELEMETRY).batches
        assert [one.sealed for one in batches][: len(before)] == before
        assert batches[-1].head
        most = max(len(one.sealed) for one in batches)
        assert all(size < RUN_BYTES_MAX + most for size in runs(batches))
        assert all(proves(one) for one in batches if one.head)
    assert damages(tmp_path) == []


def test_a_run_before_facts_of_others_is_signed_later_too(tmp_path: Path) -> None:
    """Facts of another zone may lie between own facts that were recorded without a key. Then each piece of own facts
    gets a head, because a page of whole runs could not end there otherwise."""
    mill = Elsewhere("mill")
    with opened(tmp_path, None) as store:
        for number in range(3):
            fill(store, seed=number)
            fill(store, seed=number)
            mill.put(store, [mill.seal(4)], 4 * number + 4, first_definition=1)
    with opened(tmp_path) as store:
        wait_until(lambda: store.signed_zones() == {"plant"}, "the heads")
        own = [bool(one.head) for one in read_file(store, TELEMETRY).batches if one.origin == store.origin]
        assert own == [False, True] * 3


def test_a_head_is_never_changed(tmp_path: Path) -> None:
    """The file refuses another head, no head, and another body, by its own triggers."""
    with opened(tmp_path) as store:
        fill(store)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        for change in ("head = NULL", f"head = zeroblob({HEAD_BYTES})", "verified_unix_ms = 0", "body = x'00'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(f"UPDATE batch SET {change}")
    connection.close()


def test_verification_finds_a_changed_head(tmp_path: Path) -> None:
    """A bit that the disk changed in a head is named, with its offsets."""
    with opened(tmp_path) as store:
        fill(store)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("DROP TRIGGER batch_head_update_refused")
        (head,) = connection.execute("SELECT head FROM batch").fetchone()
        connection.execute("UPDATE batch SET head = ?", (head[:-1] + bytes([head[-1] ^ 1]),))
    connection.close()
    (found,) = damages(tmp_path)
    assert found.startswith("facts.telemetry 1 to 10")
    assert f"not a signature by key {SIGNER.key_id.hex()} of plant" in found


def test_resealed_facts_are_signed_under_the_new_epoch(tmp_path: Path) -> None:
    """A restored store reseals the facts that no peer has read; their new chain has a head that verifies, and the old
    one does not stay."""
    with opened(tmp_path) as store:
        fill(store)
        old = store.epoch
    shutil.copy(tmp_path / "facts.db", tmp_path / "image")
    with opened(tmp_path) as store:
        fill(store, seed=3)
    shutil.copy(tmp_path / "image", tmp_path / "facts.db")
    with opened(tmp_path) as store:
        fill(store, seed=4)
        done(store.begin_epoch("a peer has proven that it is an old copy"))
        assert store.epoch != old
        batches = read_file(store, TELEMETRY).batches
        assert batches[-1].origin == store.origin
        assert all(proves(one) for one in batches if one.head)
        assert batches[-1].head
    assert damages(tmp_path) == []


class Signed(Elsewhere):
    """An origin elsewhere that signs."""

    key = SigningKey.generate()

    def head(self, at: int, *, is_verified: bool = True) -> KeptHead:
        """The head of one of its batches, to be put at the same position of a page."""
        batch = parse(self.sealed[at])
        signer = ZoneSigner(self.key, b"certificate")
        header = batch.header
        record = sign_head(signer, header.stream, header.origin, header.last_sequence, batch.digest, 1000 + at)
        return KeptHead(at, record, is_verified)


def test_heads_of_peers_are_stored_verbatim(tmp_path: Path) -> None:
    """Heads come back with the batches they came with, also where some batches of the page were held before; a zone
    counts as signed once a head was verified, in this life and the next; its certificate is kept."""
    mill = Signed("mill")
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        for _ in range(4):
            mill.seal(5)
        mill.put(store, mill.sealed[:2])
        heads = [mill.head(1, is_verified=False)]
        position = PeerPosition(mill.origin.epoch, 15)
        given_signers = [SignerCertificate(mill.key.key_id, b"certificate", is_trusted=False, zone="mill")]
        batches = parsed(mill.sealed[:3])
        put = store.inbound.put_batches
        done(put("mill", TELEMETRY, batches, mill.received(), position, heads=heads, signers=given_signers))
        assert store.signed_zones() == frozenset()
        assert not any(one.head for one in read_file(store, TELEMETRY).batches), "the first two were held already"
        position = replace(position, offset=20)
        heads = [mill.head(2), mill.head(3)]
        done(put("mill", TELEMETRY, parsed(mill.sealed), mill.received(), position, heads=heads))
        page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert [bool(one.head) for one in page.batches] == [False, False, False, True]
        assert page == read_file(store, TELEMETRY)
        assert page.batches[3].head == heads[1].record
        assert store.signed_zones() == {"mill"}
        assert store.signers([mill.key.key_id, b"12345678"]) == [b"certificate"]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        assert store.signed_zones() == {"mill"}


def test_a_zone_whose_heads_were_never_verified_is_not_proven(tmp_path: Path) -> None:
    """A head that was stored unverified proves no zone, in this life and the next. Of a proven zone this node demands
    signatures, so anybody could end the zone's stream here with one false head."""
    mill, path = Signed("mill"), tmp_path / "idmz.db"
    mill.seal(5)
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        position, heads = PeerPosition(mill.origin.epoch, 5), [mill.head(0, is_verified=False)]
        batches = parsed(mill.sealed)
        done(store.inbound.put_batches("mill", TELEMETRY, batches, mill.received(), position, heads=heads))
        assert store.signed_zones() == store.reader.signed_zones() == frozenset()
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        assert store.signed_zones() == store.reader.signed_zones() == frozenset()


def test_readers_learn_what_is_proven(tmp_path: Path) -> None:
    """Facts up to a verified head are proven, also those of earlier batches and pages. Facts behind it, before a gap,
    or under a head that was not verified are not. A compromised key makes suspect what was verified since."""
    mill = Signed("mill")
    for _ in range(8):
        mill.seal(5)

    def put(store: FactStore, first: int, last: int, *heads: KeptHead) -> None:
        position = PeerPosition(mill.origin.epoch, 5 * (last + 1))
        batches = parsed(mill.sealed[first : last + 1])
        kept = [replace(one, index=one.index - first) for one in heads]
        done(store.inbound.put_batches("mill", TELEMETRY, batches, mill.received(), position, heads=kept))

    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        places = [(mill.origin, 5 * number + 3) for number in range(8)]
        put(store, 0, 0)
        assert store.reader.verified(TELEMETRY, places) == ["no"] * 8
        put(store, 2, 3, mill.head(3, is_verified=False))
        put(store, 4, 5, mill.head(4), mill.head(5, is_verified=False))
        put(store, 6, 6)
        assert store.reader.verified(TELEMETRY, places) == [*["no"] * 2, *["yes"] * 3, *["no"] * 3]
        done(store.set_compromised({mill.key.key_id: 0}))
        assert store.reader.verified(TELEMETRY, places)[1:5] == ["no", *["suspect"] * 3]
        done(store.set_compromised({mill.key.key_id: 2**42}))
        assert store.reader.verified(TELEMETRY, places)[1:5] == ["no", *["yes"] * 3]
        put(store, 1, 1)
        assert store.reader.verified(TELEMETRY, places) == [*["yes"] * 5, *["no"] * 3], "the gap is filled"
        done(store.set_compromised({b"12345678": 0}))
        assert store.reader.verified(TELEMETRY, [*reversed(places)]) == [*["no"] * 3, *["yes"] * 5]


def test_declined_facts_are_named_once(tmp_path: Path) -> None:
    """The facts that a page declines are reported once: an incident with a count, and one notice for the zones above.
    The position passes them and no sequence is occupied, so the honest batch still fits."""
    mill = Elsewhere("mill")
    sealed = [mill.seal(5) for _ in range(2)]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        facts = OriginRange("mill", mill.origin.epoch, 1, 5)
        declined = [Declined(1, 5, facts, "no signature")]
        for offset in (5, 6):
            position = PeerPosition(mill.origin.epoch, offset)
            done(store.inbound.put_batches("relay", TELEMETRY, [], [], position, declined=declined))
        assert store.inbound.peer_position("relay", TELEMETRY) == position
        (incident,) = (one for one in store.incidents() if one.kind == "declined")
        assert incident.count == 2
        assert "no signature" in incident.detail
        assert "mill" in incident.subject
        assert store.end_offset(TELEMETRY) == 1, "one notice"
        assert Origin("mill", mill.origin.epoch) not in store.held(TELEMETRY)
        assert mill.put(store, sealed).stored_facts == 10


@settings(max_examples=8)
@given(
    commits=st.lists(st.integers(1, 12_000), min_size=1, max_size=6),
    bytes_max=st.integers(1_000, 300_000),
    seed=st.integers(0, 2**20),
)
def test_pages_of_whole_runs_end_with_heads(
    tmp_path_factory: pytest.TempPathFactory, commits: list[int], bytes_max: int, seed: int
) -> None:
    """Whatever the page size, pages of whole runs cover the log without gap or overlap, by offsets and by sequences,
    and each ends with a head."""
    folder = tmp_path_factory.mktemp("runs")
    with opened(folder) as store:
        for number, count in enumerate(commits):
            fill(store, count, seed=seed + number)
        reached, end = 0, store.end_offset(TELEMETRY)
        while reached < end:
            for reader in (store, store.reader):
                page = reader.read(TELEMETRY, reached, EVERYTHING, bytes_max, whole_runs=True)
                assert page.batches[0].first_offset == reached + 1
                assert page.batches[-1].head
            of = page.batches[-1].last_offset
            part = store.read_sequences(
                TELEMETRY, store.origin, reached + 1, reached + 1, EVERYTHING, bytes_max, whole_runs=True
            )
            assert part.batches[-1].head
            assert all(after.first_offset == before.last_offset + 1 for before, after in pairwise(part.batches))
            reached = of
        assert reached == end
