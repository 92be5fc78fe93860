"""The lease of a consumer in the store: durable, in the order of the requests, and checked for confirmations.

Checked by breaking the product on purpose: a lease kept only in memory, a confirmation that checks no lease.
"""

import time
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.core.errors import (
    ConsumerFenced,
    ConsumerNotYours,
    LeaseUnknown,
    TooManyConsumers,
    UnknownConsumer,
)
from agent.lease import LEASE_EPOCH_MAX, NO_LEASE, Lease, LeaseClaim
from tests.fact_store.making import LIMIT_S, OPERATIONAL, TELEMETRY, done, failed, plant, samples
from tests.waiting import wait_until

NAME = "idmz.telemetry"


def registered(store: FactStore) -> None:
    """Ten facts and a consumer."""
    done(store.appends.append_samples(TELEMETRY, samples(10)))
    done(store.consumers.register(NAME, "idmz", TELEMETRY))


def lease(store: FactStore) -> Lease:
    """The lease in force."""
    known = store.consumers.get(NAME)
    assert known is not None
    return known.lease


def nth(store: FactStore, number: int) -> int:
    """The epoch of the lease that was granted as the first, second, ... since the consumer was registered."""
    known = store.consumers.get(NAME)
    assert known is not None
    return known.registered_unix_ms + number


def test_epochs_go_on_after_a_restart(tmp_path: Path) -> None:
    """A lease that was answered is in force after a restart, with its holder, and the next one is higher."""
    with plant(tmp_path) as store:
        registered(store)
        assert lease(store) == NO_LEASE
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("one", 0))) == Lease(nth(store, 1), "one")
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("two", 0))) == Lease(nth(store, 2), "two")
    with plant(tmp_path) as store:
        assert lease(store) == Lease(nth(store, 2), "two")
        assert isinstance(failed(store.consumers.hold_lease(NAME, LeaseClaim("one", nth(store, 1)))), ConsumerFenced)
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("three", 0))) == Lease(nth(store, 3), "three")


def test_a_fenced_instance_confirms_nothing(tmp_path: Path) -> None:
    """A confirmation queued right after another instance's lease, before either is durable, moves nothing. The holder's
    confirmation does, and so does one from the node itself, which has no lease."""
    with plant(tmp_path) as store:
        registered(store)
        done(store.consumers.hold_lease(NAME, LeaseClaim("one", 0)))
        assert done(store.consumers.confirm(NAME, 2, claim=LeaseClaim("one", nth(store, 1)))) == 2
        taking = store.consumers.hold_lease(NAME, LeaseClaim("two", 0))
        confirming = store.consumers.confirm(NAME, 8, claim=LeaseClaim("one", nth(store, 1)))
        assert done(taking) == Lease(nth(store, 2), "two")
        error = failed(confirming)
        assert isinstance(error, ConsumerFenced)
        assert f"lease {nth(store, 2)} in force, the request has {nth(store, 1)}" in str(error)
        assert done(store.consumers.confirm(NAME, 3, claim=LeaseClaim("two", nth(store, 2)))) == 3
        assert isinstance(failed(store.consumers.confirm(NAME, 9, claim=LeaseClaim("foreign"))), ConsumerFenced)
        assert done(store.consumers.confirm(NAME, 4)) == 4


def test_a_lease_that_was_never_granted_changes_nothing(tmp_path: Path) -> None:
    """A lease that this store has not granted is refused, whatever its epoch, and moves nothing. The next instance that
    requests one gets the next epoch."""
    with plant(tmp_path) as store:
        registered(store)
        for epoch in (1, nth(store, 0), nth(store, 1), LEASE_EPOCH_MAX):
            claim = LeaseClaim("one", epoch)
            assert isinstance(failed(store.consumers.hold_lease(NAME, claim)), LeaseUnknown)
            assert isinstance(failed(store.consumers.confirm(NAME, 5, claim=claim)), LeaseUnknown)
            assert isinstance(failed(store.consumers.unregister(NAME, "idmz", claim)), LeaseUnknown)
        assert lease(store) == NO_LEASE
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("two", 0))) == Lease(nth(store, 1), "two")


def test_its_owner_unregisters_a_consumer(tmp_path: Path) -> None:
    """Its zone removes a consumer at once and durably, but only under the lease in force. A repeat finds nothing to do.
    Another zone may not."""
    with plant(tmp_path) as store:
        registered(store)
        done(store.consumers.hold_lease(NAME, LeaseClaim("one", 0)))
        done(store.consumers.hold_lease(NAME, LeaseClaim("two", 0)))
        unregister = store.consumers.unregister
        assert isinstance(failed(unregister(NAME, "idmz", LeaseClaim("one", nth(store, 1)))), ConsumerFenced)
        assert isinstance(failed(unregister(NAME, "cloud", LeaseClaim("two", nth(store, 2)))), ConsumerNotYours)
        assert store.consumers.get(NAME) is not None
        held = LeaseClaim("two", nth(store, 2))
        assert done(unregister(NAME, "idmz", held)) is True
        assert done(unregister(NAME, "idmz", held)) is False
    with plant(tmp_path) as store:
        assert store.consumers.get(NAME) is None


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
            after = done(claim(NAME, former[-1])).epoch
        for first in (LeaseClaim("lives", 0, 0), former[0]):
            done(store.consumers.remove(NAME, force=True, now=True))
            wait_until(lambda: time.time_ns() // 1_000_000 > after, "the next millisecond")  # noqa: B023
            done(store.consumers.register(NAME, "idmz", TELEMETRY))
            held = done(claim(NAME, first))
            assert held.holder == first.holder
            assert [done(claim(NAME, holder)) for holder in former] == [held] * 3
            after = held.epoch
        lives = LeaseClaim("lives", nth(store, 1) - 1)
        assert isinstance(failed(claim(NAME, lives)), LeaseUnknown), "it requests a lease again, and is not fenced"


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
        assert isinstance(failed(store.consumers.hold_lease(NAME, LeaseClaim("one", 0))), UnknownConsumer)
        for epoch in (-1, LEASE_EPOCH_MAX + 1):
            with pytest.raises(ValueError, match="a lease has an epoch of 0 to"):
                store.consumers.hold_lease(NAME, LeaseClaim("one", epoch))
