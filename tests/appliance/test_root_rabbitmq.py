"""docs/operate/other-brokers.md, typed on Debian 13 with RabbitMQ in the place of Mosquitto, between two nodes."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo.processes import Child, free_port
from tests.appliance.gateway import KEPT
from tests.support import command
from tests.waiting import wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs/operate/other-brokers.md").read_text("utf-8")
START_S = 180
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/var/lib/rabbitmq", "LC_ALL": "C.UTF-8"}
STREAM = "facts.operational"


class Rabbit:
    """RabbitMQ of Debian 13 in a root of its own, with the page's files and a port of the test's."""

    def __init__(self, root: Path, pki: Path) -> None:
        self.root, self.port = root, free_port()
        etc = root / "etc/rabbitmq"
        for name, text in re.findall(r"^```\w+ /etc/rabbitmq/(\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
            (etc / name).write_text(text.replace("= 8883", f"= 127.0.0.1:{self.port}"))
        self._environment = ENVIRONMENT | {"ERL_EPMD_PORT": str(free_port())}  # beside another RabbitMQ of this machine
        numbers = f"NODE_PORT={free_port()}\nDIST_PORT={free_port()}\n"
        (etc / "rabbitmq-env.conf").write_text(f"NODENAME=bsfg{self.port}@localhost\n{numbers}")
        for file, name in (
            ("ca.pem", "ca.pem"),
            ("brokers/site.pem", "broker.pem"),
            ("brokers/site.key", "broker.key"),
        ):
            shutil.copy(pki / file, etc / name)
            (etc / name).chmod(0o644)
        shutil.copy("/etc/hosts", root / "etc/hosts")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait for its port."""
        log = (self.root.parent / "rabbitmq.log").open("ab")
        inside = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc", "chroot", self.root]
        with log:
            self._process = subprocess.Popen(
                [*inside, "/usr/sbin/rabbitmq-server"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        listening = f"0100007F:{self.port:04X} 00000000:0000 0A"
        wait_until(lambda: listening in Path("/proc/net/tcp").read_text("ascii"), "RabbitMQ listens", START_S)

    def kill(self) -> None:
        """End it, and all of its processes, as a power cut does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def type(self, line: str) -> None:
        """One of the page's commands."""
        words = ["chroot", str(self.root), *shlex.split(line)]
        done = subprocess.run(
            words, env=self._environment, capture_output=True, text=True, timeout=START_S, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[Rabbit]:
    """A running RabbitMQ for plant-a and idmz; skipped with the reason where there is none."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("a clean root needs root and mmdebstrap")
    base = KEPT / "roots" / "rabbitmq"
    if not base.exists():
        part = base.with_name("rabbitmq.part")
        shutil.rmtree(part, ignore_errors=True)
        made = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=rabbitmq-server", "trixie", part]
        subprocess.run([*made, "http://deb.debian.org/debian"], check=True)
        part.rename(base)
    command.bsfg(tmp_path, "pki", "ca", "--no-passphrase")
    command.bsfg(tmp_path, "pki", "issue", "plant-a", "idmz", "enterprise")
    command.bsfg(tmp_path, "pki", "issue", "--broker", "site", "--host", "localhost")
    root = tmp_path / "root"
    for name in ("root", "upper", "work"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={base},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    rabbit = Rabbit(root, tmp_path / "pki")
    try:
        rabbit.start()
        (block,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        for line in block.splitlines():
            rabbit.type(line.removeprefix("$ "))
        yield rabbit
    finally:
        rabbit.kill()
        subprocess.run(["umount", "--recursive", "--lazy", root], check=True)


@contextlib.contextmanager
def node(folder: Path, zone: str, port: int, peer: str) -> Iterator[Path]:
    """A node of this zone, at the broker; its file."""
    file = folder / zone / "node.toml"
    file.parent.mkdir()
    pki = folder / "pki"
    files = f'ca_file = "{pki}/ca.pem"\ncert_file = "{pki}/zones/{zone}.pem"\nkey_file = "{pki}/zones/{zone}.key"\n'
    broker = f'[[broker]]\nname = "b"\nhost = "localhost"\nport = {port}\n{files}'
    file.write_text(f'[node]\nzone = "{zone}"\n{broker}[[peer]]\nbroker = "b"\n{peer}\n')
    child = Child(zone, command.words("run", "--config", str(file)), file.with_name("log"))
    try:
        child.start()
        child.wait_ready(lambda: bool(command.bsfg(file.parent, "status", "--config", str(file), "--json").stdout))
        yield file
    finally:
        child.stop()


def append(file: Path, first: int, count: int) -> None:
    """So many messages of 60 kB."""
    for number in range(first, first + count):
        words = ("append", "--config", str(file), f"batch:B-{number}", "step_completed", f'{{"x": "{"y" * 60_000}"}}')
        assert command.bsfg(file.parent, *words).returncode == 0


def count_in(file: Path) -> str:
    """How many messages a node has."""
    counted = f"select count(*) || '/' || count(distinct message_id) from facts where stream = '{STREAM}' and kind = 'message'"
    words = ("sql", "--csv", "--config", str(file), f"{counted} and subject like 'batch:%'")
    return command.bsfg(file.parent, *words).stdout.split()[-1]


def test_rabbitmq_carries_facts_and_refuses_what_the_page_says(rabbit: Rabbit, tmp_path: Path) -> None:
    """The page as it stands: each right is enforced, pages of facts arrive, and after the broker was killed and
    started the rest arrives once."""
    exports, pulls = (f'{word} = ["{STREAM}"]' for word in ("exports", "pulls"))
    with (
        node(tmp_path, "plant-a", rabbit.port, f'zone = "idmz"\n{exports}') as plant,
        node(tmp_path, "idmz", rabbit.port, f'zone = "plant-a"\n{pulls}') as idmz,
    ):
        append(plant, 0, 30)
        wait_until(lambda: count_in(idmz) == "30/30", "facts over RabbitMQ", START_S)
        for zone in ("plant-a", "idmz"):
            words = ("--zone", zone, "--link", "plant-a:idmz", "--port", str(rabbit.port))
            checked = command.bsfg(tmp_path, "broker", "check", *words).stdout
            bad = [line for line in checked.splitlines() if line.startswith("bad")]
            assert bad == ["bad   the broker keeps retained messages"], checked
            assert checked.count(f"{zone} may not ") >= 4, checked
        rabbit.kill()
        append(plant, 30, 30)
        rabbit.start()
        wait_until(lambda: count_in(idmz) == "60/60", "the rest, once", START_S)
        rabbit.type("rabbitmqctl delete_user plant-a")
        refused = command.bsfg(tmp_path, "peer", "test", "idmz", "--config", str(plant))
        assert refused.returncode == 1, refused.stdout
