"""Clean gateways: minimal Debian in a folder, without bsfg, with a network that has nothing but loopback.

`make_root` makes each root once (build/appliance); a test writes into an overlay above it. Commands run in it with
processes and network of its own; `boot` starts its systemd, as a container. Devices of a test may join the network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.packages import Target
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "appliance"
MAKE_ROOT = Path(__file__).resolve().parent / "make_root"
COMMAND_S = 300
BOOT_S = 120
PROGRAMS = ("mmdebstrap", "systemd-nspawn", "unshare", "nsenter", "dpkg-deb", "ip")


def why_not(target: Target) -> str:
    """Why no gateway of this kind can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "clean roots need root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(missing)} (Debian: mmdebstrap, systemd-container, iproute2)"
    if target.architecture == "arm64" and os.uname().machine != "aarch64" and not shutil.which("qemu-aarch64-static"):
        return "arm64 needs Debian's qemu-user-static here"
    return ""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended."""

    status: int
    text: str  # standard output and error, as they came


class Gateway:
    """One machine: its files, and the network namespace that its processes and devices share."""

    def __init__(self, root: Path, network_pid: int) -> None:
        self.root = root
        self.in_network = ("nsenter", f"--net=/proc/{network_pid}/ns/net")
        self._network_pid = network_pid
        self._leader = 0

    def process(self, command: str, **options: object) -> subprocess.Popen[str]:
        """Start a shell command as root of the gateway: in the running system if it was booted, otherwise with
        processes of its own, all of which end with it."""
        if self._leader:
            inside = ["nsenter", "--target", str(self._leader), "--all", "sh", "-c", command]
        else:
            spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc"]
            inside = [*self.in_network, *spaces, "chroot", str(self.root), "sh", "-c", command]
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        return subprocess.Popen(
            inside,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )

    def try_(self, command: str, limit_s: float = COMMAND_S) -> Done:
        """Run a shell command to its end, whatever that is."""
        process = self.process(command)
        try:
            text, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return Done(process.returncode, text)

    def run(self, command: str, limit_s: float = COMMAND_S) -> str:
        """Run a shell command that must succeed; what it printed."""
        done = self.try_(command, limit_s)
        assert done.status == 0, f"{command}\n{done.text}"
        return done.text

    def kill_when(self, command: str, condition: str, *, is_power_cut: bool = False) -> None:
        """Kill a command and all it started once the shell condition holds in its root, or the whole machine; it must
        still be at work then."""
        process = self.process(command)
        if self._leader:  # in its namespaces, for /run is in memory
            holds = ["nsenter", "--target", str(self._leader), "--all", "sh", "-c", f"cd / && {condition}"]
        else:
            holds = ["sh", "-c", condition]
        try:
            wait_until(
                lambda: process.poll() is not None or subprocess.run(holds, cwd=self.root, check=False).returncode == 0,
                condition,
                COMMAND_S,
            )
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            if is_power_cut:
                self.cut_power()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def cut_power(self) -> None:
        """End a booted system at once, with all that it holds in memory."""
        os.kill(self._leader, signal.SIGKILL)

    def copy_in(self, file: Path, to: str = "/root") -> str:
        """Put a file of the test onto the gateway, as a stick would; its path there."""
        target = self.root / to.lstrip("/") / file.name
        shutil.copy(file, target)
        return f"{to}/{file.name}"

    def _is_up(self, container_pid: int) -> bool:
        """Whether the container's systemd has started everything; commands then run in it."""
        children = Path(f"/proc/{container_pid}/task/{container_pid}/children").read_text().split()
        systemd = [int(pid) for pid in children if _name(pid) == "systemd"]
        self._leader = systemd[0] if systemd else 0  # helpers of the container are its children, too
        return bool(systemd) and self.try_("systemctl is-system-running").text.strip() in {"running", "degraded"}

    @contextmanager
    def boot(self) -> Iterator[None]:
        """Start systemd for the length of a block; then power off."""
        console = self.root.parent / "console"
        with console.open("wb") as output:
            process = subprocess.Popen(
                [
                    *("systemd-nspawn", "--quiet", "--boot", "--directory", str(self.root), "--register=no"),
                    *("--keep-unit", "--console=pipe"),
                    f"--network-namespace-path=/proc/{self._network_pid}/ns/net",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},  # systemd 257 wants cgroups of version 2
                start_new_session=True,
            )
        try:
            wait_until(lambda: process.poll() is not None or self._is_up(process.pid), "a boot", BOOT_S)
            assert process.poll() is None, console.read_text(errors="replace")
            yield
            if not Path(f"/proc/{self._leader}/stat").exists():
                return
            self.try_("systemctl poweroff")
            process.wait(BOOT_S)
        finally:
            self._leader = 0
            if process.poll() is None:
                process.kill()
                process.wait()


def _name(pid: str) -> str:
    """What a process runs; empty once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@contextmanager
def clean_gateway(target: Target, folder: Path) -> Iterator[Gateway]:
    """A gateway of this kind for the length of a block, below `folder`."""
    name = f"{target.suite}-{target.architecture}"
    base = KEPT / "roots" / name
    if not base.exists():
        part = base.with_name(base.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(
            [MAKE_ROOT, target.suite, target.architecture, KEPT / f"{name}.tar", "--unpack", part], check=True
        )
        part.rename(base)
    root, upper, work = (folder / one for one in ("root", "upper", "work"))
    for one in (root, upper, work):
        one.mkdir(parents=True)
    layers = f"lowerdir={base},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    network = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: Path(f"/proc/{network.pid}/ns/net").readlink() != own, "a network")
        gateway = Gateway(root, network.pid)
        subprocess.run([*gateway.in_network, "ip", "link", "set", "lo", "up"], check=True)
        yield gateway
    finally:
        network.kill()
        network.wait()
        subprocess.run(["umount", "--recursive", root], check=True)
