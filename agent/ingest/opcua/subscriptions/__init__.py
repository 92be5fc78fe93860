"""The subscriptions of one source and their items. `collection` has all of them, `subscription` one; `audit` finds
items that publish nothing. `plan`, `monitoring`, `liveness` and `losses` are cores."""
