"""The protocol as values, without IO: what two nodes send each other, and what replication needs of a store.

Import from the module that is named after the subject:

    messages        every request and answer; limits of their fields
    codec           messages to bytes and back
    topics          MQTT topics, zone names
    errors          the table of error codes, the exception tree
    pacing          back-off between tries, lowest rate of a peer, size of a page
    ports           what serving and pulling need of a store
    pull_events     states, events and effects of the receiver
    page_check      checks of a received page
    digest_diff     how two stores differ, computed from digests
"""
