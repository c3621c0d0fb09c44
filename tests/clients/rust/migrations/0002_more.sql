ALTER TABLE accounts ADD COLUMN opened DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
CREATE INDEX transfers_source ON transfers (source);
INSERT INTO accounts (owner, cents) VALUES ('first', 1000), ('second', 1000);
