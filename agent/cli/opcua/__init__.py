"""`bsfg opcua`: test a server, browse it, read from it, and manage the certificates that sources trust.

The commands connect as a source with the same settings would: signed and encrypted unless `--insecure` is given, and
to a server whose certificate is trusted. URL is `opc.tcp://host:4840/path`, or the name of a source of node.toml, whose
settings are then used. Only `backfill` needs a node.toml.
"""

SECTION_BEGINS = "# for node.toml; paths count from its folder\n"
SECTION_ENDS = "\nnext: "
PINNED = "to try again without the question: --server-sha256 "
