"""The serving side of a node: which node may ask, in which order a request is served, and what goes into a page.

`server` takes requests from the broker; `operations` answers them; `admission` and `page` decide, without IO.
"""

from agent.replication.serving.admission import Caller, PeerRights
from agent.replication.serving.latest_page import LatestValues, LookUp, TagFilter, TagSortKey
from agent.replication.serving.operations import Consumers, Context, Turns, handlers
from agent.replication.serving.outcomes import Drop, Outcome, Refuse, Reply, StoreName, store_name_of
from agent.replication.serving.server import Server
