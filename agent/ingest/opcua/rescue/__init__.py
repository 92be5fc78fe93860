"""Rescues what the subscriptions of a lost session still hold. `rescue` takes them over into the new session; `seam`, a
core, decides which values of theirs are recorded beside those of the new subscriptions."""

from agent.ingest.opcua.rescue.rescue import Old, Rescue
from agent.ingest.opcua.rescue.seam import Seam

__all__ = ["Old", "Rescue", "Seam"]
