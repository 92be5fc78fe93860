"""Every gateway profile can be read, is complete, says where its figures come from, and carries a plausible load."""

import re
from pathlib import Path

import pytest

from agent.health.hardware import Load, ProfileError, assess, parse_profile

HARDWARE = Path(__file__).resolve().parents[2] / "hardware"
FILES = sorted(HARDWARE.glob("*.toml"))
LOAD = Load(facts_per_s=1_000)


@pytest.fixture
def text() -> str:
    """The text of a profile that is known to be good."""
    return (HARDWARE / "siemens-iot2050-advanced.toml").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_profile_keeps_the_rules(file: Path) -> None:
    """The file is read without a problem, bears its own name, and names known kinds."""
    profile = parse_profile(file.read_text(), file.name)
    assert profile.gateway.name == file.stem
    assert profile.gateway.architecture in {"amd64", "arm64"}
    assert profile.gateway.real_time_clock in {"battery", "capacitor", "none"}
    assert profile.storage.kind in {"emmc", "sd", "ssd", "nvme"}
    assert profile.storage.system_bytes < profile.storage.capacity_bytes
    assert profile.storage.write_amplification >= 1
    assert profile.storage.sync_p50_ms <= profile.storage.sync_p99_ms
    assert {mode for port in profile.serial_port for mode in port.modes} <= {"rs232", "rs422", "rs485"}
    assert {port.zone for port in profile.network_port} <= {"plant", "idmz", "enterprise"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_profile_answers_for_a_plausible_load(file: Path) -> None:
    """A thousand facts a second leave a day and more, and years; nothing in the answer is absurd."""
    fit = assess(parse_profile(file.read_text()), LOAD)
    assert fit.hours_that_fit > 24
    assert 1 < fit.flash_years < 1_000
    assert fit.bytes_stored_per_day == pytest.approx(1_000 * 9 * 86_400)


def test_the_estimate_equals_a_calculation_by_hand(text: str) -> None:
    """The estimate equals the same sum done on paper: 4 commits of 31,000 bytes and 9,000 bytes 2.4 times, a second."""
    fit = assess(parse_profile(text), LOAD)
    assert fit.bytes_written_per_day == pytest.approx((4 * 31_000 + 9_000 * 2.4) * 86_400)
    assert fit.hours_that_fit == pytest.approx((16e9 * 0.9 - 6e9) / 9_000 / 3_600)
    assert fit.flash_years == pytest.approx(16e9 * 3_000 / (145_600 * 3 * 86_400 * 365))
    assert fit.sync_share == pytest.approx(50 / 250)


def test_commits_wear_more_than_facts(text: str) -> None:
    """Twice the facts cost less flash than twice the commits; a trickle commits no oftener than it has facts."""
    profile = parse_profile(text)
    years = assess(profile, LOAD).flash_years
    assert assess(profile, Load(2_000)).flash_years > assess(profile, Load(1_000, commit_interval_ms=125)).flash_years
    assert assess(profile, Load(0.1, commit_interval_ms=1)).flash_years > years


def test_insufficient_hardware_is_reported(text: str) -> None:
    """Too much load, too many commits and too slow a disk each give their own concern; a smaller load removes it."""
    profile = parse_profile(text)
    flood = assess(profile, Load(1_000_000, commit_interval_ms=10)).concerns
    assert [concern.split(" ")[0] for concern in flood] == ["0", "the", "a"]
    assert assess(profile, Load(100, commit_interval_ms=5_000)).concerns == ()


def test_weaknesses_of_the_gateway_are_reported(text: str) -> None:
    """No watchdog, no battery clock and an unprotected disk are told with what follows from them, whatever the load."""
    bare = re.sub(r"\[watchdog\]\n(.+\n)+", "", text).replace('"battery"', '"none"')
    bare = re.sub(r'"watchdog.+\n', "", bare)
    advice = " ".join(assess(parse_profile(bare), LOAD).advice)
    assert "no hardware watchdog" in advice
    assert "no battery clock" in advice
    assert "may lie about a sync" in advice
    good = text.replace("power_loss_protected = false", "power_loss_protected = true")
    assert assess(parse_profile(good), LOAD).advice == ()


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("cpu_cores = 4", "cpu_cores = 4\ncolour = 1", "gateway.colour: is not known"),
        ("cpu_cores = 4", "", "gateway.cpu_cores: is missing"),
        ("cpu_cores = 4", 'cpu_cores = "four"', "gateway.cpu_cores: 'four' cannot be used"),
        ("erase_cycles = 3_000", "erase_cycles = -1", "storage.erase_cycles: -1 cannot be used"),
        ('"storage.erase_cycles" =', '"storage.erase_circles" =', "does not say where storage.erase_cycles comes from"),
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


def test_the_readme_lists_every_key() -> None:
    """hardware/README.md explains each key that a profile uses."""
    readme = (HARDWARE / "README.md").read_text()
    keys = {key for file in FILES for key in re.findall(r"^([a-z_0-9]+) =", file.read_text(), re.MULTILINE)}
    assert {key for key in keys if f"`{key}`" not in readme} == set()
