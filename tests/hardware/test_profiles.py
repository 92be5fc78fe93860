"""Every gateway profile can be read, says where its figures come from, and is chosen on its machine."""

import re
from pathlib import Path

import pytest

from agent.hardware.profile import Profile, ProfileError, choose, parse_profile

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "agent" / "hardware" / "profiles").glob("*.toml"))
ALL = [parse_profile(file.read_text(), file.name) for file in FILES]


@pytest.fixture
def text() -> str:
    """The text of a profile that is known to be good."""
    return next(file for file in FILES if file.stem == "siemens-iot2050-advanced").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_profile_keeps_the_rules(file: Path) -> None:
    """The file is read without a problem, bears its own name, names known kinds, and can be chosen."""
    profile = parse_profile(file.read_text(), file.name)
    assert profile.gateway.name == file.stem
    assert profile.gateway.architecture in {"amd64", "arm64", "armhf"}
    assert profile.gateway.real_time_clock in {"battery", "capacitor", "none", None}
    assert profile.storage.kind in {"emmc", "sd", "ssd", "nvme", "virtual", None}
    assert (profile.storage.write_amplification or 1) >= 1
    assert {mode for port in profile.serial_port for mode in port.modes} <= {"rs232", "rs422", "rs485"}
    assert {port.zone for port in profile.network_port} <= {"plant", "idmz", "enterprise"}
    assert profile.match.device_tree or profile.match.dmi or profile.match.otherwise
    assert not any(source.startswith("assumed") for source in profile.figures_from.values())


def chosen(architecture: str, device_tree: tuple[str, ...] = (), dmi: tuple[str, ...] = ()) -> str | None:
    """The name of the profile for a machine that calls itself this."""
    profile = choose(ALL, architecture, device_tree, dmi)
    return profile.gateway.name if profile else None


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
    trees = [(one, profile.gateway.name) for profile in ALL for one in profile.match.device_tree]
    assert not [(a, b) for a, name in trees for b, other in trees if name != other and a.startswith(b)]
    general = [profile.gateway.architecture for profile in ALL if profile.match.otherwise]
    assert len(general) == len(set(general))


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("cpu_cores = 4", "cpu_cores = 4\ncolour = 1", "gateway.colour: is not known"),
        ('architecture = "arm64"', "", "gateway.architecture: is missing"),
        ("cpu_cores = 4", 'cpu_cores = "four"', "gateway.cpu_cores: 'four' cannot be used"),
        ("cpu_cores = 4", "cpu_cores = -1", "gateway.cpu_cores: -1 cannot be used"),
        ('"gateway.cpu_cores" =', '"gateway.cpu_colours" =', "does not say where gateway.cpu_cores comes from"),
        ("[[serial_port]]", "[[parallel_port]]", "parallel_port: is not a part of a profile"),
        ('modes = ["rs232", "rs422", "rs485"]', 'modes = ["rs232", 5]', "serial_port[0].modes[1]: 5 cannot be used"),
        ("[storage]", "[storage", "is not TOML"),
        ("[gateway]", "[gate]", "gateway: is missing"),
    ],
)
def test_a_bad_profile_is_refused(text: str, old: str, new: str, told: str) -> None:
    """A key that is missing, unknown, of another type, negative or unexplained is refused with its path."""
    assert old in text
    with pytest.raises(ProfileError, match=re.escape(told)):
        parse_profile(text.replace(old, new, 1))


def test_a_figure_may_be_left_out(text: str) -> None:
    """A profile without a figure is read, and has none: nobody has to guess one."""
    less = re.sub(r".*(cpu_cores|capacity_bytes).*\n", "", text)
    profile = parse_profile(less)
    assert isinstance(profile, Profile)
    assert (profile.gateway.cpu_cores, profile.storage.capacity_bytes) == (None, None)


def test_the_readme_lists_every_key() -> None:
    """hardware/README.md explains each key that a profile uses."""
    readme = (ROOT / "hardware" / "README.md").read_text()
    keys = {key for file in FILES for key in re.findall(r"^([a-z_0-9]+) =", file.read_text(), re.MULTILINE)}
    assert {key for key in keys if f"`{key}`" not in readme} == set()
