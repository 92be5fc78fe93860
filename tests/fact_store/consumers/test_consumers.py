"""Consumers in the store: registered, confirming, removed, and the same after a restart."""

from pathlib import Path

import pytest

from agent.fact_store.core.errors import (
    ConsumerNotYours,
    ConsumerStreamMismatch,
    UnknownConsumer,
)
from agent.fact_store.core.frontier import Confirmed
from agent.fact_store.core.lifecycle import Lifecycle
from agent.lease import LeaseClaim
from agent.message import MessageError
from tests.fact_store.making import OPERATIONAL, TELEMETRY, done, failed, plant, samples
from tests.support.relay_store import FRONTIERS, opened, relay_store

NAME = "idmz.facts.telemetry"


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
