"""Commands on facts and artifacts: append, lease, fetch, confirm, tail, latest, sql, object; `peer_requests` asks
another node."""
