"""Transports: facts are read from a store's file on this host, or from a node over MQTT. Each is a `Place`; its
`opened` gives a `FactSource`."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_bsfg.options import Options
from pyspark_bsfg.transports.ports import Asked, Bounds, FactSource, OnHole, Page, Place
from pyspark_bsfg.transports.reading import HoleLog, extent, record_batches
from pyspark_bsfg.transports.store_file import StoreFile, files

__all__ = [
    "Asked",
    "Bounds",
    "FactSource",
    "HoleLog",
    "OnHole",
    "Page",
    "Place",
    "StoreFile",
    "extent",
    "places",
    "record_batches",
]


def places(options: Options) -> Sequence[Place]:
    """The stores that some options name, at least one. Raises StoreUnreadable for a pattern without a file."""
    if not options.nodes:
        return files(options.paths)
    from pyspark_bsfg.transports.mqtt_node import MqttNode  # loads cryptography and paho, which a file does not need

    return [MqttNode(node) for node in options.nodes]
