"""Upgrades of a running node that are killed or lose their power: the facts stay, and the page's command leads to the
new version and to a node that collects again."""

from pathlib import Path

from tests.appliance.gateway import Gateway
from tests.appliance.test_root_deb import (
    CONFIG,
    ONE,
    STICK,
    boiler,
    count_reads,
    do,
    next_version,
    offsets,
    put_on_stick,
    wait_for_more,
)
from tests.waiting import wait_until

PACKAGES = "opt/bsfg/lib/python3*/site-packages"
MOMENTS = {
    "stopping the node": "test -e run/bsfg-upgrade && ! systemctl is-active --quiet bsfg@plant-a",
    "unpacking": f"ls {PACKAGES}/*/*.dpkg-new 2>/dev/null | grep -q .",
    "compiling": f"test -e opt/bsfg/.installing && ls {PACKAGES}/agent/__pycache__/*.pyc 2>/dev/null | grep -q .",
}
START_S = 120


def finish(gateway: Gateway, version: str, before: tuple[int, int], seen: int) -> int:
    """Type the command of the page; the node collects again without being started by hand, and has every fact."""
    do(gateway, "interrupted")
    assert (version == "0.2.0") == ("0.2.0" in gateway.run("bsfg --version"))
    assert gateway.run("dpkg --audit; find /opt/bsfg -name '*.dpkg-*' -o -name .installing") == ""
    running = "systemctl is-active --quiet bsfg@plant-a"
    wait_until(lambda: gateway.try_(running).status == 0, "the node runs again", START_S)
    seen = wait_for_more(gateway, seen)
    low, high = offsets(gateway)
    assert low == before[0]
    assert high > before[1]
    return seen


@ONE
def test_an_interrupted_upgrade_of_a_running_node_is_finished_by_the_second_try(
    gateway: Gateway, deb: Path, tmp_path: Path
) -> None:
    """dpkg killed while it stops the node, unpacks and compiles, then the power cut in each of these: half of a version
    never runs, and the second try ends with a node that has all facts and collects."""
    packages = [deb, next_version(deb, tmp_path)]
    with boiler(gateway, tmp_path) as device:
        with gateway.boot():
            put_on_stick(gateway, deb)
            do(gateway, "deb")
            do(gateway, "source", device.port)
            seen = wait_for_more(gateway, 0)
            for condition in MOMENTS.values():
                packages.reverse()
                before = offsets(gateway)
                put_on_stick(gateway, packages[0])
                gateway.kill_when(f"dpkg -i {STICK}/{packages[0].name}", condition)
                refuses_in_parts(gateway)
                seen = finish(gateway, packages[0].name.partition("+")[0].partition("_")[2], before, seen)
        for condition in MOMENTS.values():
            packages.reverse()
            with gateway.boot():
                seen = wait_for_more(gateway, count_reads(gateway))
                before = offsets(gateway)
                put_on_stick(gateway, packages[0])
                gateway.kill_when(f"dpkg -i {STICK}/{packages[0].name}", condition, is_power_cut=True)
            with gateway.boot():
                refuses_in_parts(gateway)
                seen = finish(gateway, packages[0].name.partition("+")[0].partition("_")[2], before, seen)
                gateway.run("systemctl stop bsfg@plant-a")
                gateway.run(f"bsfg store verify {CONFIG}")


def refuses_in_parts(gateway: Gateway) -> None:
    """The program is whole, or says what to do."""
    half = gateway.try_("bsfg --version")
    assert half.status == 0 or "dpkg --configure -a" in half.text, half.text
