"""OPC UA: one server, one session, its items in several subscriptions, rebuilt whole after any loss of the session.

Cores: `address` reads node ids from the tag map, `plan` cuts work to the server's limits, `groups` spreads items over
subscriptions, `monitoring` sizes queues, `publishing` orders notifications, `liveness` judges signs of life, `decode`
turns bytes into values. `publisher` and `subscription` drive a session; `source` puts them together, and `poll_source`
does without subscriptions. `security/` keeps certificates and makes secured connections, `explore/` looks at a server
before it is a source. `session`, `variant` and these two folders speak to asyncua, and only they.
"""
