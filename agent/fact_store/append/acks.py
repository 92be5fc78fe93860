"""When an append is answered: now, later, or with `queued`. Core: no IO.

Semantics of Kafka's acks, worst case included, with consumers in the place of replicas:

    none      as soon as the append is queued; its offset is not known yet
    local     when it is durable here
    all       when every consumer that keeps up has confirmed it, and at least `min_in_sync` have
    quorum    when a majority of the voters has it: floor(voters / 2) + 1. Voters are the stream's registered consumers and
              this node, which has it; and at least `min_in_sync` consumers

A consumer is *in sync* while its last fetch that reached the end of the log is younger than `in_sync_lag_ms`. That is judged
anew each time, so `all` does not wait for one that falls out; without `min_in_sync` it would then promise no more than
`local`, which is why that is at least 1. A confirmation counts whoever gave it, in sync or not: it says that the fact is durable there.

Nobody waits longer than `acks_timeout_ms`. What is not acknowledged by then is answered *queued*, with the reason: the fact
is durable here and goes on replicating, the producer knows that it has no copy yet, and nothing was taken back.

The write class of a stream says what becomes of an append where too few keep up: `queued` is answered at once, every
other class waits its time. `strong` is never answered on weaker terms than the stream's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent.fact_store.log import Acks, AcksRefused, StreamSettings

Promise = Literal["quorum", "all"]
_NAMED_MAX = 3  # consumers named in a reason


@dataclass(frozen=True, slots=True)
class Follower:
    """A consumer as far as acknowledgement goes: everything up to `frontier` is durable there; `caught_up_ns` is its last
    fetch that reached the end of the log (in the future while one waits there), None if there was none since we opened."""

    name: str
    frontier: int
    caught_up_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What one append waits for. Without promises, for nothing but its own commit."""

    stream: str
    promises: tuple[Promise, ...] = ()
    min_in_sync: int = 1
    timeout_ns: int = 0
    in_sync_lag_ns: int = 0
    waits_only_in_sync: bool = False
    is_answered_unstored: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """It is where it was promised to be."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: judge again when a frontier moves, or at `until_ns`."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class Queued:
    """Durable here and going on replicating; not where it was promised to be, and why."""

    why: str


Decision = Acknowledged | Pending | Queued


def terms(settings: StreamSettings, acks: Acks | None = None) -> Terms:
    """What an append to a stream waits for, `acks` overriding the stream's. Raises AcksRefused for an override that the
    stream's write class forbids."""
    asked, own, name = acks or settings.acks, settings.acks, settings.name
    if settings.write_class == "local" and asked in {"quorum", "all"}:
        raise AcksRefused(
            f"acks {asked} on {name}: its write class is local, nobody else ever has its facts", "use local"
        )
    promises: tuple[Promise, ...] = () if asked in {"none", "local"} else (asked,)  # type: ignore[assignment]
    if settings.write_class == "strong" and asked != own:
        # Neither of quorum and all implies the other: more than a quorum is both, less than all is refused.
        if (own, asked) != ("quorum", "all"):
            raise AcksRefused(f"acks {asked} on {name}: its write class is strong, it promises {own}", f"use {own}")
        promises = ("quorum", "all")
    return Terms(
        name,
        promises,
        settings.min_in_sync,
        settings.acks_timeout_ms * 1_000_000,
        settings.in_sync_lag_ms * 1_000_000,
        waits_only_in_sync=settings.write_class == "queued",
        is_answered_unstored=asked == "none",
    )


def is_in_sync(follower: Follower, lag_ns: int, now_ns: int) -> bool:
    """Whether a consumer's last fetch that reached the end is young enough."""
    return follower.caught_up_ns is not None and now_ns - follower.caught_up_ns < lag_ns


def judge_new(offset: int, terms: Terms, followers: Sequence[Follower], now_ns: int) -> Decision:
    """What to answer to an append whose last fact became durable at `offset` just now."""
    decision = judge(offset, terms, followers, now_ns, now_ns)
    if isinstance(decision, Pending) and terms.waits_only_in_sync:
        keeping_up = sum(is_in_sync(one, terms.in_sync_lag_ns, now_ns) for one in followers)
        need = max(_needed(promise, terms, followers) for promise in terms.promises)
        if keeping_up < need:
            return Queued(f"{keeping_up} of the {need} consumers that {terms.stream} needs keep up")
    return decision


def judge(offset: int, terms: Terms, followers: Sequence[Follower], since_ns: int, now_ns: int) -> Decision:
    """What to answer now to an append that became durable at `since_ns`. A confirmation that comes in time's last moment counts."""
    if not terms.promises or offset <= reached(terms, followers, now_ns):
        return Acknowledged()
    deadline_ns = since_ns + terms.timeout_ns
    if now_ns >= deadline_ns:
        return Queued(_why(offset, terms, followers, now_ns))
    return Pending(min(deadline_ns, falls_out_ns(offset, terms, followers, now_ns, deadline_ns)))


def reached(terms: Terms, followers: Sequence[Follower], now_ns: int) -> int:
    """The last offset that is where `terms` promise it to be; every offset before it is, too."""
    return min(_reached(promise, terms, followers, now_ns) for promise in terms.promises)


def falls_out_ns(offset: int, terms: Terms, followers: Sequence[Follower], now_ns: int, never_ns: int) -> int:
    """When the first of those that `all` waits for at `offset` falls out of sync, if nothing more is heard of it."""
    if "all" not in terms.promises:
        return never_ns
    lag_ns = terms.in_sync_lag_ns
    slow = [one for one in followers if one.frontier < offset and is_in_sync(one, lag_ns, now_ns)]
    return min(((one.caught_up_ns or 0) + lag_ns for one in slow), default=never_ns)


def _needed(promise: Promise, terms: Terms, followers: Sequence[Follower]) -> int:
    """How many consumers must have a fact."""
    voters = len(followers) + 1
    majority = voters // 2 + 1
    return max(majority - 1, terms.min_in_sync) if promise == "quorum" else terms.min_in_sync


def _reached(promise: Promise, terms: Terms, followers: Sequence[Follower], now_ns: int) -> int:
    need = _needed(promise, terms, followers)
    frontiers = sorted((one.frontier for one in followers), reverse=True)
    by_enough = frontiers[need - 1] if need <= len(frontiers) else 0
    if promise == "quorum":
        return by_enough
    in_sync = [one.frontier for one in followers if is_in_sync(one, terms.in_sync_lag_ns, now_ns)]
    return min([by_enough, *in_sync])


def _why(offset: int, terms: Terms, followers: Sequence[Follower], now_ns: int) -> str:
    """Who is missing, for a person."""
    need = max(_needed(promise, terms, followers) for promise in terms.promises)
    have = sum(one.frontier >= offset for one in followers)
    waited = f"after {terms.timeout_ns / 1e9:g} s {have} of the {need} consumers that {terms.stream} needs have offset {offset}"
    slow = [one.name for one in followers if one.frontier < offset]
    in_sync = [one.name for one in followers if one.frontier < offset and is_in_sync(one, terms.in_sync_lag_ns, now_ns)]
    if not followers:
        return f"{waited}; none is registered"
    named = in_sync or slow
    more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    return f"{waited}; missing: {', '.join(sorted(named)[:_NAMED_MAX])}{more}"
