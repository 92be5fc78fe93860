"""Consumers of streams: registration, leases, confirmations, activity, expiry; and the appends that wait for
confirmations."""

from agent.fact_store.consumers.ack_waiters import AckWaiters
from agent.fact_store.consumers.activity import ConsumerActivity
from agent.fact_store.consumers.consumers import (
    Start,
    apply_events,
    confirm_offsets,
    hold_lease,
    register_consumer,
    remove_consumer,
    save_last_seen,
)
from agent.fact_store.consumers.expiry import ConsumerExpiry

__all__ = [
    "AckWaiters",
    "ConsumerActivity",
    "ConsumerExpiry",
    "Start",
    "apply_events",
    "confirm_offsets",
    "hold_lease",
    "register_consumer",
    "remove_consumer",
    "save_last_seen",
]
