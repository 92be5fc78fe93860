-- Whether a peer has ever gone on under another epoch: then its log was an old copy's, perhaps, and with it what it relays.
ALTER TABLE peer_position ADD COLUMN has_restarted INTEGER NOT NULL DEFAULT 0;
