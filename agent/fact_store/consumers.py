"""Consumers in the store: registered, confirming, removed. What a confirmation means is decided in frontier.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from agent.fact_store.catalog import Catalog
from agent.fact_store.errors import ConsumerNotYours, ConsumerStreamMismatch, UnknownConsumer
from agent.fact_store.frontier import Confirmed, confirm
from agent.fact_store.lifecycle import Event, Lifecycle, step
from agent.fact_store.records import ConsumerState
from agent.fact_store.transaction import Transaction

Start = Literal["oldest", "end"]


def register(transaction: Transaction, name: str, zone: str, stream: str, start: Start) -> ConsumerState:
    """The consumer of this name, registered if need be. Raises ConsumerNotYours, ConsumerStreamMismatch."""
    if (known := transaction.catalog.consumers.get(name)) is not None:
        if known.zone != zone:
            raise ConsumerNotYours(f"consumer {name!r} was registered by zone {known.zone!r}, not {zone!r}")
        if known.stream != stream:
            raise ConsumerStreamMismatch(f"consumer {name!r} reads stream {known.stream!r}, not {stream!r}")
        return known
    state = transaction.stream(stream)
    start_offset = state.end_offset if start == "end" else state.released_offset
    return transaction.add_consumer(
        ConsumerState(0, name, zone, stream, Lifecycle.NEW, start_offset, Confirmed(start_offset))
    )


def confirm_offsets(transaction: Transaction, name: str, first_offset: int | None, last_offset: int) -> int:
    """The frontier after a confirmation. Raises UnknownConsumer, ConfirmRefused, ConfirmBeyondLog."""
    consumer = find(transaction.catalog, name)
    end_offset = transaction.catalog.streams[consumer.stream].end_offset
    confirmed = confirm(consumer.confirmed, first_offset, last_offset, end_offset)
    lifecycle = step(consumer.lifecycle, Event.SEEN)
    if (confirmed, lifecycle) != (consumer.confirmed, consumer.lifecycle):
        transaction.set_consumer(replace(consumer, confirmed=confirmed, lifecycle=lifecycle))
    return confirmed.frontier


def remove(transaction: Transaction, name: str) -> None:
    """Forget a consumer, so that what it held back may go. Raises UnknownConsumer."""
    consumer = find(transaction.catalog, name)
    state = consumer.lifecycle
    if state is Lifecycle.ONLINE:  # whoever removes it says that it is gone
        state = step(state, Event.LOST)
    state = step(step(state, Event.REMOVE), Event.REMOVED)
    assert state is Lifecycle.DELETED
    transaction.remove_consumer(consumer)


def find(catalog: Catalog, name: str) -> ConsumerState:
    """The consumer of this name; raises UnknownConsumer."""
    if (known := catalog.consumers.get(name)) is None:
        raise UnknownConsumer(f"no consumer {name!r}")
    return known
