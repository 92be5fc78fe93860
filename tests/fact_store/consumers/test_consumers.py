"""Consumers of a store: their positions survive a restart, and of several instances the one started last goes on."""

import time
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.core.errors import (
    ConsumerFenced,
    ConsumerNotYours,
    ConsumerStreamMismatch,
    LeaseUnknown,
    TooManyConsumers,
    UnknownConsumer,
)
from agent.fact_store.core.frontier import Confirmed
from agent.fact_store.core.lifecycle import Lifecycle
from agent.lease import LEASE_EPOCH_MAX, NO_LEASE, Lease, LeaseClaim
from agent.message import MessageError
from tests.fact_store.making import LIMIT_S, OPERATIONAL, TELEMETRY, done, failed, plant, samples
from tests.support.relay_store import FRONTIERS, opened, relay_store
from tests.waiting import wait_until

NAME = "idmz.facts.telemetry"
LEASED = "idmz.telemetry"


def test_invariant_11_positions_survive_a_restart(tmp_path: Path) -> None:
    """Frontiers and ranges beyond them are there after a restart, for each consumer; one that was online is offline."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(20)))
        done(store.consumers.register("a", "idmz", TELEMETRY))
        done(store.consumers.register("b", "idmz", TELEMETRY))
        done(store.consumers.confirm("a", 5))
        done(store.consumers.confirm("a", 9, 8))
        done(store.consumers.confirm("a", 15, 12))
        assert store.consumers.get("a") is not None
        assert store.consumers.get("a").lifecycle is Lifecycle.ONLINE  # type: ignore[union-attr]
    with plant(tmp_path) as store:
        a, b = store.consumers.get("a"), store.consumers.get("b")
        assert a is not None
        assert b is not None
        assert a.confirmed == Confirmed(5, ((8, 9), (12, 15)))
        assert a.lifecycle is Lifecycle.OFFLINE
        assert (b.confirmed, b.lifecycle) == (Confirmed(0), Lifecycle.NEW)
        assert done(store.consumers.confirm("a", 11, 6)) == 15
    with plant(tmp_path) as store:
        assert [(consumer.name, consumer.confirmed) for consumer in store.consumers.all()] == [
            ("a", Confirmed(15)),
            ("b", Confirmed(0)),
        ]


def test_where_a_consumer_starts(tmp_path: Path) -> None:
    """At the oldest fact or at the end; also on a stream without facts."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(7)))
        assert done(store.consumers.register("old", "idmz", TELEMETRY, "oldest")).frontier == 0
        assert done(store.consumers.register("new", "idmz", TELEMETRY, "end")).frontier == 7
        assert done(store.consumers.register("early", "idmz", OPERATIONAL, "end")).frontier == 0
        assert done(store.consumers.confirm("new", 3)) == 7


def test_registering_again(tmp_path: Path) -> None:
    """The same zone and stream find the consumer as it is; another zone or stream is refused by name."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(7)))
        done(store.consumers.register(NAME, "idmz", TELEMETRY))
        done(store.consumers.confirm(NAME, 5))
        assert done(store.consumers.register(NAME, "idmz", TELEMETRY, "end")).frontier == 5
        assert isinstance(failed(store.consumers.register(NAME, "other", TELEMETRY)), ConsumerNotYours)
        assert isinstance(failed(store.consumers.register(NAME, "idmz", OPERATIONAL)), ConsumerStreamMismatch)
        with pytest.raises(MessageError, match="'noon' is neither 'oldest' nor 'end' nor a time"):
            store.consumers.register("x", "idmz", TELEMETRY, "noon")  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="consumer"):
            store.consumers.register("Bad Name", "idmz", TELEMETRY)


def test_a_removed_consumer_is_gone_with_its_confirmations(tmp_path: Path) -> None:
    """A removed consumer is gone with all it confirmed, also after a restart; its name can be registered again."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(7)))
        done(store.consumers.register(NAME, "idmz", TELEMETRY))
        done(store.consumers.confirm(NAME, 2))
        done(store.consumers.confirm(NAME, 5, 4))
        assert done(store.consumers.remove(NAME, force=True, now=True)) is Lifecycle.DELETED
        assert store.consumers.get(NAME) is None
        assert isinstance(failed(store.consumers.remove(NAME)), UnknownConsumer)
        assert isinstance(failed(store.consumers.confirm(NAME, 1)), UnknownConsumer)
    with plant(tmp_path) as store:
        assert store.consumers.all() == []
        assert done(store.consumers.register(NAME, "other", TELEMETRY)).confirmed == Confirmed(0)


def test_what_a_consumer_does_changes_no_other(tmp_path: Path) -> None:
    """Of four consumers of two streams and three zones, only the one that confirms, takes a lease, is seen or is
    removed differs afterwards, also after a restart."""
    name, file = "local.mes", relay_store(tmp_path)
    claim = LeaseClaim("one", 0)
    with opened(file) as store:
        steps = (
            lambda: store.consumers.confirm(name, 10),
            lambda: store.consumers.confirm(name, 12, 12),
            lambda: store.consumers.hold_lease(name, claim),
            lambda: store.consumers.remove(name, force=True),
            lambda: store.consumers.register(name, "local", TELEMETRY, "end"),
            lambda: store.consumers.remove(name, force=True, now=True),
        )
        before = {consumer.name: consumer for consumer in store.consumers.all()}
        assert {own: (c.zone, c.stream, c.frontier) for own, c in before.items()} == FRONTIERS
        for step in steps:
            done(step())  # type: ignore[arg-type]
            after = {consumer.name: consumer for consumer in store.consumers.all()}
            assert [other for other in before if after.get(other) != before[other]] == [name]
            before = after
    with opened(file) as store:
        assert {consumer.name: consumer.frontier for consumer in store.consumers.all()} == {
            other: frontier for other, (_, _, frontier) in FRONTIERS.items() if other != name
        }


def registered(store: FactStore) -> None:
    """Ten facts and a consumer."""
    done(store.appends.append_samples(TELEMETRY, samples(10)))
    done(store.consumers.register(LEASED, "idmz", TELEMETRY))


def lease(store: FactStore) -> Lease:
    """The lease in force."""
    known = store.consumers.get(LEASED)
    assert known is not None
    return known.lease


def nth(store: FactStore, number: int) -> int:
    """The epoch of the lease that was granted as the first, second, ... since the consumer was registered."""
    known = store.consumers.get(LEASED)
    assert known is not None
    return known.registered_unix_ms + number


def test_epochs_go_on_after_a_restart(tmp_path: Path) -> None:
    """A lease that was answered is in force after a restart, with its holder, and the next one is higher."""
    with plant(tmp_path) as store:
        registered(store)
        assert lease(store) == NO_LEASE
        assert done(store.consumers.hold_lease(LEASED, LeaseClaim("one", 0))) == Lease(nth(store, 1), "one")
        assert done(store.consumers.hold_lease(LEASED, LeaseClaim("two", 0))) == Lease(nth(store, 2), "two")
    with plant(tmp_path) as store:
        assert lease(store) == Lease(nth(store, 2), "two")
        assert isinstance(failed(store.consumers.hold_lease(LEASED, LeaseClaim("one", nth(store, 1)))), ConsumerFenced)
        assert done(store.consumers.hold_lease(LEASED, LeaseClaim("three", 0))) == Lease(nth(store, 3), "three")


def test_a_fenced_instance_confirms_nothing(tmp_path: Path) -> None:
    """A confirmation queued right after another instance's lease, before either is durable, moves nothing. The holder's
    confirmation does, and so does one from the node itself, which has no lease."""
    with plant(tmp_path) as store:
        registered(store)
        done(store.consumers.hold_lease(LEASED, LeaseClaim("one", 0)))
        assert done(store.consumers.confirm(LEASED, 2, claim=LeaseClaim("one", nth(store, 1)))) == 2
        taking = store.consumers.hold_lease(LEASED, LeaseClaim("two", 0))
        confirming = store.consumers.confirm(LEASED, 8, claim=LeaseClaim("one", nth(store, 1)))
        assert done(taking) == Lease(nth(store, 2), "two")
        error = failed(confirming)
        assert isinstance(error, ConsumerFenced)
        assert f"lease {nth(store, 2)} in force, the request has {nth(store, 1)}" in str(error)
        assert done(store.consumers.confirm(LEASED, 3, claim=LeaseClaim("two", nth(store, 2)))) == 3
        assert isinstance(failed(store.consumers.confirm(LEASED, 9, claim=LeaseClaim("foreign"))), ConsumerFenced)
        assert done(store.consumers.confirm(LEASED, 4)) == 4


def test_a_lease_that_was_never_granted_changes_nothing(tmp_path: Path) -> None:
    """A lease that this store has not granted is refused, whatever its epoch, and moves nothing. The next instance that
    requests one gets the next epoch."""
    with plant(tmp_path) as store:
        registered(store)
        for epoch in (1, nth(store, 0), nth(store, 1), LEASE_EPOCH_MAX):
            claim = LeaseClaim("one", epoch)
            assert isinstance(failed(store.consumers.hold_lease(LEASED, claim)), LeaseUnknown)
            assert isinstance(failed(store.consumers.confirm(LEASED, 5, claim=claim)), LeaseUnknown)
            assert isinstance(failed(store.consumers.unregister(LEASED, "idmz", claim)), LeaseUnknown)
        assert lease(store) == NO_LEASE
        assert done(store.consumers.hold_lease(LEASED, LeaseClaim("two", 0))) == Lease(nth(store, 1), "two")


def test_its_owner_unregisters_a_consumer(tmp_path: Path) -> None:
    """Its zone removes a consumer at once and durably, but only under the lease in force. A repeat finds nothing to do.
    Another zone may not."""
    with plant(tmp_path) as store:
        registered(store)
        done(store.consumers.hold_lease(LEASED, LeaseClaim("one", 0)))
        done(store.consumers.hold_lease(LEASED, LeaseClaim("two", 0)))
        unregister = store.consumers.unregister
        assert isinstance(failed(unregister(LEASED, "idmz", LeaseClaim("one", nth(store, 1)))), ConsumerFenced)
        assert isinstance(failed(unregister(LEASED, "cloud", LeaseClaim("two", nth(store, 2)))), ConsumerNotYours)
        assert store.consumers.get(LEASED) is not None
        held = LeaseClaim("two", nth(store, 2))
        assert done(unregister(LEASED, "idmz", held)) is True
        assert done(unregister(LEASED, "idmz", held)) is False
    with plant(tmp_path) as store:
        assert store.consumers.get(LEASED) is None


def test_old_requests_take_no_lease_of_a_consumer_that_is_registered_again(tmp_path: Path) -> None:
    """A broker has kept the signed requests of a zone's former instances, each for the lease after the one before. The
    consumer was removed, and the zone's living instance has registered it again: no old request takes its lease. An old
    request that comes before the registration gets a lease, and fences no instance: leases granted before count as
    unknown."""
    with plant(tmp_path) as store:
        registered(store)
        claim = store.consumers.hold_lease
        former, after = list[LeaseClaim](), 0
        for name in ("one", "two", "three"):
            former.append(LeaseClaim(name, 0, after))
            after = done(claim(LEASED, former[-1])).epoch
        for first in (LeaseClaim("lives", 0, 0), former[0]):
            done(store.consumers.remove(LEASED, force=True, now=True))
            wait_until(lambda: time.time_ns() // 1_000_000 > after, "the next millisecond")  # noqa: B023
            done(store.consumers.register(LEASED, "idmz", TELEMETRY))
            held = done(claim(LEASED, first))
            assert held.holder == first.holder
            assert [done(claim(LEASED, holder)) for holder in former] == [held] * 3
            after = held.epoch
        lives = LeaseClaim("lives", nth(store, 1) - 1)
        assert isinstance(failed(claim(LEASED, lives)), LeaseUnknown), "it requests a lease again, and is not fenced"


def test_the_limit_of_consumers_holds_for_requests_that_come_together(tmp_path: Path) -> None:
    """Of forty registrations in one commit, for two streams, exactly as many succeed as the zone may have. Another
    zone's is not refused because of them. A name that is registered already does not count twice."""
    with plant(tmp_path) as store:
        registering = [
            store.consumers.register(f"idmz.{number}", "idmz", (TELEMETRY, OPERATIONAL)[number % 2], zone_max=8)
            for number in range(40)
        ]
        errors = [future.exception(LIMIT_S) for future in registering]
        assert [type(error) for error in errors if error is not None] == [TooManyConsumers] * 32
        assert len(store.consumers.all()) == 8
        assert done(store.consumers.register("idmz.0", "idmz", TELEMETRY, zone_max=8)).zone == "idmz"
        assert done(store.consumers.register("cloud.0", "cloud", TELEMETRY, zone_max=8)).zone == "cloud"


def test_invalid_leases_are_refused(tmp_path: Path) -> None:
    """Numbers that are no epoch and unknown consumers are refused by name."""
    with plant(tmp_path) as store:
        assert isinstance(failed(store.consumers.hold_lease(LEASED, LeaseClaim("one", 0))), UnknownConsumer)
        for epoch in (-1, LEASE_EPOCH_MAX + 1):
            with pytest.raises(ValueError, match="a lease has an epoch of 0 to"):
                store.consumers.hold_lease(LEASED, LeaseClaim("one", epoch))
