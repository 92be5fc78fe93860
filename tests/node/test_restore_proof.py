"""Only our own signature on facts that the store lacks proves to a serving node that its store is an old copy."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from agent.fact_store import FactStore
from agent.node.trust import RestoreProof
from agent.replication.protocol.messages import FetchFacts, OriginHead
from agent.replication.pulling import PageJudge, TrustPolicy
from agent.settings.store import StreamSettings
from agent.signing.certificates import SignerTrust
from agent.signing.keys import SigningKey, ZoneSigner
from tests.fact_store.making import AT_ONCE, done
from tests.signing.making import STREAM, message
from tests.signing.signers import make, signing_key
from tests.waiting import wait_until

MADE = make("plant")
SIGNER = ZoneSigner(signing_key(MADE), MADE.der)


@contextmanager
def opened(path: Path) -> Iterator[FactStore]:
    """The plant's store, signed as it is written."""
    with FactStore.open(path, "plant", settings=AT_ONCE, signer=SIGNER) as store:
        yield store


def append(store: FactStore, *numbers: int) -> None:
    """Append facts, one a commit."""
    for number in numbers:
        done(store.appends.append_message(STREAM, message(number)))


def last_batch(store: FactStore) -> OriginHead:
    """The newest batch, as a peer with all facts of this store claims it."""
    batch = store.read(STREAM, store.end_offset(STREAM) - 1, 1, 1).batches[0].batch
    return OriginHead(
        last_sequence=batch.header.last_sequence,
        digest=batch.digest.hex(),
        record=batch.record,
        signed_digest=batch.signed_digest.hex(),
    )


def claim(head: OriginHead | None) -> FetchFacts:
    """A request that claims a batch."""
    return FetchFacts(consumer_name="idmz.x", stream=STREAM, limit=1, epoch="0" * 32, origin_head=head)


def proof(store: FactStore) -> RestoreProof:
    """The proof as a node of the plant judges it."""
    return RestoreProof(store, PageJudge(store, TrustPolicy(SignerTrust(), {}, "plant", (MADE.der,))))


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, OriginHead]:
    """A copy of the store after two facts, and the batch of the fourth fact, which the store has written since."""
    path, copy = tmp_path / "facts.db", tmp_path / "copy" / "facts.db"
    copy.parent.mkdir()
    with opened(path) as store:
        append(store, 1, 2)
    shutil.copy(path, copy)
    with opened(path) as store:
        append(store, 3, 4)
        return copy, last_batch(store)


def test_our_signature_on_facts_that_are_not_here_is_proof(copied: tuple[Path, OriginHead]) -> None:
    """The copy lacks the fourth fact, and later has another one in its place: the peer's record proves both."""
    path, head = copied
    with opened(path) as store:
        assert proof(store)(".", claim(head))
        append(store, 13, 14, 15)
        assert proof(store)(".", claim(head))
        unnamed = msgspec.structs.replace(claim(head), stream=None)
        assert not proof(store)(".", unnamed), "no stream is known"
        done(store.consumers.register("idmz.x", "idmz", STREAM))
        assert proof(store)(".", unnamed), "that of the registered consumer"


def test_what_was_released_here_proves_nothing(tmp_path: Path) -> None:
    """The copy has written another third fact and released it. The digest of the fourth contradicts the peer's claim,
    but a record names no digest that it could be compared with, and a peer could lie about it: an operator decides."""
    path, copy = tmp_path / "facts.db", tmp_path / "copy" / "facts.db"
    copy.parent.mkdir()
    with opened(path) as store:
        append(store, 1, 2)
    shutil.copy(path, copy)
    with opened(path) as store:
        append(store, 3)
        head = last_batch(store)
    streams = [StreamSettings(STREAM, keep_hours=0)]
    with FactStore.open(copy, "plant", settings=AT_ONCE, signer=SIGNER, streams=streams) as store:
        append(store, 13, 14)
        done(store.consumers.register("idmz.x", "idmz", STREAM))
        done(store.consumers.confirm("idmz.x", 3))
        wait_until(lambda: store.streams()[0].first_offset == 4, "the release")
        assert store.contradiction(STREAM, (head.last_sequence, bytes.fromhex(head.digest)))
        assert not proof(store)(".", claim(head))


def test_nothing_less_is_proof(copied: tuple[Path, OriginHead]) -> None:
    """Not a proof: the record of held facts, also beside another digest, a claim without a record, a changed record,
    one by another key, and a confirmation."""
    path, head = copied
    with opened(path) as store:
        assert not proof(store)(".", claim(last_batch(store)))
        append(store, 13)
        assert not proof(store)(".", claim(last_batch(store)))
        assert not proof(store)(".", claim(None))
        assert not proof(store)(".", claim(msgspec.structs.replace(last_batch(store), digest="ab" * 16)))
        assert head.record is not None
        for changes in (
            {"record": None},
            {"record": bytes(82)},
            {"record": head.record[:-1] + bytes([head.record[-1] ^ 1])},
            {"signed_digest": None},
            {"signed_digest": head.digest},
            {"last_sequence": 5},
        ):
            assert not proof(store)(".", claim(msgspec.structs.replace(head, **changes)))
        other = ZoneSigner(SigningKey.generate(), b"")
        assert not RestoreProof(store, PageJudge(store, TrustPolicy(SignerTrust(), {}, "plant", (other.certificate,))))(
            ".", claim(head)
        )
