-- Whether a stream began, at this mark, to take in what a peer had kept for it: history, which says nothing of the pace at which facts
-- come in.
ALTER TABLE mark ADD COLUMN is_backlog INTEGER NOT NULL DEFAULT 0 CHECK (is_backlog IN (0, 1));
