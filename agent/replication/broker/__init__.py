"""The MQTT broker (Mosquitto): generates its configuration, checks and reloads it, tests the connection to a peer."""

from agent.replication.broker.check import check_broker
from agent.replication.broker.check_session import BrokerTarget
from agent.replication.broker.config import (
    CONFIG_NAME,
    PORT,
    USER,
    BrokerPlan,
    PeerLink,
    TopologyError,
    nodes_of,
    parse_link,
)
from agent.replication.broker.diagnosis import CheckOutcome, Diagnostic
from agent.replication.broker.folder import BrokerFolder, deny_nodes, find_plugin, write_broker
from agent.replication.broker.peer_test import Peer, check_peer
from agent.replication.broker.reload import check_broker_files, config_files, end_broker, find_brokers, reload_broker
from agent.replication.broker.zone_loads import UNKNOWN, abuses, received_bytes, zone_loads, zones_by_address
