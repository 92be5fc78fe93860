"""Every gateway profile can be read, and is chosen on its machine."""

import re
from pathlib import Path

import pytest

from agent.cli.hardware.check import shipped_profiles
from agent.hardware.profile import ProfileError, choose, parse_profile

README = Path(__file__).resolve().parents[2] / "hardware" / "README.md"
ALL = shipped_profiles()
OWN = 'name = "own"\ntitle = "Own"\narchitecture = "arm64"\nkind = "emmc"\ncapacity_bytes = 8\n'


def chosen(architecture: str, device_tree: tuple[str, ...] = (), dmi: tuple[str, ...] = ()) -> str | None:
    """The name of the profile for a machine that calls itself this."""
    profile = choose(ALL, architecture, device_tree, dmi)
    return profile.name if profile else None


@pytest.mark.parametrize(
    "device_tree, name",
    [
        (("siemens,iot2050-advanced-pg2", "ti,am654"), "siemens-iot2050-advanced"),
        (("siemens,iot2050-basic", "ti,am654"), "siemens-iot2050-basic"),
        (("raspberrypi,4-compute-module", "brcm,bcm2711"), "raspberry-cm4"),
        (("kunbus,revpi-connect4", "brcm,bcm2711"), "revpi-connect-4"),
        (("kunbus,revpi-connect5", "brcm,bcm2712"), "generic-arm64"),
        (("kunbus,revpi-flat", "brcm,bcm2711"), "revpi-flat"),
        (("moxa,uc-8210", "fsl,imx7d"), "moxa-uc-8200"),
        (("acme,box", "brcm,bcm2711"), "generic-arm64"),
    ],
)
def test_a_board_is_recognised_by_its_device_tree(device_tree: tuple[str, ...], name: str) -> None:
    """The `compatible` strings of the kernel's device trees lead to the profile, variants of a board included."""
    assert chosen("arm64", device_tree) == name


def test_a_computer_is_recognised_by_dmi_or_its_architecture() -> None:
    """A virtual machine has its own profile; any other PC the general one; an unknown architecture none."""
    assert chosen("amd64", dmi=("QEMU", "Standard PC")) == "virtual-machine"
    assert chosen("amd64", dmi=("Microsoft Corporation", "Virtual Machine")) == "virtual-machine"
    assert chosen("amd64", dmi=("Beckhoff", "C6015")) == "generic-x86-ipc"
    assert chosen("amd64", ("",)) == "generic-x86-ipc"
    assert chosen("riscv64") is None


def test_two_profiles_never_name_one_machine() -> None:
    """No `compatible` string and no architecture without a name leads to two profiles: the choice has no order."""
    trees = [(tree, profile.name) for profile in ALL for tree in profile.device_tree]
    assert not [(a, b) for a, name in trees for b, other in trees if name != other and a.startswith(b)]
    general = [profile.architecture for profile in ALL if profile.otherwise]
    assert len(general) == len(set(general))


@pytest.mark.parametrize(
    "old, new, told",
    [
        ('kind = "emmc"', "colour = 1", "unknown field `colour`"),
        ('architecture = "arm64"', "", "required field `architecture`"),
        ("capacity_bytes = 8", 'capacity_bytes = "eight"', "$.capacity_bytes"),
        ("capacity_bytes = 8", "capacity_bytes = -1", "$.capacity_bytes"),
        ('"emmc"', '"paper"', "$.kind"),
        ('"own"', '"own', "is not TOML"),
    ],
)
def test_a_bad_profile_is_refused(old: str, new: str, told: str) -> None:
    """A key that is missing, unknown, of another type or negative is refused with its name; the rest may be left
    out."""
    assert parse_profile(OWN).erase_cycles is None
    with pytest.raises(ProfileError, match=re.escape(told)):
        parse_profile(OWN.replace(old, new, 1))


def test_the_readme_lists_every_key() -> None:
    """hardware/README.md explains each key of a profile."""
    assert [key for key in ALL[0].__struct_fields__ if f"`{key}`" not in README.read_text("utf-8")] == []
