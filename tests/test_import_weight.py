"""What a program loads: settings without the parts that they control, requests without the store, a node without the
libraries of sources that it does not have. Asserted on the modules that a fresh interpreter holds, never on times."""

import subprocess
import sys
from pathlib import Path

import pytest

PROTOCOLS = ("asyncua", "pymodbus")
OTHERS = ("pyspark", "pyarrow", "pandas", "apsw", "sqlite_utils")
LIBRARIES = (*PROTOCOLS, *OTHERS, "paho", "cryptography", "prometheus_client", "watchdog", "sqlite3")
PARTS = ("agent.fact_store", "agent.ingest", "agent.replication", "agent.health", "agent.query", "agent.node")
MACHINERY = (
    *("agent.fact_store", "agent.ingest", "agent.query", "agent.node", "agent.demo", "bench"),
    *("agent.local_socket.serving", "agent.replication.mqtt", "agent.replication.pki", "agent.replication.serving"),
    "agent.replication.pulling",
)

LIGHT_COMMANDS = (
    "agent.cli.health.status, agent.cli.facts.append, agent.cli.consumer, agent.cli.run"  # `reload` is in run
)

LOADS_NONE_OF = [
    ("agent.config", (*LIBRARIES, *PARTS, "asyncio", "zstandard")),
    (
        LIGHT_COMMANDS,
        (*LIBRARIES, *MACHINERY, "agent.health.snapshot"),
    ),  # and agent.local_socket, for applications on the gateway
    ("agent.cli.facts.latest", (*PROTOCOLS, *OTHERS, "paho", "agent.node", "agent.ingest")),
    ("agent.node", (*PROTOCOLS, *OTHERS)),
]


@pytest.mark.parametrize("modules, unwanted", LOADS_NONE_OF, ids=["config", "light commands", "latest", "node"])
def test_a_program_loads_what_it_uses(modules: str, unwanted: tuple[str, ...], tmp_path: Path) -> None:
    """No program loads a library that it does not use: asyncua and pymodbus take 30 MB and half a second, the fact
    store and its imports 20 MB."""
    program = f"import sys, {modules}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = set(done.stdout.split())
    assert loaded.issuperset(modules.split(", "))
    assert sorted(loaded.intersection(unwanted)) == []


def test_a_new_store_loads_no_library_of_analysts(tmp_path: Path) -> None:
    """sqlite-utils takes 70 MB of pandas and numpy where Spark's extra is installed. They can be imported
    afterwards."""
    program = (
        "import sys, pathlib, agent.fact_store as f; f.FactStore.open(pathlib.Path('facts.db'), 'plant').close();"
        "print('sqlite_utils' in sys.modules, *{'numpy', 'pandas'} & sys.modules.keys()); import numpy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["True"]
