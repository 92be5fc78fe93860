-- Which of several instances that use a consumer's name may go on (agent/lease.py).
ALTER TABLE consumer ADD COLUMN lease_epoch INTEGER NOT NULL DEFAULT 0 CHECK (lease_epoch >= 0);

ALTER TABLE consumer ADD COLUMN lease_holder TEXT NOT NULL DEFAULT '';
