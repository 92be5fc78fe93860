"""`bsfg opcua`: try a server, browse it, read from it, and keep the certificates that its sources trust.

The commands connect as a source with the same settings would: signed and encrypted unless `--insecure` is given, and
to a server whose certificate is trusted. URL is `opc.tcp://host:4840/path`, or the name of a source of node.toml, whose
settings are then used. None of the commands needs a node.toml.
"""

SECTION_BEGINS = "# for node.toml; paths count from its folder\n"
SECTION_ENDS = "\nnext: "
PINNED = "to try again without the question: --server-sha256 "
