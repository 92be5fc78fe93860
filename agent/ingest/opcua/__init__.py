"""OPC UA: one server, one session, its items in several subscriptions, rebuilt whole after any loss of the session.

Cores: `address` reads node ids from the tag map, `plan` cuts work to the server's limits, `groups` spreads items over
subscriptions, `monitoring` sizes queues, `publishing` orders notifications, `liveness` judges signs of life, `decode`
turns bytes into values. `publisher` and `subscription` drive a session; `source` puts them together, and `poll_source`
does without subscriptions. `security/` keeps certificates and makes secured connections, `explore/` looks at a server
before it is a source. `values` reads what is no plain number, `history` fills gaps, `events` records events and
conditions. `session`, `values/type_reader`, `history/history_read`, `events`, `security` and `explore` speak to
asyncua, and only they.
"""
