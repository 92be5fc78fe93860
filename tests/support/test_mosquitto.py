"""The broker that tests and demo start: it can be frozen and killed, returns on its port, and ends with its starter."""

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replication.broker.zones import (
    LIMIT_S,
    NOBODY_LISTENS,
    Zones,
)
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import wait_until


@pytest.mark.system
def test_a_broker_can_be_frozen_killed_and_restarted(tmp_path: Path) -> None:
    """Frozen, it is silent and keeps its connections; killed and restarted, it returns on the same port; at the end it
    is gone."""
    with Mosquitto.started(tmp_path) as broker, contextlib.ExitStack() as stack:
        port, first = broker.port, broker.pid
        zones = Zones(broker, stack)
        idmz = zones["idmz"]
        broker.freeze()
        wait_until(lambda: _state(first) == "T", "it is frozen")
        broker.thaw()
        assert idmz.publish("bsfg/1/plant-a/idmz/req") == NOBODY_LISTENS
        stack.close()
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            _connect(port)
        broker.restart()
        assert broker.port == port
        assert broker.pid != first
        _connect(port)
        broker.freeze()  # leaving the block must get rid of a frozen one too
        last = broker.pid
    assert not Path(f"/proc/{last}").exists()
    assert "terminating" not in broker.log.read_text()  # killed each time, never asked


@pytest.mark.system
def test_no_broker_outlives_its_starter(tmp_path: Path) -> None:
    """If the process that started a broker is killed, the broker ends too."""
    script = (
        "import sys, pathlib; from tests.support.mosquitto import Mosquitto\n"
        "with Mosquitto.started(pathlib.Path(sys.argv[1])) as broker:\n"
        "    print(broker.pid, flush=True); sys.stdin.read()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPOSITORY
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _state(pid) == "Z", "the broker is gone")


_REPOSITORY = Path(__file__).resolve().parents[2]


def _connect(port: int) -> None:
    socket.create_connection((HOST, port), LIMIT_S).close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
