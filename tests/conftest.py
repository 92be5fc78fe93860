"""What holds for every test: no setting of the person running them leaks in, asserts are on, and long files start
first.

Fixtures belong to the folder that needs them; this file has none that a test must know.
"""

import os
import sys

import pytest


def pytest_configure() -> None:
    """Refuse an interpreter without asserts, and forget every BSFG_ variable before a test can read one."""
    if sys.flags.optimize:
        pytest.exit("python -O removes the asserts that the product and its tests rely on", returncode=2)
    for name in [name for name in os.environ if name.startswith("BSFG_")]:
        del os.environ[name]


LONG_FIRST = ("tests/system/", "tests/bench/", "tests/spark/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a parallel run the files that take minutes come first, so that no process is left with one at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONG_FIRST))
