"""The sites that tests attack: three honest nodes, brokers and the attacker.

A start takes seconds, so tests share a site; whatever an attack has stopped is started again before the next test.
"""

from collections.abc import Iterator

import pytest

from tests.security.attacker import HERE, STACK
from tests.security.site import Site, running_site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need the attacker if set-up could not install its libraries."""
    if why := STACK.why_not():
        for item in items:
            if item.path.parent == HERE and "shared_site" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for all files without special needs."""
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The file's site, every honest node running and connected."""
    shared_site.revive()
    return shared_site
