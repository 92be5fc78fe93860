"""Run a `bsfg` command in the test's own process: the same code from the arguments to the exit status, without a
second's start.

Tests of interpreter options, signals or memory need a process of their own and use `process`.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from agent.cli import main
from tests.waiting import LIMIT_S


def bsfg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` and return its output and exit status. An error that would print a traceback is
    raised."""
    code: object = 0
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["bsfg", *arguments]),
        ):
            try:
                main()
            except SystemExit as ended:
                code = ended.code
            if isinstance(code, str):  # as the interpreter does
                print(code, file=sys.stderr)
                code = 1
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(["bsfg", *arguments], int(code or 0), *texts)


def words(*arguments: str, python: tuple[str, ...] = ()) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, *python, "-m", "agent.cli", *arguments]


def process(folder: Path, *arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, under an interpreter with the options `python`. Without asyncio's debug mode,
    in which slow callbacks on a busy machine add log lines."""
    command = words(*arguments, python=python)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
