"""Clean gateways: minimal Debian in a folder, without bsfg, with a network that has nothing but loopback; bare, or with
the packages of Debian that install.md names.

`make_root` makes each root once (build/appliance); a test writes into an overlay above it. Commands run in it with
processes and network of its own; `boot` starts its systemd, as a container. Devices of a test may join the network.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.packages import Target
from tests.appliance.page import commands
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "appliance"
MAKE_ROOT = Path(__file__).resolve().parent / "make_root"
COMMAND_S = 900  # an emulated processor compiles the package for five minutes and more
BOOT_S = 120
PROGRAMS = ("mmdebstrap", "systemd-nspawn", "unshare", "nsenter", "dpkg-deb", "ip", "nft")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


def why_not(target: Target) -> str:
    """Why no gateway of this kind can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "clean roots need root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(missing)} (Debian: mmdebstrap, systemd-container, iproute2, nftables)"
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
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
        started: subprocess.Popen[str] = subprocess.Popen(
            inside,
            text=True,
            errors="replace",
            env=ENVIRONMENT,
            start_new_session=True,
            **streams,  # type: ignore[call-overload]
        )
        return started

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

    def type(self, command: str, dialog: Iterable[tuple[str, Callable[[], str]]] = ()) -> str:
        """Type a command at a terminal, and the answer to each question, asked for once the question is there; what the
        terminal showed. The command must succeed, and ask nothing else."""
        terminal, inside = pty.openpty()
        try:
            process = self.process(command, stdin=inside, stdout=inside, stderr=inside)
            os.close(inside)
            shown = ""
            for question, answer in dialog:
                part = _read_until(terminal, f"{question} ")
                assert part.endswith(f"{question} "), f"{command}: {question!r} was not asked\n{shown}{part}"
                shown += part
                os.write(terminal, f"{answer()}\n".encode())
            shown += _read_until(terminal, None)
            assert process.wait(COMMAND_S) == 0, f"{command}\n{shown}"
        finally:
            os.close(terminal)
        return shown

    def connect(self, other: Gateway, mine: str, its: str, devices: tuple[str, str] = ("eth0", "eth0")) -> None:
        """A cable to another machine, with an address at each end."""
        peer = ["type", "veth", "peer", "name", devices[1], "netns", str(other._network_pid)]
        subprocess.run([*self.in_network, "ip", "link", "add", devices[0], *peer], check=True)
        for gateway, address, device in ((self, mine, devices[0]), (other, its, devices[1])):
            gateway.add_address(address, device)
            subprocess.run([*gateway.in_network, "ip", "link", "set", device, "up"], check=True)

    def in_its_place(self, spare: Gateway) -> Gateway:
        """The files of another machine in this one's network, once this one is off."""
        return Gateway(spare.root, self._network_pid)

    def add_address(self, address: str, device: str) -> None:
        """An address, as 10.0.0.1/24, in this machine's network."""
        subprocess.run([*self.in_network, "ip", "address", "add", address, "dev", device], check=True)

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
        console, cgroups = self.root.parent / "console", _cgroups(f"{self.root.parent.name}-{self._network_pid}")
        with console.open("wb") as output:
            process = subprocess.Popen(
                [
                    *_in_cgroups(cgroups),
                    *("systemd-nspawn", "--quiet", "--boot", "--directory", str(self.root), "--register=no"),
                    *("--keep-unit", "--console=pipe", f"--machine={self.root.parent.name}"),
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
            leader, self._leader = self._leader, 0
            if process.poll() is None:
                if leader:  # it outlives the program that made its container
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(leader, signal.SIGKILL)
                process.kill()
                process.wait()
            _remove_cgroups(cgroups)


def _cgroups(name: str) -> list[Path]:
    """Control groups of its own for a container: in shared ones two systemds would end each other's processes."""
    trees = [tree for tree in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")) if tree.is_dir()]
    return [tree / f"bsfg-{name}" for tree in trees or [Path("/sys/fs/cgroup")]]


def _in_cgroups(folders: list[Path]) -> list[str]:
    """The beginning of a command that runs in these control groups."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
    enter = "".join(f"echo $$ >{folder}/cgroup.procs && " for folder in folders)
    return ["sh", "-c", f'{enter} exec "$@"', "sh"]


def _remove_cgroups(folders: list[Path]) -> None:
    """Remove the control groups that a container has left."""
    for folder in folders:
        below = (file for file in folder.rglob("*") if file.is_dir())
        for below_it in [*sorted(below, reverse=True), folder]:
            with contextlib.suppress(OSError):  # a process of a killed container may still be ending
                below_it.rmdir()


def _read_until(terminal: int, end: str | None) -> str:
    """What a terminal shows up to this text, or up to the end of the program."""
    shown = ""
    while end is None or not shown.endswith(end):
        assert select.select([terminal], [], [], COMMAND_S)[0], f"nothing more was shown:\n{shown}"
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other side is closed
            break
        shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
    return shown


def _name(pid: str) -> str:
    """What a process runs; empty once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _base(target: Target, *, is_bare: bool) -> Path:
    """The root of a gateway of this kind, made at the first use: bare, with packages of Debian on its stick, or with
    those installed that the broker's machine needs."""
    name = f"{target.suite}-{target.architecture}"
    base = KEPT / "roots" / (f"{name}-bare" if is_bare else name)
    if base.exists():
        return base
    part = base.with_name(base.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    python = f"python{target.python}"
    bring, brought = ("\n".join(commands(block)).replace("python3.11", python) for block in ("bring", "brought"))
    words = [MAKE_ROOT, target.suite, target.architecture, KEPT / f"{name}-bare.tar", "--unpack", part]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"BRING": bring})
    if not is_bare:
        inside = ["chroot", str(part), "sh", "-ec", brought.replace("/debian/", "/debian-broker/")]
        subprocess.run(inside, check=True, stdout=subprocess.DEVNULL, env=os.environ | ENVIRONMENT)
        shutil.rmtree(part / "media" / "usb")
        (part / "usr" / "bin" / "python3").symlink_to(python)  # as Debian's python3 has it, which a bundle asks for
    part.rename(base)
    return base


@contextmanager
def clean_gateway(target: Target, folder: Path, *, is_bare: bool = False) -> Iterator[Gateway]:
    """A gateway of this kind for the length of a block, below `folder`."""
    base = _base(target, is_bare=is_bare)
    root, upper, work = (folder / name for name in ("root", "upper", "work"))
    for layer in (root, upper, work):
        layer.mkdir(parents=True)
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
