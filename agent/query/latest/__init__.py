"""The last known value of every tag: searched from the newest source time backwards, and returned as rows."""

from agent.query.latest.latest_query import (
    DEPTH_FACTS,
    FRESH_MS,
    AbsentTags,
    find_latest,
    find_latest_in_stream,
    streams_with,
    tags_matching,
)
from agent.query.latest.latest_rows import (
    AgedRecord,
    LatestRecord,
    LatestSummary,
    TagsInForce,
    aged_record,
    latest_record,
    merge_peer_records,
    summarize,
)
from agent.query.latest.latest_search import LatestKey
