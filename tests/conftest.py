"""What holds for every test: no setting of the person running them leaks in, and asserts are on.

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
