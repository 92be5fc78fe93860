"""What one peer may take of a serving node, besides its limits in the settings (`agent.settings.peers`). A core.

Every limit is for one node, so that no node's requests are refused or delayed because of another's.
"""

from __future__ import annotations

CHANGES_PER_SECOND_MAX = 20
"""Consumers that one node registers and removes, and leases that it takes. Each is a commit without a fact, 31,000
bytes on a flash disk (docs/operate/flash.md). A node needs one for each stream when it starts."""
CONFIRM_COMMITS_PER_SECOND = 100
"""Commits that are made at once because a node waits for a confirmation. Its further confirmations wait some
milliseconds and share a commit. A node hardly needs any: it confirms with its fetches, which share other commits."""
REQUESTS_OPEN_MAX = 64
"""Open requests of one node, parked and waiting ones included. Further ones are dropped, and the peer sends them
again."""
STARTS_MAX = 4
"""Requests of one node that begin in one turn of the event loop, which is how many another node's request waits for."""
READS_MAX, READS_OF_NODE_MAX = 3, 2
"""Pages, artifacts and digests being read at once: in all, and for one node, so that another node soon gets a place."""
SHARED_MS = 1_000
"""If another node has asked within this time, a node has one place instead of `READS_OF_NODE_MAX`: one thread takes
Python's global lock from the event loop half as often as two."""
UNSENT_BYTES_MAX = 1024 * 1024
"""Bytes of answers to one node that wait to be sent. Above this, nothing more is read for the node."""
UNSENT_OF_LINK_BYTES_MAX = 16 * 1024 * 1024
"""The same for all nodes at one broker. A node for which no answer waits is still served, so that nodes that do not
read their answers cannot shut it out."""
UNREAD_BYTES_MAX, UNREAD_OF_LINK_BYTES_MAX = 4 * UNSENT_BYTES_MAX, 2 * UNSENT_OF_LINK_BYTES_MAX
"""Above this, requests of the node are dropped, and the peer asks again. Pages stay below both limits, but small
answers that the node or broker does not read would fill the memory."""
READ_MS_PER_SECOND = 250
"""Processor time that reading for one node may take in each second, if another node has asked within SHARED_MS: a
hundred pages of 1 MiB in batches of 10 kB, or twenty thousand batches of one fact."""
SEARCH_MS_PER_SECOND = 250
"""A search for latest values opens batches and occupies a core while it runs. A node gets a quarter of a core, on
average."""
SEARCHES_WAITING_MAX = 4
"""Waiting searches of one node; further ones are refused as busy."""
