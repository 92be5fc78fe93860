"""`bsfg pki`: certificates of zones and brokers, and the keys that sign facts, a module for each kind of work."""
