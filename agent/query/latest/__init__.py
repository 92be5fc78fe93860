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
from agent.query.latest.latest_rows import LatestRecord, latest_record, merge_peer_records
from agent.query.latest.latest_search import Tag
from agent.query.latest.latest_summary import LatestSummary, summarize
from agent.query.latest.tag_age import AgedRecord, TagsInForce, aged_record
