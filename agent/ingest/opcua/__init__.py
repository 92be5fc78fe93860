"""OPC UA: one server, one session, its items in several subscriptions, rebuilt whole after any loss of the session.

Cores: `address` reads node ids from the tag map, `plan` cuts work to the server's limits, `groups` spreads items over
subscriptions, `monitoring` sizes queues, `publishing` orders notifications, `liveness` judges signs of life, `decode`
turns bytes into columns, with `values/` for what is no plain number or text. `session`, `security`,
`values/type_reader` and `events/event_service` speak to asyncua, and only they; `publisher` and `subscription` drive a
session; `source` puts them together, and `poll_source` does without subscriptions.
"""
