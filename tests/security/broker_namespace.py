"""Runs inside a network namespace of its own (unshare -rn), where the packet filter can be loaded: a broker behind the
example's rules is attacked over a cable (veth) from a second namespace, from several addresses, and what was admitted
is printed as JSON.

    python -m tests.security.broker_namespace FOLDER [no-rules]

Over the loopback the kernel counts differently: there a connection is confirmed before the rules see it.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from agent.replication import pki
from agent.replication.broker.config import CERT_NAME, KEY_NAME
from tests.security.broker_attacker import Attacker, is_open
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until

RULES = Path(__file__).parents[2] / "systemd/examples/bsfg-broker.nft"

BROKER = "10.77.0.1"
ATTACKERS = [f"10.77.0.{number}" for number in range(2, 12)]
HONEST, OUTSIDE = "10.77.0.100", "10.77.1.1"
SOURCES = "10.77.0.0/24"


def run(*words: object) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@contextlib.contextmanager
def second_namespace():  # noqa: ANN201
    """Another network namespace with all foreign addresses, at the other end of a cable, and the process that keeps
    it."""
    run("ip", "link", "set", "lo", "up")
    holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != own, "the namespace is made")
        inside = ("nsenter", "-t", holder.pid, "-n")
        run("ip", "link", "add", "broker", "type", "veth", "peer", "name", "zones", "netns", holder.pid)
        run("ip", "address", "add", f"{BROKER}/23", "dev", "broker")
        run("ip", "link", "set", "broker", "up")
        for address in (*ATTACKERS, HONEST, OUTSIDE):
            run(*inside, "ip", "address", "add", f"{address}/23", "dev", "zones")
        run(*inside, "ip", "link", "set", "zones", "up")
        yield inside
    finally:
        holder.kill()
        holder.wait()


class Attack:
    """Attacks on the broker from the second namespace."""

    def __init__(self, folder: Path, port: int, pid: int) -> None:
        self.folder, self.port, self.pid = folder, port, pid
        self._files = self._open_files()

    def _open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def open(self, source: str, count: int, timeout_s: float = 0.5) -> list[socket.socket]:
        """Open connections from `source`: as many of `count` as are accepted. Stops at the third refusal in a row. The
        kernel looks for closed connections once a clock tick and forgets a few at a time, so one may be refused
        although there is room; as a node does, this waits before it tries again."""
        found: list[socket.socket] = []
        refused = 0
        for _ in range(count):
            try:
                found.append(socket.create_connection((BROKER, self.port), timeout_s, source_address=(source, 0)))
                refused = 0
            except OSError:
                refused += 1
                if refused == 3:
                    break
                threading.Event().wait(0.05)
        return found

    def close(self, sockets: list[socket.socket]) -> None:
        """Close them and wait until the broker has closed them too."""
        for connection in sockets:
            connection.close()
        wait_until(lambda: self._open_files() <= self._files, "the broker has closed its side")

    def honest_enters(self) -> bool:
        """Whether a zone connects from an address without another connection."""
        site = self.folder / "site/pki"
        context = pki.client_context(site / "ca.pem", site / "zones/idmz.pem", site / "zones/idmz.key")
        with contextlib.suppress(OSError):
            Attacker(BROKER, self.port, context, source=HONEST).close()
            return True
        return False

    def run(self) -> dict[str, object]:
        """The attacks, one after the other."""
        outside = self.open(OUTSIDE, 3)
        found: dict[str, object] = {"outside": _standing(outside)}
        self.close(outside)
        # One address without a certificate, 64 silent sockets.
        bare = self.open(ATTACKERS[0], 64)
        found |= {"one address": _standing(bare), "honest beside one address": self.honest_enters()}
        self.close(bare)
        return found | {"tries of one address": self.tries(100), "honest at the end": self.honest_enters()}

    def tries(self, most: int) -> int:
        """How many connections one address opens and closes before one is dropped, which, unlike a refused one, gets no
        answer."""
        for number in range(most):
            try:
                self.close([socket.create_connection((BROKER, self.port), 0.5, source_address=(ATTACKERS[-1], 0))])
            except TimeoutError:
                return number
            except ConnectionRefusedError:
                continue
        return most


def _standing(sockets: list[socket.socket]) -> int:
    """How many connections the broker has kept open."""
    return sum(is_open(connection) for connection in sockets)


def main(folder: Path, options: list[str]) -> None:
    """Start the broker and run the attack from the second namespace."""
    if options[:1] == ["attack"]:
        print(json.dumps(Attack(folder, int(options[1]), int(options[2])).run()))
        return
    zones, links = ("plant-a", "idmz"), ("plant-a:idmz",)
    with second_namespace() as inside, Mosquitto.started(folder / "site", zones, links) as broker:
        _listen_everywhere(broker)
        if "no-rules" not in options:
            rules = RULES.read_text("utf-8").replace("broker_port = 8883", f"broker_port = {broker.port}")
            (folder / "rules.nft").write_text(rules.replace("0.0.0.0/0", SOURCES), "utf-8")
            for _ in range(2):  # loading it again replaces the rules
                run("nft", "-f", folder / "rules.nft")
        print(run(*inside, sys.executable, "-m", __spec__.name, folder, "attack", broker.port, broker.pid), end="")


def _listen_everywhere(broker: Mosquitto) -> None:
    """Let the broker listen on every address, with a certificate for the one of the cable."""
    issued = pki.issue_broker(broker.pki_folder, "cable", [BROKER, broker.host], datetime.now(UTC))
    shutil.copy(issued.cert_file, broker.files.folder / CERT_NAME)
    shutil.copy(issued.key_file, broker.files.folder / KEY_NAME)
    text = broker.files.config_file.read_text("utf-8")
    broker.files.config_file.write_text(
        text.replace(f"listener {broker.port} {broker.host}", f"listener {broker.port}")
    )
    broker.restart()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
