"""The pulling side: one stream of one peer brought into the store, its artifacts, and the comparison of both stores."""

from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings
from agent.replication.pulling.comparing.comparison import Comparison
from agent.replication.pulling.latest_seed import LatestSeed
from agent.replication.pulling.message_judge import MessageJudge, TrustPolicy
from agent.replication.pulling.page_judge import EvidenceFolder, PageJudge
from agent.replication.pulling.pull_runner import PullSettings
from agent.replication.pulling.puller import Puller, PullStatistics
from agent.replication.pulling.receiving.pull_events import SPREAD_MS, SPREAD_OF_PULL_MS, Asking, ReceiverSettings
from agent.replication.pulling.throttled_requester import ThrottledRequester
