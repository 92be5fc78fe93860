"""Commands on facts and artifacts: append, lease, fetch, confirm, tail, latest, object; `peer_requests` asks
another node."""
