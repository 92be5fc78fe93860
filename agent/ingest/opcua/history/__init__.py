"""History: fills the gaps of an OPC UA source from what the server has recorded.

gap_fill        which values of which tags to read next, and which of those read are missing here (core)
history_read    one HistoryRead call, its answer decoded at the full resolution of the source time
backfill        the task that fills gaps beside the live values
"""
