"""The signatures of a store's own batches, and what it remembers of those of peers."""

import sqlite3
from pathlib import Path

import pytest

from agent.batch import Origin
from agent.fact_store import FactStore, StoreForeign
from agent.fact_store.integrity import VerifyCounts
from agent.message import Sample
from agent.pages import Declined, OriginRange, SignerCertificate, StoredBatch
from agent.positions import Position
from agent.signing.certificates import describe_signer
from agent.signing.chains import Proof, SignedEnd, check_record
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.records import key_id_in
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    damages,
    done,
    message,
    parsed,
    read_file,
    tag,
)
from tests.signing.making import signing
from tests.signing.signers import make
from tests.support.received import put_page

MADE = make("plant")
SIGNER = ZoneSigner(SigningKey(MADE.key), MADE.der)


def opened(folder: Path, signer: ZoneSigner | None = SIGNER) -> FactStore:
    """The plant's store, by default with its key."""
    store = FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE, signer=signer)
    done(store.appends.define([tag(1)]))
    return store


def fill(store: FactStore, count: int = 10) -> None:
    """Samples of one commit."""
    done(store.appends.append_samples(TELEMETRY, [Sample(1, n * 1_000_000, n, 0) for n in range(1, count + 1)]))


def is_signed(stored: StoredBatch) -> bool:
    """Whether a batch has a record that the plant's key made."""
    signer = describe_signer(MADE.der)
    proof, _ = check_record(stored.batch.record, "plant", lambda *_: signer, lambda: SignedEnd.of(stored.batch))
    return proof is Proof.VERIFIED


def batches(store: FactStore, stream: str = TELEMETRY) -> list[StoredBatch]:
    """What the file has."""
    return read_file(store, stream).batches


def test_each_own_batch_is_signed(tmp_path: Path) -> None:
    """Samples and messages, from the tail cache and from the file; all of them count as proven, and the certificate is
    kept for those who read them."""
    counts = VerifyCounts()
    with opened(tmp_path) as store:
        fill(store)
        fill(store, 40_000)
        done(store.appends.append_message(OPERATIONAL, message("a")))
        found = batches(store)
        assert len(found) > 2
        assert all(map(is_signed, [*found, *store.read(OPERATIONAL, 0, 10, EVERYTHING).batches]))
        assert store.signed_zones() == store.reader.signed_zones() == {"plant"}
        assert store.reader.signers([SIGNER.key_id, b"12345678"]) == [MADE.der]
        places = [(store.origin, signed.batch.header.first_sequence) for signed in found]
        assert set(store.reader.verified(TELEMETRY, places)) == {"yes"}
    assert damages(tmp_path / "facts.db", counts, is_quick=True) == []
    assert counts.signed == counts.batches > 3


def test_the_key_is_replaced_between_two_commits(tmp_path: Path) -> None:
    """Facts recorded before the replacement are signed with the old key, facts after it with the new one, whose
    certificate is kept from then on. Without a key nothing is signed; the next signed batch proves it."""
    made = make("plant")
    new = ZoneSigner(SigningKey(made.key), made.der)
    with opened(tmp_path) as store:
        fill(store)
        done(store.set_signer(new))
        assert (store.signer, store.reader.signers([new.key_id])) == (new, [made.der])
        fill(store)
        done(store.set_signer(None))
        fill(store)
        assert store.signer is None
        places = [(store.origin, 10 * number + 1) for number in range(3)]
        assert store.reader.verified(TELEMETRY, places) == ["yes", "yes", "no"]
        assert not store.reader.is_proven(TELEMETRY, store.origin, 21)
        done(store.set_signer(SIGNER))
        fill(store)
        assert [key_id_in(stored.batch.record) for stored in batches(store)] == [
            *(SIGNER.key_id, new.key_id, b"", SIGNER.key_id),
        ]
        assert store.reader.verified(TELEMETRY, places) == ["yes"] * 3
        assert store.reader.is_proven(TELEMETRY, store.origin, 21)
    assert damages(tmp_path / "facts.db", is_quick=True) == []


def test_what_was_verified_is_not_changed(tmp_path: Path) -> None:
    """The file refuses another time of verification, and another body, by its own triggers."""
    with opened(tmp_path) as store:
        fill(store)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        for change in ("verified_unix_ms = 0", "body = x'00'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(f"UPDATE batch SET {change}")
    connection.close()


def test_a_store_of_the_format_before_is_refused(tmp_path: Path) -> None:
    """With a sentence that says what to do, by a node, which must not set the file aside as damaged, and by readers."""
    with opened(tmp_path):
        pass
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("UPDATE store SET format = 1")
    connection.close()
    for unattended in (False, True):
        with pytest.raises(StoreForeign, match=r"made by a version before 1\.0") as refused:
            FactStore.open(tmp_path / "facts.db", "plant", unattended=unattended)
        assert "move it aside" in refused.value.hint
    with pytest.raises(StoreForeign, match=r"before 1\.0"):
        damages(tmp_path / "facts.db", is_quick=True)


class Signed(Elsewhere):
    """An origin elsewhere that signs."""

    key = SigningKey.generate()

    def __init__(self, zone: str = "mill") -> None:
        super().__init__(zone)
        self.sign = signing(self.key)


def put(store: FactStore, origin: Signed, first: int, last: int, *verified: int) -> None:
    """Hand over batches `first` to `last` of an origin, some of them as verified."""
    position = Position(origin.origin.life, 5 * (last + 1))
    some, places = parsed(origin.sealed[first : last + 1]), {number - first for number in verified}
    signers = [SignerCertificate(origin.key.key_id, b"certificate", is_trusted=False, zone="mill")]
    putting = put_page(store, "mill", TELEMETRY, some, origin.received(), position, verified=places, signers=signers)
    done(putting)


def test_what_is_verified_of_peers_is_remembered(tmp_path: Path) -> None:
    """A zone is proven once a record of it was verified, in this life and the next, also where batches of the page were
    held before; a record that was only stored proves no zone. Its certificate is kept."""
    mill = Signed()
    for _ in range(4):
        mill.seal(5)
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        put(store, mill, 0, 1)
        put(store, mill, 0, 2, 1)
        assert store.signed_zones() == store.reader.signed_zones() == frozenset(), "it was held already"
        put(store, mill, 1, 3, 3)
        assert store.signed_zones() == store.reader.signed_zones() == {"mill"}
        assert store.reader.signers([mill.key.key_id, b"12345678"]) == [b"certificate"]
        assert [stored.sealed for stored in batches(store)] == mill.sealed
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        assert store.signed_zones() == {"mill"}


def test_readers_learn_what_is_proven(tmp_path: Path) -> None:
    """Facts up to a verified record are proven, also those of earlier batches and pages. Facts behind it, or before a
    gap, are not. A compromised key makes suspect what was verified since."""
    mill = Signed()
    for _ in range(8):
        mill.seal(5)
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        places = [(mill.origin, 5 * number + 3) for number in range(8)]
        put(store, mill, 0, 0)
        assert store.reader.verified(TELEMETRY, places) == ["no"] * 8
        put(store, mill, 2, 3)
        put(store, mill, 4, 5, 4)
        put(store, mill, 6, 6)
        assert store.reader.verified(TELEMETRY, places) == [*["no"] * 2, *["yes"] * 3, *["no"] * 3]
        done(store.set_compromised({mill.key.key_id: 0}))
        assert store.reader.verified(TELEMETRY, places)[1:5] == ["no", *["suspect"] * 3]
        done(store.set_compromised({mill.key.key_id: 2**42}))
        assert store.reader.verified(TELEMETRY, places)[1:5] == ["no", *["yes"] * 3]
        put(store, mill, 1, 1)
        assert store.reader.verified(TELEMETRY, places) == [*["yes"] * 5, *["no"] * 3], "the gap is filled"
        done(store.set_compromised({b"12345678": 0}))
        assert store.reader.verified(TELEMETRY, [*reversed(places)]) == [*["no"] * 3, *["yes"] * 5]


def test_declined_facts_are_named_once(tmp_path: Path) -> None:
    """The facts that a page declines are reported once: an incident with a count, and one notice for the zones above.
    The position passes them and no sequence is occupied, so the honest batch still fits."""
    mill = Elsewhere("mill")
    sealed = [mill.seal(5) for _ in range(2)]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        facts = OriginRange("mill", mill.origin.life, 1, 5)
        declined = [Declined(1, 5, facts, "no signature")]
        for offset in (5, 6):
            position = Position(mill.origin.life, offset)
            done(put_page(store, "relay", TELEMETRY, [], [], position, declined=declined))
        assert store.inbound.peer_position("relay", TELEMETRY) == position
        (incident,) = (incident for incident in store.reader.incidents() if incident.kind == "declined")
        assert incident.count == 2
        assert "no signature" in incident.detail
        assert "mill" in incident.subject
        assert store.end_offset(TELEMETRY) == 1, "one notice"
        assert Origin("mill", mill.origin.life) not in store.reader.held(TELEMETRY)
        assert mill.put(store, sealed).stored_facts == 10
