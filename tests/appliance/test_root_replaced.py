"""A dead gateway and the one in its place, on booted roots with the real unit: only what the stick has is left."""

import asyncio
import hashlib
import ssl
from pathlib import Path

from appliance.packages import Target
from tests.appliance.gateway import Gateway, clean_gateway
from tests.appliance.test_root_deb import BOTH, CONFIG, STICK, boiler, press, put_on_stick
from tests.appliance.test_root_unit import set_up
from tests.foreign.server import ForeignServer
from tests.waiting import wait_until

VALUES_S = 120
KEPT = "/etc/bsfg/plant-a.toml /etc/bsfg/plant-a.csv /etc/bsfg/press.csv /var/lib/bsfg/plant-a/opcua/own.*"
BACKUP = f"{STICK}/plant-a.backup"
PASSPHRASE = "--passphrase-file /srv/passphrase"


def add_secured_press(gateway: Gateway, server: ForeignServer) -> None:
    """A source whose server trusts our certificate, and we its, although it names another host."""
    thumbprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(server.certificate.read_text())).hexdigest()
    gateway.run(f"printf 'tag,address\\npress/count,{server.address('count')}\\n' >/etc/bsfg/press.csv")
    section = f'[[opcua]]\nname = "press"\nurl = "{server.url}"\ntags_file = "press.csv"\n'
    section += f'server_certificate_sha256 = "{thumbprint}"\n'
    gateway.run(f"cat >>/etc/bsfg/plant-a.toml <<'END'\n{section}END")
    gateway.run(f"bsfg opcua certificate {CONFIG}")
    asyncio.run(server.trust(gateway.root / "var/lib/bsfg/plant-a/opcua/own.der"))


def runs_well(gateway: Gateway) -> None:
    """The node starts under its unit, has values of both sources, and says that all is well."""
    gateway.run("systemctl enable --now bsfg@plant-a")
    for tag in ("plant-a/pressure", "press/count"):
        wait_until(lambda tag=tag: tag in gateway.try_(f"bsfg latest {CONFIG}").text, f"a value of {tag}", VALUES_S)
    wait_until(lambda: gateway.try_(f"bsfg status {CONFIG}").status == 0, "a good status", VALUES_S)
    assert '"level": "warning"' not in gateway.run("journalctl -u bsfg@plant-a --no-pager -o cat")


def is_private(gateway: Gateway) -> None:
    """The node owns its state, the group may enter the folder and read no key, and others reach nothing."""
    shown = gateway.run(
        "stat -c '%U %G %a' /var/lib/bsfg/plant-a /var/lib/bsfg/plant-a/opcua/own.key /etc/bsfg/plant-a.toml"
    )
    assert shown.splitlines() == ["bsfg bsfg 750", "bsfg bsfg 600", "root bsfg 640"]
    assert (
        gateway.run(
            "find /var/lib/bsfg -not -user bsfg; find /etc/bsfg ! -path /etc/bsfg/page -not -group bsfg -o -perm /o=rwx"
        )
        == ""
    )


@BOTH
def test_a_gateway_is_replaced_from_its_backup(target: Target, gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """Backup of a running node, its root gone, the package and `restore` on a clean one: both sources give values to
    the node under the real unit, without new trust, and the files are as private as they were."""
    put_on_stick(gateway, deb)
    options = {"policies": ["Basic256Sha256"]}
    with boiler(gateway, tmp_path) as device, press(gateway, tmp_path, **options) as server:
        with gateway.boot():
            gateway.run(f"dpkg -i {STICK}/{deb.name}")
            set_up(gateway, "plant-a", device.port)
            add_secured_press(gateway, server)
            runs_well(gateway)
            gateway.run("umask 077 && echo correct horse battery staple >/srv/passphrase")
            gateway.run(f"bsfg backup {BACKUP} {CONFIG} {PASSPHRASE}")
            sums = gateway.run(f"sha256sum {KEPT}")
        with clean_gateway(target, tmp_path / "spare") as machine:
            spare = gateway.in_its_place(machine)
            put_on_stick(spare, deb)
            for name in (BACKUP, "/srv/passphrase"):
                spare.copy_in(gateway.root / name.lstrip("/"), str(Path(name).parent))
            with spare.boot():
                spare.run(f"dpkg -i {STICK}/{deb.name}")
                restored = spare.run(f"bsfg restore {BACKUP} {PASSPHRASE}")
                assert "restored" in restored
                assert spare.run(f"sha256sum {KEPT}") == sums
                is_private(spare)
                runs_well(spare)
                is_private(spare)  # systemd has applied StateDirectoryMode
                assert spare.run(f"sha256sum {KEPT}") == sums
                spare.run("systemctl stop bsfg@plant-a")
                spare.run(f"bsfg store verify {CONFIG}")
