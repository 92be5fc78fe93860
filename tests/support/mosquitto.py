"""The real broker for tests: the product's own private Mosquitto, under the name the tests use."""

from agent.demo.mosquitto import HOST, Identity, Mosquitto
from agent.demo.processes import ProcessFailed, free_port

__all__ = ["HOST", "Identity", "Mosquitto", "ProcessFailed", "free_port"]
