"""The site that the tests of a file attack: three honest nodes, a broker and the attacker. A start takes seconds, so a
file shares it; what an attack has ended is started again before the next."""

from collections.abc import Iterator

import pytest

from tests.security.attacker import HERE, STACK
from tests.security.site import Site, running_site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the attacker where set-up could not install its libraries."""
    if why := STACK.why_not():
        for item in items:
            if item.path.parent == HERE:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for the tests of a file."""
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The file's site, every honest node running and connected."""
    shared_site.revive()
    return shared_site
