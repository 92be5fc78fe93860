"""How `bsfg setup` runs its steps: each is a command that an operator could type, printed before it runs.

No command line holds a secret: the passphrase of an authority is kept in memory, where only the commands of this run
read it.
"""

from __future__ import annotations

import codecs
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from agent.cli.prepare import unit
from agent.errors import BsfgError

PASSPHRASE = "BSFG_PKI_PASSPHRASEFILE"  # noqa: S105 the variable that names its file

_CHUNK_BYTES = 1 << 16


class SetupFailed(BsfgError):
    """A step failed. The steps before it stay done, and the next run of setup continues from there. `printed`: the
    output of the step."""

    def __init__(self, why: str, printed: str = "") -> None:
        super().__init__(why)
        self.printed = printed


class Steps:
    """Runs commands, for a node that systemd runs or not (`is_unit`), with an operator at a terminal or not
    (`asks`)."""

    def __init__(self, *, is_unit: bool, asks: bool) -> None:
        self.is_unit, self.asks = is_unit, asks
        self._environment: dict[str, str] = {}
        self._inherited: tuple[int, ...] = ()

    def bsfg(self, *words: str, as_node: bool = False) -> str:
        """Run a command of this program, as the node's user with `as_node`, if it makes files of the node. Returns its
        output."""
        python = [sys.executable, "-m", "agent.cli"]
        user = ["runuser", "-u", unit.USER, "--"] if as_node and self.is_unit and os.geteuid() == 0 else []
        return self.run([*user, *python, *words], [*user, "bsfg", *words])

    def run(self, command: Sequence[str], shown: Sequence[str] = ()) -> str:
        """Print a command, run it, and print its output as it comes. Returns the output. Raises SetupFailed."""
        words = shlex.join(shown or command)
        click.echo(f"$ {words}")
        printed, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # in one pipe, so that a question follows the lines before it
            env={**os.environ, **self._environment},
            pass_fds=self._inherited,
        ) as process:
            assert process.stdout is not None
            while data := os.read(process.stdout.fileno(), _CHUNK_BYTES):
                printed += (part := decoder.decode(data))
                click.echo(part, nl=False)
        if process.returncode != 0:
            raise SetupFailed(f"this step failed: {words}; run setup again once it succeeds", printed)
        return printed

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file to or from a stick, whose file system may have no modes. Raises SetupFailed."""
        self.run(["cp", str(source), str(target)])

    def give_passphrase(self, text: str) -> None:
        """Pass the authority's passphrase to the commands that follow."""
        file = os.memfd_create("passphrase")
        os.fchmod(file, 0o600)
        os.write(file, text.encode())
        self._inherited = (file,)
        self._environment = {PASSPHRASE: f"/proc/self/fd/{file}"}


def has_systemd() -> bool:
    """Whether systemd runs this machine."""
    return shutil.which("systemctl") is not None and Path("/run/systemd/system").exists()
