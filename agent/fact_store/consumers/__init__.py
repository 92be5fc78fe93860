"""Consumers of streams: how they register, hold a lease, confirm, are seen, expire and are removed."""

from agent.fact_store.consumers.activity import ConsumerActivity, ConsumerExpiry
from agent.fact_store.consumers.consumers import (
    apply_events,
    confirm_offsets,
    hold_lease,
    register_consumer,
    remove_consumer,
    save_last_seen,
    unregister_consumer,
)
