-- A store may go on under a new epoch: because its owner or a peer found that it was restored from an old copy.

ALTER TABLE store ADD COLUMN new_epoch_because TEXT;

ALTER TABLE store ADD COLUMN peer_epoch_unix_ms INTEGER NOT NULL DEFAULT 0;
