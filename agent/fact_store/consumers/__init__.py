"""Consumers: registered, leased, confirming, active, expired; and the appends that wait for their confirmations."""

from agent.fact_store.consumers.ack_waiters import NEVER_NS, Acknowledging
from agent.fact_store.consumers.activity import Presence
from agent.fact_store.consumers.consumers import (
    Start,
    begin_handing,
    confirm_offsets,
    happen,
    hold_lease,
    register,
    remember,
    remove,
)
from agent.fact_store.consumers.expiry import Lifetimes

__all__ = [
    "NEVER_NS",
    "Acknowledging",
    "Lifetimes",
    "Presence",
    "Start",
    "begin_handing",
    "confirm_offsets",
    "happen",
    "hold_lease",
    "register",
    "remember",
    "remove",
]
