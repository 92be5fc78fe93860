"""Commands on facts: append, fetch, confirm, tail, latest, sql, and artifacts; on this node or asked of a peer."""
