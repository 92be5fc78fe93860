"""Tests on clean Debian roots run with `make appliance-test`; what they test in seconds without one is in
test_packages.py, which always runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.packages import TARGETS, Target
from tests.appliance.gateway import Gateway, clean_gateway, why_not

BY_NAME = {target.name: target for target in TARGETS}
collect_ignore_glob = [] if os.environ.get("APPLIANCE") else ["test_root_*.py"]
DIST = Path(__file__).resolve().parents[2] / "dist"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test on a root starts real programs."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name.startswith("test_root_"):
            item.add_marker("system")


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Target:
    """The kind of gateway that the test's parameter names."""
    return BY_NAME[request.param]


@pytest.fixture
def gateway(target: Target, tmp_path: Path) -> Iterator[Gateway]:
    """A clean gateway, or a skipped test with the reason."""
    if reason := why_not(target):
        pytest.skip(reason)
    with clean_gateway(target, tmp_path / "gateway") as made:
        yield made


@pytest.fixture
def deb(target: Target) -> Path:
    """The .deb that `make bundle` built for this gateway."""
    (file,) = DIST.glob(f"bsfg_*+deb{target.debian}_{target.architecture}.deb")
    return file


@pytest.fixture
def bundle(target: Target) -> Path:
    """The bundle that `make bundle` built for this gateway."""
    (file,) = DIST.glob(f"bsfg-*-{target.name}.tar")
    return file
