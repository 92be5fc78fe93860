"""Rules for all tests: no setting of the developer reaches them, asserts are on, and long files start first.

A fixture belongs to the folder that needs it; a fixture that several folders need is here.
"""

import asyncio.constants
import gc
import inspect
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.sim import IS_LONG
from tests.support import entropy
from tests.support.memory import memory_folder
from tests.support.virtual_time import run_virtual

# No deadline, because any example may take long on a busy machine (by default, 200 ms is a failure). Only `make sim`
# uses new examples, as it uses new seeds.
settings.register_profile("bsfg", deadline=None, derandomize=not IS_LONG, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bsfg")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an interpreter without asserts, replace every BSFG_ variable before a test can read one, and handle
    Ctrl-C, which a shell's background jobs and their children ignore. The machine's time zone is one that nobody takes
    for UTC. Drop asyncio's log lines about slow callbacks, because a stalled machine causes them, too. Random numbers
    are fresh only in `make test-long` and `make sim`."""
    if sys.flags.optimize:
        pytest.exit("python -O removes the asserts that the product and its tests rely on", returncode=2)
    for name in [name for name in os.environ if name.startswith("BSFG_")]:
        del os.environ[name]
    os.environ["TZ"] = "Asia/Kathmandu"  # 5:45 ahead
    time.tzset()
    os.environ["BSFG_PKI"] = "pki"  # in the folder of a test, never in /srv or /etc
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))
    # In debug mode asyncio keeps ten frames of each callback, which took a third of the cost of that mode.
    vars(asyncio.constants)["DEBUG_STACK_DEPTH"] = 1
    if not IS_LONG and config.option.markexpr != "system":
        config.pluginmanager.register(entropy)


SHARE_SPARK = (
    "tests/spark/test_spark.py",
    "tests/spark/test_push_down.py",
    "tests/spark/jobs/test_jobs.py",
    "tests/spark/jobs/test_analyse.py",
    "tests/spark/jobs/test_gaps.py",
    "tests/spark/streaming/test_land_job.py",
    "tests/spark/streaming/test_streaming_docs.py",
)


class SharedSpark(LoadFileScheduling):
    """Each file to one process, and all that need Spark in this process to the same: its JVM costs 16 s of a core."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(SHARE_SPARK) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedSpark | None:
    """For `--dist loadfile` only; other values of `--dist` are not changed."""
    return SharedSpark(config, log) if config.getoption("dist") == "loadfile" else None


# Tests with servers that take a second or less each, and run what no other test of `make test` does: the commands that
# look at devices, brokers and peers, and the set-up.
SHORT = (
    "tests/cli/test_modbus.py",
    "tests/cli/test_opcua.py",
    "tests/cli/test_pages.py",
    "tests/cli/test_setup.py::test_a_b",
    "tests/cli/test_setup.py::test_a_try",
    "tests/cli/test_setup.py::test_answers",
    "tests/cli/test_setup.py::test_only",
    "tests/cli/test_setup.py::test_questions",
    "tests/cli/test_source.py",
    "tests/cli/test_sources_page.py",
    "tests/replication/broker/",
    "tests/replication/mqtt/",
    "tests/replication/pki/",
    "tests/replication/pulling/test_anti_entropy.py",
    "tests/spark/test_mqtt.py",
)
LONG_FIRST = ("tests/chain/", "tests/system/", "tests/bench/", "tests/spark/", "tests/security/", "tests/fact_store/")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark those of SHORT. ORDER=seed shuffles the files, and the tests of each file unless they are marked `in_order`.
    Otherwise, in a parallel run, the files that take minutes come first, so that no process is left with one at the
    end."""
    for item in items:
        if item.nodeid.startswith(SHORT):
            item.add_marker("short")
    if order := os.environ.get("ORDER"):
        chance = random.Random(order)
        files = {item.path: chance.random() for item in items}
        places = {item: 0.0 if item.get_closest_marker("in_order") else chance.random() for item in items}
        items.sort(key=lambda item: (files[item.path], places[item]))
    elif hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONG_FIRST))


# What a test may start only if it is marked `system`; docs/developers/tests.md says why.
SERVERS = (("mosquitto", "-c"), ("node", ""), ("java", ""), ("python", "agent.cli", "run", "--config"))
MAY_START_SERVERS = ("tests/chain/",)
SETPRIV = 3  # where the program is in a command of agent/demo/processes.py
_started = list[str]()


def _note_server(event: str, arguments: tuple[Any, ...]) -> None:
    """Keep the command of each server that this process starts. A hook of the interpreter, so no way is left out."""
    if event == "subprocess.Popen":
        command = [str(argument) for argument in arguments[1]]
        program = command[SETPRIV] if command[0] == "setpriv" else command[0]
        for name, *words in SERVERS:
            if Path(program).name == name and {*words} <= {"", *command}:
                _started.append(" ".join(command)[:200])


sys.addaudithook(_note_server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that started a server, or whose fixtures did, without the mark."""
    yield
    if _started and item.get_closest_marker("system") is None and not item.nodeid.startswith(MAY_START_SERVERS):
        pytest.fail(f"this test starts a server and is not marked `system`: {_started[0]}", pytrace=False)


def pytest_runtest_logstart() -> None:
    """The next test answers for itself only."""
    _started.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test written as a coroutine runs in an event loop of its own, in virtual time if it is marked so."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    mark = pyfuncitem.get_closest_marker("virtual_time")
    run = run_virtual if mark is not None and False not in mark.args else asyncio.run
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, for tests that open or copy many stores."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log and no garbage collection: ten thousand simulated lives of a node would log and collect too much."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    logging.disable(logging.NOTSET)
