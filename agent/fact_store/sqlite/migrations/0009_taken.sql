-- Which batch was the last taken of a peer's log: where it ends there, and its digest. Shown to the peer, so that one that was restored
-- from an old copy and has grown since finds out.
ALTER TABLE peer_position ADD COLUMN taken_offset INTEGER NOT NULL DEFAULT 0 CHECK (taken_offset >= 0);
ALTER TABLE peer_position ADD COLUMN taken_digest BLOB NOT NULL DEFAULT x'';
