"""When an append of messages is answered: now, later, or as `queued`. Core: no IO.

The semantics are those of Kafka's acks, with consumers in the place of replicas:

    none      as soon as the append is queued; its offset is not known yet
    local     when it is durable here
    all       when every consumer in sync has confirmed it, and at least `min_in_sync` have
    quorum    when a majority of the voters has it, floor(voters / 2) + 1, and at least `min_in_sync` consumers have it.
              Voters are the stream's registered consumers and this node, which always has it

A consumer is *in sync* while its last fetch that reached the end of the log is younger than `in_sync_lag_ms`. This is
decided again each time, so `all` does not wait for a consumer that falls out of sync. `min_in_sync` is at least 1:
without it, `all` with no consumer in sync would promise no more than `local`. A confirmation counts whether or not its
consumer is in sync, because it means that the fact is durable there.

No append waits longer than `acks_timeout_ms`. An append that is not acknowledged by then is answered *queued*, with the
reason: the fact is durable here and replication continues, but the fact is not yet durable where `acks` promised it.

The write class of a stream decides what happens if too few consumers are in sync: `queued` answers at once, every other
class waits until the timeout. An append to a `strong` stream is never answered on weaker terms than the stream's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent.fact_store.core import AcksRefused
from agent.settings.store import Acks, StreamSettings

Promise = Literal["quorum", "all"]
_NAMED_MAX = 3  # consumers named in a reason


@dataclass(frozen=True, slots=True)
class Follower:
    """What acknowledgement needs to know of a consumer. Everything up to `frontier` is durable there. `caught_up_ns` is
    the time of its last fetch that reached the end of the log; it lies in the future while a fetch waits there, and is
    None if there was no such fetch since the store was opened."""

    name: str
    frontier: int
    caught_up_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AckTerms:
    """The terms of one append. Without promises, it waits only for its own commit."""

    stream: str
    promises: tuple[Promise, ...] = ()
    min_in_sync: int = 1
    timeout_ns: int = 0
    in_sync_lag_ns: int = 0
    waits_only_in_sync: bool = False
    is_answered_unstored: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The fact is durable where the terms promise it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: decide again when a frontier moves, or at `until_ns`."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class Queued:
    """The fact is durable here, but not where the terms promise it, for this reason. Replication continues."""

    why: str


Decision = Acknowledged | Pending | Queued


def ack_terms(settings: StreamSettings, acks: Acks | None = None) -> AckTerms:
    """What an append to a stream waits for; `acks` overrides the stream's. Raises AcksRefused for an override that the
    stream's write class forbids."""
    asked, own, name = acks or settings.acks, settings.acks, settings.name
    if settings.write_class == "local" and asked in {"quorum", "all"}:
        raise AcksRefused(
            f"acks {asked} on {name}: its write class is local, so no other zone has its facts", "use local"
        )
    promises: tuple[Promise, ...] = () if asked in {"none", "local"} else (asked,)  # type: ignore[assignment]
    if settings.write_class == "strong" and asked != own:
        # Neither quorum nor all implies the other. Where the stream promises quorum, an append with all gets both.
        if (own, asked) != ("quorum", "all"):
            raise AcksRefused(f"acks {asked} on {name}: its write class is strong, it promises {own}", f"use {own}")
        promises = ("quorum", "all")
    return AckTerms(
        name,
        promises,
        settings.min_in_sync,
        settings.acks_timeout_ms * 1_000_000,
        settings.in_sync_lag_ms * 1_000_000,
        waits_only_in_sync=settings.write_class == "queued",
        is_answered_unstored=asked == "none",
    )


def is_in_sync(follower: Follower, lag_ns: int, now_ns: int) -> bool:
    """Whether a consumer's last fetch that reached the end is younger than `lag_ns`."""
    return follower.caught_up_ns is not None and now_ns - follower.caught_up_ns < lag_ns


def decide_new_ack(offset: int, terms: AckTerms, followers: Sequence[Follower], now_ns: int) -> Decision:
    """The answer to an append whose last fact has just become durable at `offset`."""
    decision = decide_ack(offset, terms, followers, now_ns, now_ns)
    if isinstance(decision, Pending) and terms.waits_only_in_sync:
        in_sync = sum(is_in_sync(follower, terms.in_sync_lag_ns, now_ns) for follower in followers)
        need = max(_needed(promise, terms, followers) for promise in terms.promises)
        if in_sync < need:
            return Queued(f"{in_sync} of the {need} consumers that {terms.stream} needs are in sync")
    return decision


def decide_ack(offset: int, terms: AckTerms, followers: Sequence[Follower], since_ns: int, now_ns: int) -> Decision:
    """The answer now to an append that became durable at `since_ns`. A confirmation that arrives with the timeout
    counts."""
    if not terms.promises or offset <= acknowledged_offset(terms, followers, now_ns):
        return Acknowledged()
    deadline_ns = since_ns + terms.timeout_ns
    if now_ns >= deadline_ns:
        return Queued(_timeout_reason(offset, terms, followers, now_ns))
    return Pending(min(deadline_ns, out_of_sync_ns(offset, terms, followers, now_ns, deadline_ns)))


def acknowledged_offset(terms: AckTerms, followers: Sequence[Follower], now_ns: int) -> int:
    """The last offset up to which everything is durable where `terms` promise it."""
    return min(_reached(promise, terms, followers, now_ns) for promise in terms.promises)


def out_of_sync_ns(offset: int, terms: AckTerms, followers: Sequence[Follower], now_ns: int, never_ns: int) -> int:
    """When the first consumer that `all` waits for at `offset` falls out of sync if it does not fetch again; `never_ns`
    if there is none."""
    if "all" not in terms.promises:
        return never_ns
    lag_ns = terms.in_sync_lag_ns
    slow = [follower for follower in followers if follower.frontier < offset and is_in_sync(follower, lag_ns, now_ns)]
    return min(((follower.caught_up_ns or 0) + lag_ns for follower in slow), default=never_ns)


def _needed(promise: Promise, terms: AckTerms, followers: Sequence[Follower]) -> int:
    """How many consumers must have a fact."""
    voters = len(followers) + 1
    majority = voters // 2 + 1
    return max(majority - 1, terms.min_in_sync) if promise == "quorum" else terms.min_in_sync


def _reached(promise: Promise, terms: AckTerms, followers: Sequence[Follower], now_ns: int) -> int:
    need = _needed(promise, terms, followers)
    frontiers = sorted((follower.frontier for follower in followers), reverse=True)
    by_enough = frontiers[need - 1] if need <= len(frontiers) else 0
    if promise == "quorum":
        return by_enough
    in_sync = [follower.frontier for follower in followers if is_in_sync(follower, terms.in_sync_lag_ns, now_ns)]
    return min([by_enough, *in_sync])


def _timeout_reason(offset: int, terms: AckTerms, followers: Sequence[Follower], now_ns: int) -> str:
    """Which consumers have not confirmed an offset, for the producer and the log."""
    need = max(_needed(promise, terms, followers) for promise in terms.promises)
    have = sum(follower.frontier >= offset for follower in followers)
    waited = f"after {terms.timeout_ns / 1e9:g} s {have} of the {need} consumers that {terms.stream} needs have offset {offset}"
    slow = [follower.name for follower in followers if follower.frontier < offset]
    in_sync = [
        follower.name
        for follower in followers
        if follower.frontier < offset and is_in_sync(follower, terms.in_sync_lag_ns, now_ns)
    ]
    if not followers:
        return f"{waited}; none is registered"
    named = in_sync or slow
    more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    return f"{waited}; missing: {', '.join(sorted(named)[:_NAMED_MAX])}{more}"
