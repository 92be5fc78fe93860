"""The lease of a consumer in the store: durable, in the order of the requests, and checked for confirmations.

Checked by breaking the product on purpose: a lease kept only in memory, a confirmation that checks no lease.
"""

from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.log.errors import ConsumerFenced, UnknownConsumer
from agent.lease import LEASE_EPOCH_MAX, NO_LEASE, Lease, LeaseClaim
from tests.fact_store.making import TELEMETRY, done, failed, plant, samples

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


def test_epochs_go_on_after_a_restart(tmp_path: Path) -> None:
    """A lease that was answered is in force after a restart, with its holder, and the next one is higher."""
    with plant(tmp_path) as store:
        registered(store)
        assert lease(store) == NO_LEASE
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("one", 0))) == Lease(1, "one")
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("two", 0))) == Lease(2, "two")
    with plant(tmp_path) as store:
        assert lease(store) == Lease(2, "two")
        assert isinstance(failed(store.consumers.hold_lease(NAME, LeaseClaim("one", 1))), ConsumerFenced)
        assert done(store.consumers.hold_lease(NAME, LeaseClaim("three", 0))) == Lease(3, "three")


def test_a_fenced_instance_confirms_nothing(tmp_path: Path) -> None:
    """A confirmation queued right after another instance's lease, before either is durable, moves nothing. The holder's
    confirmation does, and so does one from the node itself, which has no lease."""
    with plant(tmp_path) as store:
        registered(store)
        done(store.consumers.hold_lease(NAME, LeaseClaim("one", 0)))
        assert done(store.consumers.confirm(NAME, 2, shown=LeaseClaim("one", 1))) == 2
        taking = store.consumers.hold_lease(NAME, LeaseClaim("two", 0))
        confirming = store.consumers.confirm(NAME, 8, shown=LeaseClaim("one", 1))
        assert done(taking) == Lease(2, "two")
        error = failed(confirming)
        assert isinstance(error, ConsumerFenced)
        assert "lease 2 in force, 1 was shown" in str(error)
        assert done(store.consumers.confirm(NAME, 3, shown=LeaseClaim("two", 2))) == 3
        assert isinstance(failed(store.consumers.confirm(NAME, 9, shown=LeaseClaim("foreign"))), ConsumerFenced)
        assert done(store.consumers.confirm(NAME, 4)) == 4


def test_a_confirmation_may_bring_the_lease(tmp_path: Path) -> None:
    """A store that does not have the lease, because it is new or was restored, accepts it with its epoch."""
    with plant(tmp_path) as store:
        registered(store)
        assert done(store.consumers.confirm(NAME, 5, shown=LeaseClaim("one", 7))) == 5
    with plant(tmp_path) as store:
        assert lease(store) == Lease(7, "one")


def test_invalid_leases_are_refused(tmp_path: Path) -> None:
    """Numbers that are no epoch and unknown consumers are refused by name."""
    with plant(tmp_path) as store:
        assert isinstance(failed(store.consumers.hold_lease(NAME, LeaseClaim("one", 0))), UnknownConsumer)
        for epoch in (-1, LEASE_EPOCH_MAX + 1):
            with pytest.raises(ValueError, match="a lease has an epoch of 0 to"):
                store.consumers.hold_lease(NAME, LeaseClaim("one", epoch))
