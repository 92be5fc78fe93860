"""One comparison of a stream with a peer: `differences` finds what differs, `repair` fetches it, `peer_log` asks."""
