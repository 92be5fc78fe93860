"""History: fills the gaps of an OPC UA source from what the server has recorded.

`gap_fill` is the core: which values of which tags to read next, and which of those read are missing here.
`history_read` is one HistoryRead call, its answer decoded at the full resolution of the source time. `backfill` is the
task that fills gaps alongside the live values.
"""

from agent.ingest.opcua.history.backfill import HistoryBackfill
from agent.ingest.opcua.history.gap_fill import HistoryPage, HistoryRange
from agent.ingest.opcua.history.history_read import decode_history, history_request

__all__ = ["HistoryBackfill", "HistoryPage", "HistoryRange", "decode_history", "history_request"]
