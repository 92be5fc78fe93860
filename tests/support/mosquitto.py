"""The real broker for tests: the product's own private Mosquitto, under the name the tests use."""

import os
import signal

from agent.demo.mosquitto import HOST, Mosquitto
from agent.demo.processes import ProcessFailed, free_port

__all__ = ["HOST", "Mosquitto", "ProcessFailed", "free_port", "reload"]


def reload(broker: Mosquitto) -> None:
    """Make the broker read certificates, lists and access rules again; returns when it says it has."""
    before = broker.log_text().count("Reloading config.")
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_ready(lambda: broker.log_text().count("Reloading config.") > before)
