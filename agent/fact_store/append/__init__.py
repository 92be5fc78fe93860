"""What enters the log: the queue, the group commit, own appends, messages admitted, definitions, pages of peers, acks."""

from agent.fact_store.append.acks import (
    Follower,
    Pending,
    Queued,
    Terms,
    falls_out_ns,
    is_in_sync,
    judge,
    judge_new,
    reached,
    terms,
)
from agent.fact_store.append.admission import check_precondition
from agent.fact_store.append.admitting import acquire_lease, acquire_lease_after
from agent.fact_store.append.append import (
    AppendMessages,
    AppendSamples,
    append_messages,
    append_notice,
    append_samples,
    content_digest,
    message_key,
)
from agent.fact_store.append.definitions import check_readable, define
from agent.fact_store.append.group_commit import Commit, Pace, Wait, decide_commit
from agent.fact_store.append.queue import Call, Group, Queue, Work
from agent.fact_store.append.receive import ReceivedPage, check_batches, put

__all__ = [
    "AppendMessages",
    "AppendSamples",
    "Call",
    "Commit",
    "Follower",
    "Group",
    "Pace",
    "Pending",
    "Queue",
    "Queued",
    "ReceivedPage",
    "Terms",
    "Wait",
    "Work",
    "acquire_lease",
    "acquire_lease_after",
    "append_messages",
    "append_notice",
    "append_samples",
    "check_batches",
    "check_precondition",
    "check_readable",
    "content_digest",
    "decide_commit",
    "define",
    "falls_out_ns",
    "is_in_sync",
    "judge",
    "judge_new",
    "message_key",
    "put",
    "reached",
    "terms",
]
