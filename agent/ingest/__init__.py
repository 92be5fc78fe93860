"""Ingest: from the wire to the store's door.

Each configured source (an OPC UA server, a Modbus device) is supervised on its own: it connects, delivers samples, is lost,
is rebuilt. What the tags of a source are comes from its tag map; which samples become facts is decided by sampling rules;
both are cores that know nothing of sockets. Samples leave through a port and nothing here knows what stands behind it.

This package promises that nothing is dropped without a fact that says so. It will not write to a device, ever.
"""
