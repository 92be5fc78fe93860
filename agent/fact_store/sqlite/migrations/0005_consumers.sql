-- When a consumer was last seen, for people: written with its confirmations, when its state changes, and at an orderly close.
ALTER TABLE consumer ADD COLUMN seen_unix_ms INTEGER;
