"""Which batches of a page their origin has proven, which heads are kept with them, and what is declined.

A run is consecutive batches of a page of one origin, each the successor of the one before by sequence and digest. One
verified head proves its batch and all before it in the run, because the chain was compared first; so only heads that
are kept are verified, and of facts that their own zone sends only the last. Kept is the last head of a run, and as many
before it as leave no more than RUN_BYTES_MAX between two, because the next receiver gets whole runs of that length. The
table of rules is in DESIGN.md.

Core: no IO. The same page, rules and signers give the same judgement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from agent.batch import Batch, Origin
from agent.pages import Declined, KeptHead, OriginRange
from agent.signing.certificates import Refusal, RefusalReason, Signer
from agent.signing.heads import RUN_BYTES_MAX, HeadError, parse_head, signed_bytes

Rule = Literal["required", "if_present", "off"]
Resolve = Callable[[str, bytes], Signer | Refusal | None]
"""The signer of a zone with a key id, why it is not believed, or None where no certificate of it is known."""

WRONG_HEADS_MAX = 16
"""Signatures of one zone in one page that may fail, 67 us each; an honest page has none. Every further one counts as
failed."""

NO_HEAD = "no signature, which this node demands of the zone"
OUT_OF_REACH = f"no signature within {RUN_BYTES_MAX // 1024} KiB after it"
WRONG = "the signature is not that of the key it names"
UNREADABLE_HEAD = "the signature is malformed"
_UNTRUSTED = {RefusalReason.UNKNOWN_ISSUER, RefusalReason.NOT_A_SIGNER, RefusalReason.MALFORMED}


class Offered(NamedTuple):
    """A batch of a page whose framing and digest were checked, its offsets at the peer, and its head's record.
    `unreadable` says why its content cannot be opened; empty where it can."""

    batch: Batch
    first_offset: int
    last_offset: int
    head: bytes = b""
    unreadable: str = ""


class ChainEnd(NamedTuple):
    """What a head signs, besides its time: a stream, an origin, and the last sequence and digest of its chain."""

    stream: str
    origin: Origin
    last_sequence: int
    digest: bytes

    @classmethod
    def of(cls, batch: Batch) -> ChainEnd:
        """The chain that ends with a batch."""
        header = batch.header
        return cls(header.stream, header.origin, header.last_sequence, batch.digest)


class Proof(Enum):
    """What a head proves."""

    VERIFIED = "signed by a trusted key of the zone"
    UNKNOWN = "signed by a key of which this node has no trusted certificate"
    WRONG = "not a signature that counts"


@dataclass(frozen=True, slots=True)
class Trust:
    """What a receiver believes. `proven_zones`: zones of which a head was verified here before. `is_held`: whether a
    batch, or its successor by digest, is held here in a range that ends with a verified head. `answering_zone`: the
    zone whose signature covers the whole page, if one was demanded; of its own runs the last head is verified, and
    those before it count by its word, because false ones would cost its own facts only."""

    rule_of: Callable[[str], Rule]
    proven_zones: frozenset[str]
    resolve: Resolve
    is_held: Callable[[Batch], bool]
    answering_zone: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`accepted` are positions in the page, in order; `KeptHead.index` is a position in `accepted`. `evidence` are
    positions of batches that cannot be read or whose own head is wrong."""

    accepted: tuple[int, ...]
    heads: tuple[KeptHead, ...]
    declined: tuple[Declined, ...]
    proven_zones: frozenset[str]
    evidence: tuple[int, ...] = ()


def judge_page(offered: Sequence[Offered], trust: Trust) -> Judgement:
    """Judge the batches of a page, in their order. A zone proven by one run is proven for what follows in the page."""
    judge = _Judge(offered, trust)
    for first, stop in _runs(offered):
        judge.judge_run(first, stop)
    return judge.result()


def _runs(offered: Sequence[Offered]) -> Iterator[tuple[int, int]]:
    """First position and the one after the last of each run."""
    first = 0
    for at in range(1, len(offered) + 1):
        if at == len(offered) or not _follows(offered[at - 1].batch, offered[at].batch):
            yield first, at
            first = at


def _follows(before: Batch, after: Batch) -> bool:
    """Whether a batch is the successor of another in one chain."""
    left, right = before.header, after.header
    is_next = left.origin == right.origin and left.last_sequence + 1 == right.first_sequence
    return is_next and right.previous_digest == before.digest


class _Judge:
    """The judgement while the runs are walked. `_why` has the reason of each declined batch, "" for an accepted one."""

    def __init__(self, offered: Sequence[Offered], trust: Trust) -> None:
        self._offered = offered
        self._trust = trust
        self._proven = set(trust.proven_zones)
        self._why = [""] * len(offered)
        self._kept: dict[int, bool] = {}
        self._checked: dict[int, tuple[Proof, str]] = {}
        self._wrong: Counter[str] = Counter()

    def judge_run(self, first: int, stop: int) -> None:
        """Judge the batches from `first` to the one before `stop`."""
        zone = self._offered[first].batch.header.origin.zone
        rule = self._trust.rule_of(zone)
        if rule == "off":
            last = next((at for at in reversed(range(first, stop)) if self._is_head(at)), None)
            if last is not None:
                self._keep(first, last, self._is_head, is_verified=False)
            return
        was_strict = rule == "required" or zone in self._proven
        anchor = next((at for at in reversed(range(first, stop)) if self._is_verified(at)), first - 1)
        if anchor >= first:
            self._proven.add(zone)
            is_own = zone == self._trust.answering_zone
            is_good = self._is_vouched_for if is_own else self._is_verified
            reached = self._keep(first, anchor, is_good, is_verified=True)
            # What lies too far before the head could not be proven by a page of this store (DESIGN.md).
            for at in range(first, reached) if was_strict else ():
                self._why[at] = OUT_OF_REACH
        is_strict = rule == "required" or zone in self._proven
        start = anchor + 1
        if is_strict:  # a batch that is held, or precedes one, is proven by what is held: pages that fill gaps
            held = next(
                (at for at in reversed(range(start, stop)) if self._trust.is_held(self._offered[at].batch)), start - 1
            )
            start = held + 1
        self._judge_unproven(start, stop, is_strict=is_strict)

    def _judge_unproven(self, start: int, stop: int, *, is_strict: bool) -> None:
        """Batches that no verified head covers. Each belongs to the next head behind it, if there is one."""
        proof, why = Proof.UNKNOWN, NO_HEAD
        unknown = list[int]()
        for at in reversed(range(start, stop)):
            if self._offered[at].head:
                proof, why = self._check(at)
                if proof is Proof.UNKNOWN:
                    unknown.append(at)
            if is_strict or proof is Proof.WRONG:
                self._why[at] = why
        if not is_strict and unknown:
            self._keep(start, unknown[0], self._is_unknown, is_verified=False)

    def _keep(self, first: int, last: int, is_good: Callable[[int], bool], *, is_verified: bool) -> int:
        """Keep the head of the last batch of a run, and of those before it the fewest good ones that leave no more than
        RUN_BYTES_MAX between two; returns the first position that they reach."""
        at: int | None = last
        reached = last
        while at is not None:
            self._kept[at] = is_verified
            reached, size = at, 0
            while reached > first and size + self._size(reached - 1) <= RUN_BYTES_MAX:
                reached -= 1
                size += self._size(reached)
            at = next((one for one in range(reached - 1, at) if is_good(one)), None) if reached > first else None
        return reached

    def _size(self, at: int) -> int:
        return len(self._offered[at].batch.sealed)

    def _is_head(self, at: int) -> bool:
        try:
            parse_head(self._offered[at].head)
        except HeadError:
            return False
        return True

    def _is_verified(self, at: int) -> bool:
        return bool(self._offered[at].head) and self._check(at)[0] is Proof.VERIFIED

    def _is_vouched_for(self, at: int) -> bool:
        """Whether a head of the answering zone counts by its word: of a key that is believed, and within its dates."""
        if not self._is_head(at):
            return False
        head = parse_head(self._offered[at].head)
        signer = self._trust.resolve(self._trust.answering_zone, head.key_id)
        return isinstance(signer, Signer) and signer.refuses(head.signed_at_ms) is None

    def _is_unknown(self, at: int) -> bool:
        return bool(self._offered[at].head) and self._check(at)[0] is Proof.UNKNOWN

    def _check(self, at: int) -> tuple[Proof, str]:
        """What a head proves, and the reason to decline where it does not prove its batch."""
        if at not in self._checked:
            self._checked[at] = self._verify(self._offered[at])
        return self._checked[at]

    def _verify(self, one: Offered) -> tuple[Proof, str]:
        zone = one.batch.header.origin.zone
        if self._wrong[zone] >= WRONG_HEADS_MAX:
            return Proof.WRONG, WRONG
        found = check_head(one.head, ChainEnd.of(one.batch), self._trust.resolve)
        self._wrong[zone] += found[0] is Proof.WRONG
        return found

    def result(self) -> Judgement:
        """The judgement, with what cannot be read taken out."""
        offered, why = self._offered, self._why
        evidence = [at for at, one in enumerate(offered) if one.unreadable or (why[at] and self._has_wrong_head(at))]
        for at, one in enumerate(offered):
            if one.unreadable and not why[at]:
                self._end_run_before(at)
                why[at] = f"unreadable: {one.unreadable}"
        accepted = [at for at, reason in enumerate(why) if not reason]
        place = {at: index for index, at in enumerate(accepted)}
        heads = [
            KeptHead(place[at], offered[at].head, is_verified)
            for at, is_verified in sorted(self._kept.items())
            if at in place
        ]
        return Judgement(
            tuple(accepted), tuple(heads), tuple(_joined(offered, why)), frozenset(self._proven), tuple(evidence)
        )

    def _has_wrong_head(self, at: int) -> bool:
        return at in self._checked and self._checked[at][0] is Proof.WRONG

    def _end_run_before(self, at: int) -> None:
        """A batch is taken out of a run: the nearest head before it proves what is left there to the next receiver."""
        is_verified = next((good for one, good in sorted(self._kept.items()) if one >= at), False)
        is_good = self._is_verified if is_verified else self._is_unknown
        for one in range(at - 1, -1, -1):
            if one in self._kept or not _follows(self._offered[one].batch, self._offered[one + 1].batch):
                return
            if is_good(one):
                self._kept[one] = is_verified
                return


def check_head(record: bytes, end: ChainEnd, resolve: Resolve) -> tuple[Proof, str]:
    """What a head says of the end of a chain, and why it does not prove it."""
    try:
        head = parse_head(record)
    except HeadError:
        return Proof.WRONG, UNREADABLE_HEAD
    signer = resolve(end.origin.zone, head.key_id)
    key = f"signed by key {head.key_id.hex()}"
    if signer is None:
        return Proof.UNKNOWN, f"{key}, whose certificate this node does not have"
    if isinstance(signer, Refusal):
        proof = Proof.UNKNOWN if signer.reason in _UNTRUSTED else Proof.WRONG
        return proof, f"{key}, which is not trusted: {signer.reason.value}"
    if signer.zone != end.origin.zone:
        return Proof.WRONG, f"{key}, which is of zone {signer.zone}"
    if refusal := signer.refuses(head.signed_at_ms):
        return Proof.WRONG, f"{key}: {refusal.reason.value}"
    if not signer.public.verify(signed_bytes(*end, head.key_id, head.signed_at_ms), head.signature):
        return Proof.WRONG, WRONG
    return Proof.VERIFIED, ""


def proves_own(record: bytes, end: ChainEnd, own_signers: Iterable[Signer]) -> bool:
    """Whether one of our own keys, present or former, has signed the end of a chain of this zone. A peer that shows
    such a head of facts that this store lacks proves that the store is an old copy; its bare word proves nothing."""
    known = {signer.key_id: signer for signer in own_signers}
    return check_head(record, end, lambda _, key_id: known.get(key_id))[0] is Proof.VERIFIED


def _joined(offered: Sequence[Offered], why: Sequence[str]) -> Iterator[Declined]:
    """The declined batches as ranges: consecutive ones of one origin with one reason are one range."""
    last: Declined | None = None
    for one, reason in zip(offered, why, strict=True):
        if not reason:
            continue
        header = one.batch.header
        facts = OriginRange(header.origin.zone, header.origin.epoch, header.first_sequence, header.last_sequence)
        if last is not None and _continues(last, one.first_offset, facts, reason):
            joined = facts._replace(first_sequence=last.facts.first_sequence)
            last = Declined(last.first_offset, one.last_offset, joined, reason)
            continue
        if last is not None:
            yield last
        last = Declined(one.first_offset, one.last_offset, facts, reason)
    if last is not None:
        yield last


def _continues(last: Declined, first_offset: int, facts: OriginRange, reason: str) -> bool:
    return (last.reason, last.last_offset + 1, last.facts.zone, last.facts.epoch, last.facts.last_sequence + 1) == (
        *(reason, first_offset, facts.zone, facts.epoch),
        facts.first_sequence,
    )
