"""One site's certificates for all tests of this folder."""

import shutil
from pathlib import Path

import pytest

from tests.replication.pki.site import make_site


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site made once; tests that change it use `folder`."""
    return make_site(tmp_path_factory.mktemp("made") / "pki")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the site, to change."""
    return Path(shutil.copytree(made, tmp_path / "pki"))
