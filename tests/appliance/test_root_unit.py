"""The unit on a booted gateway: what `check` says is what the unit refuses, nodes share a machine, reload has a
result."""

import re
from pathlib import Path

from tests.appliance.gateway import Gateway
from tests.appliance.test_root_deb import ONE, STICK, boiler, put_on_stick
from tests.waiting import wait_until

VALUES_S = 60
TAGS = "tag,unit_id,table,register,type\\nboiler/pressure,1,holding,10,uint16\\n"


def config(zone: str) -> str:
    """The option of a zone's file."""
    return f"--config /etc/bsfg/{zone}.toml"


def pid(gateway: Gateway, zone: str) -> str:
    """The main process of a node."""
    return gateway.run(f"systemctl show --property=MainPID --value bsfg@{zone}").strip()


def values(gateway: Gateway, zone: str) -> int:
    """How many values the node has recorded from its source."""
    found = re.search(r"source +boiler .*? ([\d,]+) values", gateway.try_(f"bsfg status {config(zone)}").text)
    return int(found[1].replace(",", "")) if found else 0


def set_up(gateway: Gateway, zone: str, port: int) -> None:
    """A node with the boiler as its source, as root would do it."""
    gateway.run(f"bsfg init --zone {zone} {config(zone)}")
    gateway.run(f"printf '{TAGS}' | sed s,boiler/,{zone}/, >/etc/bsfg/{zone}.csv")
    section = (
        f'[[modbus]]\nname = "boiler"\nhost = "127.0.0.1"\nport = {port}\ntags_file = "{zone}.csv"\naddress_base = 0\n'
    )
    gateway.run(f"cat >>/etc/bsfg/{zone}.toml <<'END'\n{section}END")


def check_knows_the_unit(gateway: Gateway) -> None:
    """What root may do and the node may not is bad: a key that only root can read, a certificate where the node may not
    write."""
    gateway.run("export BSFG_PKI=/etc/bsfg/pki/pki; bsfg pki ca --no-passphrase && bsfg pki issue plant-a")
    gateway.run("chmod -R go= /etc/bsfg/pki")
    files = "".join(
        f'{name} = "pki/pki/{file}"\n'
        for name, file in [
            ("ca_file", "ca.pem"),
            ("cert_file", "zones/plant-a.pem"),
            ("key_file", "zones/plant-a.key"),
        ]
    )
    broker = f'[[broker]]\nname = "b"\nhost = "127.0.0.1"\noptional = true\n{files}'
    opcua = '[[opcua]]\nname = "plc"\nurl = "opc.tcp://127.0.0.1:4840"\ntags_file = "plc.csv"\n'
    own = 'certificate_file = "pki/own.der"\nprivate_key_file = "pki/own.key"\n'
    gateway.run("printf 'tag,address\\nplc/t,nsu=urn:x;s=t\\n' >/etc/bsfg/plc.csv")
    gateway.run(f"cat >>/etc/bsfg/plant-a.toml <<'END'\n{broker}{opcua}{own}END")
    bad = gateway.try_(f"bsfg check {config('plant-a')}")
    assert bad.status == 1
    assert re.search(r"ca\.pem.*[Pp]ermission", bad.text), bad.text
    assert "/etc/bsfg/pki/own.der does not exist, and the node cannot create it there" in bad.text
    gateway.run("chown -R root:bsfg /etc/bsfg/pki && chmod -R u=rwX,g=rX /etc/bsfg/pki")
    gateway.run("sed -i '/own\\.\\(der\\|key\\)/d' /etc/bsfg/plant-a.toml")
    gateway.run(f"bsfg check {config('plant-a')}")


def run_both(gateway: Gateway) -> None:
    """Both nodes give values, with files that only they can read; they know which start of the machine this is,
    although the sandbox hides it."""
    gateway.run("systemctl enable --now bsfg@plant-a bsfg@plant-b")
    for zone in ("plant-a", "plant-b"):
        wait_until(lambda zone=zone: values(gateway, zone) > 0, f"values of {zone}", VALUES_S)
    journal = gateway.run("journalctl --unit=bsfg@plant-b --no-pager --output=cat")
    assert '"level": "info"' in journal
    assert '"level": "warning"' not in journal, "the sandbox refuses something"
    own_files = gateway.run("stat -c '%U %a %n' /var/lib/bsfg/plant-a/opcua/*")
    assert "bsfg 600 /var/lib/bsfg/plant-a/opcua/own.key" in own_files
    gateway.run("grep -q $(tr -d - </proc/sys/kernel/random/boot_id) /var/lib/bsfg/plant-b/clock.json")


def the_group_looks(gateway: Gateway) -> None:
    """A member of the node's group sees state and values, another user neither."""
    gateway.run("useradd --groups bsfg member && useradd other")
    for words in ("status", "latest"):
        shown = gateway.run(f"runuser -u member -- bsfg {words} {config('plant-b')}")
        assert "boiler" in shown or "plant-b/pressure" in shown, shown
        assert gateway.try_(f"runuser -u other -- bsfg {words} {config('plant-b')}").status != 0


def reload_with_a_result(gateway: Gateway) -> None:
    """The same process, a source that begins anew; a file that is refused changes nothing."""
    before = pid(gateway, "plant-a")
    gateway.run("sed -i 's/^address_base = 0/address_base = 0\\npoll_interval_ms = 200/' /etc/bsfg/plant-a.toml")
    gateway.run("systemctl reload bsfg@plant-a")
    assert "reloaded: modbus boiler" in gateway.run("journalctl -u bsfg@plant-a --no-pager -o cat")
    wait_until(lambda: values(gateway, "plant-a") > 0, "values after the reload", VALUES_S)
    gateway.run("echo '[[modbus]]' >>/etc/bsfg/plant-a.toml")
    refused = gateway.try_("systemctl reload bsfg@plant-a")
    assert refused.status != 0
    assert "modbus[1].name: is required" in gateway.run("journalctl -u bsfg@plant-a --no-pager -o cat")
    assert pid(gateway, "plant-a") == before
    assert gateway.run("systemctl is-active bsfg@plant-a").strip() == "active"
    assert "was refused when it was reloaded" in gateway.try_(f"bsfg status {config('plant-a')}").text
    gateway.run("sed -i '$d' /etc/bsfg/plant-a.toml && systemctl reload bsfg@plant-a")
    gateway.run(f"kill -HUP {before}")
    assert pid(gateway, "plant-a") == before


def the_page_is_apart(gateway: Gateway) -> None:
    """The page under its unit: a user of its own, answers about the node and the zone while no key is readable, and
    none of its own; and it says that the node is dead, when it is."""
    gateway.run("systemctl enable --now bsfg-page@plant-a")

    def get(path: str) -> str:
        fetch = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8470{path}').read().decode())"
        return gateway.run(f'/opt/bsfg/bin/python3 -c "{fetch}"')

    assert "bsfg_node_up 1.0" in get("/metrics")
    assert "plant-a is" in get("/")
    main = gateway.run("systemctl show --property=MainPID --value bsfg-page@plant-a").strip()
    assert gateway.run(f"stat -c %U /proc/{main}").strip() == "bsfg-page"
    inside = f"nsenter --target {main} --mount runuser -u bsfg-page -G bsfg --"
    gateway.run(f"{inside} test -r /var/lib/bsfg/plant-a/facts.db -a -r /etc/bsfg/plant-a.toml")
    for file in ("/etc/bsfg/pki/pki/zones/plant-a.key", "/var/lib/bsfg/plant-a/opcua/own.key"):
        gateway.run(f"test -e {file}")
        assert gateway.try_(f"{inside} cat {file}").status == 1, file
    assert gateway.try_(f"{inside} touch /var/lib/bsfg/plant-a/x").status == 1
    scored = gateway.run("systemd-analyze security --no-pager bsfg-page@plant-a | tail -n 1")
    assert float(re.search(r"bsfg-page@plant-a\S*: ([\d.]+)", scored)[1]) <= 1.2, scored  # type: ignore[index]
    gateway.run("systemctl stop bsfg@plant-a")
    wait_until(lambda: "plant-a is broken: the node does not answer" in get("/"), "the page to say so", VALUES_S)
    gateway.run("systemctl start bsfg@plant-a")
    wait_until(lambda: "the node does not answer" not in get("/"), "the page to see the node again", VALUES_S)


def root_spoils_nothing(gateway: Gateway) -> None:
    """Root cannot make files in the store of a node that is stopped."""
    gateway.run("systemctl stop bsfg@plant-b")
    spoilt = gateway.try_(f"bsfg append {config('plant-b')} batch:B-1 done '{{}}'")
    assert spoilt.status == 1
    assert "runuser -u bsfg -- bsfg" in spoilt.text
    gateway.run(f"runuser -u bsfg -- bsfg append {config('plant-b')} batch:B-1 done '{{}}'")
    assert gateway.run("find /var/lib/bsfg -not -user bsfg") == ""
    gateway.run("systemctl start bsfg@plant-b")


@ONE
def test_two_nodes_under_the_unit(gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """From `init` to values without a line about the sandbox; `check` is bad where the unit would fail and good where
    it works; the page has a user of its own; `systemctl reload` returns the result of the reload."""
    put_on_stick(gateway, deb)
    with gateway.boot(), boiler(gateway, tmp_path) as device:
        gateway.run(f"dpkg -i {STICK}/{deb.name}")
        for zone in ("plant-a", "plant-b"):
            set_up(gateway, zone, device.port)
        check_knows_the_unit(gateway)
        run_both(gateway)
        the_group_looks(gateway)
        the_page_is_apart(gateway)
        reload_with_a_result(gateway)
        root_spoils_nothing(gateway)
