"""Chains of sealed batches, signed or not, honest and forged, for tests of what a receiver accepts."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from agent.batch import RECORD_BYTES, Batch, Link, Origin, Sign, parse, seal_messages
from agent.message import UNIX_MS_MAX, Envelope, Fact, Message
from agent.signing.certificates import CertificateRefusal, Signer
from agent.signing.chains import Offered, Rule, Trust
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.records import sign_record
from tests.signing.signers import NOW_MS

STREAM = "facts.telemetry"
LIFE = bytes(range(16))


def message(number: int, text: str = "x") -> Message:
    """A small fact."""
    envelope = Envelope(f"m-{number}-{text}", "plant", "*", 1_767_225_600_000 + number)
    return Message(envelope, Fact(f"batch:erp/B-{number}", "batch_released", b'{"ok":true}'))


def signing(key: SigningKey, signed_at_ms: int = NOW_MS) -> Sign:
    """Makes the records of a zone's key."""
    return partial(sign_record, ZoneSigner(key, b""), signed_at_ms=signed_at_ms)


def chain(
    count: int,
    zone: str = "plant",
    key: SigningKey | None = None,
    *,
    at: Collection[int] | None = None,
    signed_at_ms: int = NOW_MS,
    stream: str = STREAM,
    life: bytes = LIFE,
    text: str = "x",
    link: Link | None = None,
) -> list[Batch]:
    """Batches of one fact each, from `link` on or from the start of a chain. With `key` all are signed, or those at the
    positions `at`."""
    end, found = link or Link(stream, Origin(zone, life)), list[Batch]()
    for place in range(count):
        sign = signing(key, signed_at_ms) if key is not None and (at is None or place in at) else None
        found.append(seal_messages(end, [message(end.next_sequence, text)], sign))
        end = found[-1].link
    return found


def with_record(batch: Batch, record: bytes) -> Batch:
    """A signed batch with another record and the digest that fits it, as a relay can make it."""
    assert len(batch.record) == RECORD_BYTES == len(record)
    data = batch.sealed[: -16 - RECORD_BYTES] + record
    return parse(data + hashlib.blake2b(data, digest_size=16).digest())


def spoiled(batch: Batch) -> Batch:
    """The batch with one other bit in its signature."""
    return with_record(batch, batch.record[:-1] + bytes([batch.record[-1] ^ 1]))


def page(batches: Sequence[Batch], unreadable: dict[int, str] | None = None) -> list[Offered]:
    """A page of batches from offset 1 on."""
    offset, found = 1, list[Offered]()
    for at, made in enumerate(batches):
        last = offset + made.header.count - 1
        found.append(Offered(made, offset, last, (unreadable or {}).get(at, "")))
        offset = last + 1
    return found


@dataclass
class Signers:
    """Zones and their keys as a receiver resolves them."""

    keys: dict[str, SigningKey] = field(default_factory=dict)
    refused: dict[bytes, CertificateRefusal] = field(default_factory=dict)

    def of(self, zone: str) -> SigningKey:
        """The key of a zone, made at its first use."""
        return self.keys.setdefault(zone, SigningKey.generate())

    def resolve(self, zone: str, key_id: bytes) -> Signer | CertificateRefusal | None:
        key = self.keys.get(zone)
        if key_id in self.refused:
            return self.refused[key_id]
        return None if key is None or key.key_id != key_id else Signer(zone, key.public, 0, UNIX_MS_MAX)

    def trust(self, rule: Rule = "required", proven: Iterable[str] = (), held: Iterable[Batch] = ()) -> Trust:
        """What a receiver with this rule for all zones accepts; `held` are batches whose digest is proven here."""
        digests = {batch_held.digest for batch_held in held}
        return Trust(lambda _: rule, frozenset(proven), self.resolve, lambda batch_held: batch_held.digest in digests)
