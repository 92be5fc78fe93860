-- A store that has to go on under a new epoch seals anew what nobody can have seen: of each stream what lies behind this offset. Only then,
-- between the word that a new epoch is due and its beginning, may a batch be written over.
ALTER TABLE stream ADD COLUMN unseen_after INTEGER CHECK (unseen_after >= 0);

DROP TRIGGER batch_update_refused;

CREATE TRIGGER batch_update_refused BEFORE UPDATE ON batch
WHEN (SELECT new_epoch_because FROM store) IS NULL
BEGIN
    SELECT RAISE(ABORT, 'batch is append-only');
END;
