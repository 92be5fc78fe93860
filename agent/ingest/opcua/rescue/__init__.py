"""Recovers the values that the subscriptions of a lost session still hold. `rescue` takes them over into the new
session; `seam`, a core, decides which values of theirs are recorded beside those of the new subscriptions. `earlier`
closes the lost sessions, with every subscription that was not taken over."""

from agent.ingest.opcua.rescue.lost_sessions import LostSessions
from agent.ingest.opcua.rescue.rescue import Rescue, next_rescue

__all__ = ["LostSessions", "Rescue", "next_rescue"]
