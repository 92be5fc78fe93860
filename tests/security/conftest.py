"""The sites that tests attack: three honest nodes, brokers and the attacker.

A start takes seconds, so tests share a site; whatever an attack has stopped is started again before the next test.
"""

from collections.abc import Iterator

import pytest

from tests.security.attacker import HERE, STACK
from tests.security.site import IDMZ, STREAM, Site, running_site

MIB = 1024 * 1024
SMALL = f"""[store]
artifact_bytes_max = {2 * MIB}
artifact_unreferenced_bytes_max = {8 * MIB}
[[stream]]
name = "{STREAM}"
bytes_max = {MIB}
keep_hours = 0
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need the attacker if set-up could not install its libraries."""
    if why := STACK.why_not():
        for item in items:
            if item.path.parent == HERE and {"shared_site", "small_site"} & {*getattr(item, "fixturenames", ())}:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for all files without special needs."""
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="session")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose idmz has little room: a megabyte of facts, eight megabytes of unreferenced artifacts."""
    with running_site(tmp_path_factory.mktemp("small"), more={IDMZ: SMALL}) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The file's site, every honest node running and connected."""
    shared_site.revive()
    return shared_site
