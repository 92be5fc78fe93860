"""Upgrades of a running node that are killed or lose their power: the node runs on with the version that it had, and
the page's command leads to the new one."""

from pathlib import Path

from tests.appliance.gateway import Gateway
from tests.appliance.test_root_deb import (
    CONFIG,
    ONE,
    STICK,
    as_version,
    boiler,
    count_reads,
    do,
    offsets,
    put_on_stick,
    wait_for_more,
)
from tests.waiting import wait_until

PACKAGES = "lib/python3*/site-packages"
MOMENTS = {
    "unpacking": f"ls opt/bsfg.package/program/{PACKAGES}/*/*.dpkg-new 2>/dev/null | grep -q .",
    "compiling": f"ls opt/bsfg-.part/{PACKAGES}/agent/__pycache__/*.pyc 2>/dev/null | grep -q .",
    "restarting": "readlink opt/bsfg | grep -qF {version}",
}
START_S = 120
PID = "systemctl show --property=MainPID --value bsfg@plant-a"


def finish(gateway: Gateway, version: str, before: tuple[int, int], seen: int) -> int:
    """Type the command of the page; the node collects with the new version, and has every fact."""
    do(gateway, "interrupted")
    assert version in gateway.run("bsfg --version")
    assert gateway.run("dpkg --audit; find /opt -name '*.dpkg-*' -o -name 'bsfg-*.part'") == ""
    assert len(gateway.run("ls /opt").split()) == 3, "the link, the version in use, and the folder of dpkg"
    running = "systemctl is-active --quiet bsfg@plant-a"
    wait_until(lambda: gateway.try_(running).status == 0, "the node runs", START_S)
    seen = wait_for_more(gateway, seen)
    low, high = offsets(gateway)
    assert low == before[0]
    assert high > before[1]
    return seen


@ONE
def test_an_interrupted_upgrade_leaves_the_node_running_and_is_finished_by_the_second_try(
    gateway: Gateway, deb: Path, tmp_path: Path
) -> None:
    """dpkg killed while it unpacks, compiles and restarts the node: the node is up, in the first two moments as the
    same process. Then the power cut in each of these: it starts at boot. The second try ends with the new version and
    all facts."""
    versions = iter(range(2, 8))
    with boiler(gateway, tmp_path) as device:
        with gateway.boot():
            put_on_stick(gateway, deb)
            do(gateway, "deb")
            do(gateway, "source", device.port)
            seen = wait_for_more(gateway, 0)
            for moment, condition in MOMENTS.items():
                version = f"0.{next(versions)}.0"
                package, pid, before = as_version(deb, tmp_path, version), gateway.run(PID), offsets(gateway)
                put_on_stick(gateway, package)
                gateway.kill_when(f"dpkg -i {STICK}/{package.name}", condition.format(version=version))
                assert "bsfg" in gateway.run("dpkg --audit")
                assert moment == "restarting" or gateway.run(PID) == pid
                seen = wait_for_more(gateway, count_reads(gateway))
                seen = finish(gateway, version, before, seen)
        for condition in MOMENTS.values():
            version = f"0.{next(versions)}.0"
            package = as_version(deb, tmp_path, version)
            with gateway.boot():
                seen = wait_for_more(gateway, count_reads(gateway))
                before = offsets(gateway)
                put_on_stick(gateway, package)
                gateway.kill_when(
                    f"dpkg -i {STICK}/{package.name}", condition.format(version=version), is_power_cut=True
                )
            with gateway.boot():
                seen = wait_for_more(gateway, seen)
                seen = finish(gateway, version, before, seen)
                gateway.run("systemctl stop bsfg@plant-a")
                gateway.run(f"bsfg store verify {CONFIG}")
