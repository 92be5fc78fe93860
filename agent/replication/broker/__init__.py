"""The MQTT brokers (Mosquitto): generates their configurations, checks and reloads them, tests the connection to a
peer."""

from agent.replication.broker.check import check_broker
from agent.replication.broker.config import (
    CONFIG_NAME,
    PORT,
    USER,
    BrokerPlan,
    PeerLink,
    TopologyError,
    parse_link,
    rights_of,
)
from agent.replication.broker.diagnosis import Diagnostic, Outcome
from agent.replication.broker.folder import BrokerFolder, read_site_file, write_broker_folder, write_site
from agent.replication.broker.peer_test import Peer, check_peer
from agent.replication.broker.reload import check_broker_files, check_program, config_files, deny_zones, reload_broker
from agent.replication.broker.session import BrokerTarget
from agent.replication.broker.site import BrokerSite, Process, changes, parse_sources, with_link, without_link
