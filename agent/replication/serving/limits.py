"""What one peer may take of a serving node, besides its limits in the settings (`agent.settings.peers`). A core.

Every limit is for one zone, so that no zone's requests are refused or delayed because of another's.
"""

from __future__ import annotations

CHANGES_PER_SECOND_MAX = 20
"""Consumers registered and removed, and leases taken, by one zone: each is a commit that brings no fact, 31,000 bytes
to a flash disk (docs/operate/flash.md). A node does so once for each stream when it starts."""
CONFIRM_COMMITS_PER_SECOND = 100
"""Commits that are made at once because a zone waits for a confirmation; the confirmations of the zone beyond wait some
milliseconds and share one. A node hardly needs any: its confirmations come with fetches, and go with other commits."""
REQUESTS_OPEN_MAX = 64
"""Open requests of one zone, parked and waiting ones included; further ones are dropped and sent again by the peer."""
STARTS_MAX = 4
"""Requests of one zone that begin in one turn of the event loop; another zone's request waits for no more of them."""
READS_MAX, READS_OF_ZONE_MAX = 3, 2
"""Pages, artifacts and digests being read at once, in all and for one zone: another zone always finds a place soon."""
SHARED_MS = 1_000
"""While another zone has asked within this time, a zone has one place instead of `READS_OF_ZONE_MAX`: what is read for
it in one thread takes Python's global lock from the event loop half as often as in two."""
UNSENT_BYTES_MAX = 1024 * 1024
"""Answers of one zone that wait to be sent. Nothing more is read for the zone while there are so many."""
UNSENT_OF_LINK_BYTES_MAX = 16 * 1024 * 1024
"""The same of all zones at one broker. A zone of which no answer waits is served all the same, so that the answers that
others do not read cannot shut it out."""
UNREAD_BYTES_MAX, UNREAD_OF_LINK_BYTES_MAX = 4 * UNSENT_BYTES_MAX, 2 * UNSENT_OF_LINK_BYTES_MAX
"""From so many bytes on requests of the zone are dropped, and the peer asks again. Pages stay below both; small answers
of a zone or broker that takes none do not, and would fill the memory."""
READ_MS_PER_SECOND = 250
"""Time of a processor that reading may take for a zone in each second, while another zone has asked within SHARED_MS: a
hundred pages of 1 MiB in batches of 10 kB, or twenty thousand batches of one fact."""
SEARCH_MS_PER_SECOND = 250
"""Searching for latest values opens batches, and takes a core while it runs. A zone gets a quarter of one, on
average."""
SEARCHES_WAITING_MAX = 4
"""Searches of one zone that wait; further ones are refused as busy."""
