"""Appends: the queue, the group commit, own facts, admission of messages, tag definitions, pages of peers, and acks."""

from agent.fact_store.append.ack_waiters import AckWaiters
from agent.fact_store.append.acks import Follower, ack_terms, is_in_sync
from agent.fact_store.append.admission import check_precondition
from agent.fact_store.append.append import (
    append_checkpoint,
    append_messages,
    append_notice,
    append_samples,
    content_digest,
    message_key,
)
from agent.fact_store.append.checkpoint import Checkpoint, checkpoints_in
from agent.fact_store.append.definitions import define, store_definitions
from agent.fact_store.append.group_commit import CommitPace
from agent.fact_store.append.message_plan import acquire_lease, acquire_lease_after
from agent.fact_store.append.queue import AppendMessages, AppendSamples, Call, CommitGroup, Work, WriteQueue
from agent.fact_store.append.receive import store_page
