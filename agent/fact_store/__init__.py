"""The fact store: an append-only log of sealed batches in one SQLite file, with cursors, durable before it answers.

See DESIGN.md beside this file. `FactStore` is for the process that owns the store, `StoreReader` for everybody else.
"""

from agent.fact_store.reader import StoreReader
from agent.fact_store.settings import StoreSettings, StreamSettings
from agent.fact_store.store import FactStore

__all__ = ["FactStore", "StoreReader", "StoreSettings", "StreamSettings"]
