"""An authority whose key is in a token: SoftHSM, a software token of another project, driven through its PKCS#11
library."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.replication.pki.problem import PkiError
from agent.replication.pki.token import parse_address
from tests.support.command import process
from tests.waiting import LIMIT_S

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operate" / "certificates.md"
MODULES = (Path("/usr/lib/softhsm/libsofthsm2.so"), Path("/usr/lib64/pkcs11/libsofthsm2.so"))


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token with the PIN 123456, and the address of a key in it."""
    pytest.importorskip("pkcs11")
    module = next((one for one in MODULES if one.exists()), None)
    if module is None or shutil.which("softhsm2-util") is None:
        pytest.skip("SoftHSM is not installed: apt-get install softhsm2")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    words = "softhsm2-util --init-token --free --label site --so-pin 654321 --pin 123456"
    subprocess.run(words.split(), check=True, capture_output=True, timeout=LIMIT_S)
    (tmp_path / "pin").write_text("123456\n")
    (tmp_path / "pin").chmod(0o600)
    shown = re.findall(r"^    bsfg pki ca --token '(.+)'$", PAGE.read_text("utf-8"), re.MULTILINE)
    return str(shown[0]).replace(str(MODULES[0]), str(module))


def run(folder: Path, line: str, *, is_good: bool = True) -> str:
    """Run one command in a process of its own, because a driver keeps state in a process."""
    done = process(folder, *line.split())
    assert (done.returncode == 0) is is_good, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.system
def test_an_authority_signs_and_revokes_with_its_token(uri: str, tmp_path: Path) -> None:
    """openssl accepts root, zone, broker and revocation list, and no file holds a key of the authority."""
    run(tmp_path, f"pki ca --token {uri} --passphrase-file pin")
    assert (tmp_path / "pki/ca.key").read_text() == f"{uri}\n"
    run(tmp_path, "pki request plant-a --pki node")
    run(tmp_path, "pki sign plant-a --request node/zones/requested/plant-a.csr --passphrase-file pin")
    run(tmp_path, "pki import plant-a --cert pki/zones/plant-a.pem --ca pki/ca.pem --pki node")
    run(tmp_path, "pki issue --broker idmz --host localhost --passphrase-file pin")
    run(tmp_path, "pki issue plant-b --passphrase-file pin")
    run(tmp_path, "pki revoke plant-b --passphrase-file pin")
    checked = ["openssl", "verify", "-x509_strict", "-crl_check", "-CAfile", "pki/ca.pem", "-CRLfile", "pki/ca.crl"]
    for file, is_good in (("zones/plant-a", True), ("brokers/idmz", True), ("zones/plant-b", False)):
        done = subprocess.run(
            [*checked, f"pki/{file}.pem"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode == 0) is is_good, done.stdout + done.stderr
    assert "revoked" in run(tmp_path, "pki list")


@pytest.mark.system
def test_what_goes_wrong_with_a_token_is_named(uri: str, tmp_path: Path) -> None:
    """A wrong PIN, another token, a missing driver, and a name that is taken are named; nothing is written."""
    (tmp_path / "wrong").write_text("111111\n")
    (tmp_path / "wrong").chmod(0o600)
    assert "the PIN is wrong" in run(tmp_path, f"pki ca --token {uri} --passphrase-file wrong", is_good=False)
    other = uri.replace("token=site", "token=elsewhere")
    assert "no token has this label" in run(tmp_path, f"pki ca --token {other} --passphrase-file pin", is_good=False)
    none = "pkcs11:token=site;object=ca?module-path=/nonexistent.so"
    assert "driver cannot be used" in run(tmp_path, f"pki ca --token {none} --passphrase-file pin", is_good=False)
    assert not (tmp_path / "pki" / "ca.pem").exists()
    run(tmp_path, f"pki ca --token {uri} --passphrase-file pin")
    again = run(tmp_path, f"pki ca --token {uri} --passphrase-file pin --pki second", is_good=False)
    assert "has a key zones-ca already" in again


@pytest.mark.parametrize(
    "uri", ["", "pkcs11:", "pkcs11:token=a;object=b", "pkcs11:token=;object=b?module-path=/x", "file:/x", "pkcs11:;;?&"]
)
def test_an_address_without_its_parts_is_refused(uri: str) -> None:
    """The error shows an example of a valid one."""
    with pytest.raises(PkiError, match="does not name a key"):
        parse_address(uri)
