"""Last known values asked of another node: page after page, as rows like those of our own store.

A module of its own, imported when somebody asks a peer, so that our own values need not wait for what speaks MQTT to load.
"""

from __future__ import annotations

import re

from agent.cli.ask_peer import ask_peer
from agent.config import NodeSettings
from agent.node.peer_latest_cache import row_of
from agent.query.latest import LatestRecord
from agent.query.scan import matches_glob
from agent.replication.protocol import GetLatest, LatestAnswer


def ask_latest(
    settings: NodeSettings, peer: str, stream: str, tag_glob: str, fresh_ms: int, answer_s: float
) -> list[LatestRecord]:
    """Every value that the node of `peer` knows of tags that match."""
    rows, after = list[LatestRecord](), None
    while True:
        request = GetLatest(stream=stream, prefix=literal_prefix(tag_glob), after=after, fresh_ms=fresh_ms)
        answer = ask_peer(settings, peer, request, LatestAnswer, answer_s)
        rows += [row_of(each, stream) for each in answer.values if matches_glob(each.subject, [tag_glob])]
        if not answer.more:
            return rows
        after = answer.last_after(after)


def literal_prefix(tag_glob: str) -> str:
    """What every subject that matches begins with, as far as the pattern has no * ? or [ in it; its `tag:` may be left out."""
    (literal,) = re.findall(r"\A[^*?\[]*", tag_glob)
    if not literal or "tag:".startswith(literal):
        return ""
    return literal if literal.startswith("tag:") else f"tag:{literal}"
