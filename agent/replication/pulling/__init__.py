"""The pulling side: one stream of one peer brought into the store, its artifacts, and the comparison of both stores."""

from agent.replication.pulling.anti_entropy import Comparer, CompareSettings, Comparison
from agent.replication.pulling.latest_seed import LatestSeed
from agent.replication.pulling.puller import Puller, PullSettings, PullStatistics
from agent.replication.pulling.throttled_requester import PayingAsker
from agent.replication.pulling.token_bucket import Bandwidth, Share

__all__ = [
    "Bandwidth",
    "CompareSettings",
    "Comparer",
    "Comparison",
    "LatestSeed",
    "PayingAsker",
    "PullSettings",
    "PullStatistics",
    "Puller",
    "Share",
]
