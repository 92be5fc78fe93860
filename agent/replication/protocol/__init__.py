"""The protocol as values, without IO: what two nodes send each other, and what replication needs of a store.

Import from the module that is named after the subject.
"""
