"""Chains of sealed batches and their heads, honest and forged, for tests of what a receiver accepts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agent.batch import Batch, Link, Origin, seal_messages
from agent.message import UNIX_MS_MAX, Envelope, Fact, Message
from agent.signing.certificates import Refusal, Signer
from agent.signing.heads import sign_head
from agent.signing.keys import SigningKey
from agent.signing.runs import Offered, Rule, Trust
from tests.signing.signers import NOW_MS

STREAM = "facts.telemetry"
EPOCH = bytes(range(16))
SIGNED_AT_MS = NOW_MS


def message(number: int, text: str = "x") -> Message:
    """A small fact."""
    envelope = Envelope(f"m-{number}-{text}", "plant", "*", 1_767_225_600_000 + number)
    return Message(envelope, Fact(f"batch:erp/B-{number}", "batch_released", b'{"ok":true}'))


def chain(
    count: int,
    zone: str = "plant",
    *,
    stream: str = STREAM,
    epoch: bytes = EPOCH,
    text: str = "x",
    link: Link | None = None,
) -> list[Batch]:
    """Batches of one fact each, from `link` on or from the start of a chain."""
    at, found = link or Link(stream, Origin(zone, epoch)), list[Batch]()
    for _ in range(count):
        found.append(seal_messages(at, [message(at.next_sequence, text)]))
        at = found[-1].link
    return found


def head_of(key: SigningKey, batch: Batch, signed_at_ms: int = SIGNED_AT_MS) -> bytes:
    """The head that a zone's key makes of a chain up to this batch."""
    header = batch.header
    return sign_head(_Signing(key), header.stream, header.origin, header.last_sequence, batch.digest, signed_at_ms)


@dataclass
class _Signing:
    key: SigningKey
    certificate: bytes = b""

    @property
    def key_id(self) -> bytes:
        return self.key.key_id

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data)


def page(batches: Sequence[Batch], heads: dict[int, bytes], unreadable: dict[int, str] | None = None) -> list[Offered]:
    """A page of batches from offset 1 on, with heads by position."""
    offset, found = 1, list[Offered]()
    for at, one in enumerate(batches):
        last = offset + one.header.count - 1
        found.append(Offered(one, offset, last, heads.get(at, b""), (unreadable or {}).get(at, "")))
        offset = last + 1
    return found


def signed(batches: Sequence[Batch], key: SigningKey, at: Iterable[int] | None = None) -> list[Offered]:
    """A page with heads at these positions, by default at the last."""
    return page(batches, {one: head_of(key, batches[one]) for one in (at if at is not None else [len(batches) - 1])})


@dataclass
class Signers:
    """Zones and their keys as a receiver resolves them."""

    keys: dict[str, SigningKey] = field(default_factory=dict)
    refused: dict[bytes, Refusal] = field(default_factory=dict)

    def of(self, zone: str) -> SigningKey:
        """The key of a zone, made at its first use."""
        return self.keys.setdefault(zone, SigningKey.generate())

    def resolve(self, zone: str, key_id: bytes) -> Signer | Refusal | None:
        key = self.keys.get(zone)
        if key_id in self.refused:
            return self.refused[key_id]
        return None if key is None or key.key_id != key_id else Signer(zone, key.public, 0, UNIX_MS_MAX)

    def trust(self, rule: Rule = "required", proven: Iterable[str] = (), held: Iterable[Batch] = ()) -> Trust:
        """What a receiver with this rule for all zones accepts; `held` are batches whose digest is proven here."""
        digests = {one.digest for one in held}
        return Trust(lambda _: rule, frozenset(proven), self.resolve, lambda one: one.digest in digests)
