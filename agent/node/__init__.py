"""One node: its parts made from the settings, started and stopped in order; its status; its comparisons with peers;
latest values.

`node` puts the parts together, `status` takes the snapshot that health shows, `compare` makes and runs comparisons,
`latest` joins query and replication, `trust` reads whose signatures are trusted.
"""

from agent.node.compare import access_of, compare_alone, identity_of
from agent.node.latest import peer_latest, record_of
from agent.node.node import run_node
from agent.node.trust import command_judge, requests_signer
