"""Replication: facts travel between zones because the receiver asks for them, page by page.

The package has two cores that touch nothing (`sender`, `receiver`), the words they exchange (`protocol`, `topics`,
`errors`), and shells that do the work they ask for (`server`, `puller`, `transport`).  It knows the batch format and
stores through the ports in `ports`; it does not know SQLite, and it never opens a batch it merely carries.
"""
