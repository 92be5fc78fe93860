"""Read-only access to a store from any process: pages, batch summaries, an origin's history, free space and
forecasts."""

from agent.fact_store.read.forecast import ConsumerSpace, StoreSpace
from agent.fact_store.read.proofs import Verified
from agent.fact_store.read.reader import INCIDENTS_MAX, StoreReader, open_copy
from agent.fact_store.read.space import bytes_up_to
