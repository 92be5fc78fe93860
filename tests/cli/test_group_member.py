"""What members of the node's group may do, as under the unit: ask the running node, and read its store."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ingest.fakes import Program
from tests.support import command
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")]
NODE, MEMBER, GROUP = 64_990, 64_991, 64_990


@pytest.fixture(name="here")
def node_of_the_unit(meter: Program) -> Iterator[Path]:
    """A running node with the modes of the unit and of its package: settings for the group, a state folder that the
    group may enter, and private files in it."""
    with tempfile.TemporaryDirectory(prefix="bsfg-test-", dir="/tmp") as made:
        folder = Path(made)
        (folder / "state").mkdir()
        (folder / "tags.csv").write_text("tag,table,register,type\na/voltage,input,0,uint16\n")
        (folder / "node.toml").write_text(
            f'[node]\nzone = "plant-a"\n[[modbus]]\nname = "meter"\nhost = "127.0.0.1"\n'
            f'port = {meter.port}\naddress_base = 0\ntags_file = "tags.csv"\n'
        )
        for path, user, mode in ((folder, 0, 0o750), (folder / "state", NODE, 0o750)):
            os.chown(path, user, GROUP)
            path.chmod(mode)
        for path in (folder / "node.toml", folder / "tags.csv"):
            os.chown(path, 0, GROUP)
            path.chmod(0o640)
        words = command.words("run")
        node = subprocess.Popen(
            words, cwd=folder, stderr=subprocess.DEVNULL, user=NODE, group=GROUP, extra_groups=[], umask=0o077
        )
        try:
            wait_until(lambda: run(folder, "latest", user=NODE).returncode == 0, "the first value")
            yield folder
        finally:
            node.send_signal(signal.SIGINT)
            node.wait(command.LIMIT_S)


def run(
    folder: Path, *words: str, user: int = MEMBER, groups: tuple[int, ...] = (GROUP,)
) -> "subprocess.CompletedProcess[str]":
    """A command as another user."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    return subprocess.run(
        [*command.words(*words), "--config", str(folder / "node.toml")],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        user=user,
        group=user,
        extra_groups=groups,
        timeout=command.LIMIT_S,
    )


def test_a_member_looks_and_changes_nothing(here: Path) -> None:
    """Status, latest values, the end of a stream and the sources are those that the node's user sees; what changes
    something is refused by the node. Of all files only the store's can be read, and none can be written."""
    for words, shown in (
        (("status",), "plant-a: "),
        (("latest",), "a/voltage"),
        (("latest", "--summary"), "1 tags: 1 good"),
        (("tail", "--limit", "1"), '"subject": "tag:a/voltage"'),
        (("source", "list"), "meter"),
        (("consumer", "list"), "no consumers"),
    ):
        done = run(here, *words)
        assert (done.returncode, done.stderr) == (0, ""), (words, done)
        assert shown in done.stdout, words
    for words in (("reload",), ("consumer", "add", "mes", "--stream", "facts.telemetry"), ("source", "retry", "meter")):
        done = run(here, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "only the node's user and root may ask the node for this" in done.stderr, words
    assert run(here, "store", "stats").returncode == 0
    assert run(here, "object", "put", str(here / "tags.csv"), user=NODE).returncode == 0
    for word in ("list", "verify"):
        done = run(here, "object", word)
        assert (done.returncode, "artifacts: Permission denied" in done.stderr, "Traceback" in done.stderr) == (
            1,
            True,
            False,
        )
    for path in (here / "state").iterdir():
        may = 0o040 if path.name in {"facts.db", "facts.db-wal", "facts.db-shm"} else 0
        if path.name != "bsfg.sock":
            assert path.stat().st_mode & 0o077 == may, path


def test_others_are_told_of_the_group(here: Path) -> None:
    """One who is no member gets no traceback: the message names what may not be read, and what to do."""
    for words in (("status",), ("latest",), ("tail",)):
        done = run(here, *words, groups=())
        assert done.returncode == 1
        assert "cannot be read: Permission denied; run as root or as a member of its group" in done.stderr
        assert "Traceback" not in done.stderr
