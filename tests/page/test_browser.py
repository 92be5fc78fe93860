"""The page in a real browser, over the zones of the demonstration: it opens, it is live, and it says what is wrong.

With PAGE_PICTURES=1 the pictures of the README and the documents are made anew.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo import layout
from agent.demo.processes import Child
from agent.demo.scenario import RunningZones, run_zones
from tests.page.zones import Zones, gateway, with_trouble
from tests.support.chromium import AXE, Chromium, chromium
from tests.waiting import wait_until

pytestmark = pytest.mark.system

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
PAGES = (
    "/fleet?all=1",
    "/zone/enterprise",
    "/zone/plant-a",
    "/tags",
    "/tag?zone=plant-a&tag=tag:plant/pressure_01",
    "/incidents",
    "/help",
)


@pytest.fixture(scope="module")
def zones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZones]:
    """Plant, IDMZ and enterprise, each with a node, and the page of the enterprise."""
    with run_zones(tmp_path_factory.mktemp("zones"), keep=False) as made:
        yield made


@pytest.fixture
def browser() -> Iterator[Chromium]:
    """A window, whose console must stay empty."""
    with chromium() as window:
        yield window


def address(zones: RunningZones, path: str) -> str:
    """A page's address."""
    return zones.page.rstrip("/") + path


def test_the_page_opens_and_values_change(zones: RunningZones, browser: Chromium) -> None:
    """The fleet is found at /, the search while typing, a value changes without a reload, and the console is empty."""
    browser.open(address(zones, "/"))
    browser.wait_text("3 zones", "ZONES")
    browser.open(address(zones, "/fleet?all=1"))
    browser.run(
        "const s = document.querySelector('[data-search]'); s.value = 'idmz'; s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.wait_text("idmz", no="plant-a")
    browser.open(address(zones, "/tags"))
    browser.run("window.stays = true")
    browser.wait_text("plant/count_01")
    before = browser.text
    browser.wait_text("plant/count_01", no=before)
    assert browser.run("return window.stays"), "it was loaded again"
    assert browser.complaints() == []


def test_a_trend_is_zoomed_by_dragging(zones: RunningZones, browser: Chromium) -> None:
    """A tag of the plant has a curve at the enterprise; dragging over it shows a part, and its address holds the
    view. A double click leads back to the whole, and no further."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver import ActionChains

    def dragged() -> bool:
        with contextlib.suppress(StaleElementReferenceException):  # a newer picture has taken its place
            picture = browser.driver.find_element("css selector", ".trend svg")
            hand = ActionChains(browser.driver).move_to_element_with_offset(picture, 100, 0).click_and_hold()
            hand.move_by_offset(150, 0).release().perform()
        return "from=" in browser.driver.current_url

    browser.open(address(zones, "/tags?q=pressure_01"))
    browser.wait_text("plant/pressure_01")
    browser.run("document.querySelector('tbody th a').click()")
    browser.wait_text("least to greatest".upper())
    assert browser.run("return document.querySelectorAll('.trend path').length") > 0
    whole = browser.driver.current_url
    clicked = "document.querySelector('.trend svg').dispatchEvent(new MouseEvent('dblclick'))"
    browser.run(clicked)
    wait_until(dragged, "a part of the trend")
    browser.wait_text("samples".upper())
    wait_until(lambda: browser.run(clicked) or browser.driver.current_url == whole, "the whole trend")
    browser.run(clicked)
    browser.wait_text("samples".upper())
    assert browser.driver.current_url == whole
    assert browser.complaints() == []


@pytest.mark.parametrize("path", PAGES)
def test_everybody_can_read_it(zones: RunningZones, browser: Chromium, path: str) -> None:
    """axe finds nothing, and nothing is wider than the window, on a telephone and on a wall, light and dark."""
    browser.open(address(zones, path))
    is_readable(browser)
    assert browser.complaints() == []


def is_readable(browser: Chromium) -> None:
    """The present page, in four looks."""
    if not AXE.exists():
        pytest.skip("axe-core is not in build/foreign (make foreign)")
    for width, dark in ((360, False), (1920, True), (1280, False), (360, True)):
        browser.look(width, dark=dark)
        assert browser.violations() == [], (width, dark)
        assert not browser.is_wider_than_the_window(), (width, dark)
    browser.look(1280)


def test_the_keyboard_is_enough(zones: RunningZones, browser: Chromium) -> None:
    """From the fleet to a zone, its tags and a part of a trend, by Tab, Enter and typing; the first key skips the
    navigation."""
    from selenium.webdriver import ActionChains, Keys

    def press(*keys: str) -> None:
        ActionChains(browser.driver).send_keys(*keys).perform()

    def tab_to(selector: str) -> None:
        for _ in range(60):
            press(Keys.TAB)
            if browser.run("return document.activeElement.matches(arguments[0])", selector):
                return
        raise AssertionError(f"no {selector} is reached")

    browser.open(address(zones, "/fleet?all=1"))
    press(Keys.TAB)
    assert browser.run("return document.activeElement.textContent") == "Skip to the content"
    assert browser.run("return document.activeElement.getBoundingClientRect().left") >= 0, "it is seen"
    tab_to("[data-search]")
    press("plant")
    browser.wait_text("plant-a", no="idmz")
    tab_to("tbody th a")
    press(Keys.ENTER)
    browser.wait_text("SOURCES, WORST FIRST")
    tab_to("tbody th a[href*=press]")
    press(Keys.ENTER)
    browser.wait_text("LATEST VALUES", "plant/pressure_01")
    tab_to("a[href*=pressure_01]")
    press(Keys.ENTER)
    browser.wait_text("least to greatest".upper())
    tab_to("figure")
    press("+")
    wait_until(lambda: "from=" in browser.driver.current_url, "a part of the trend")
    assert browser.complaints() == []


def test_a_dead_node_and_a_dead_page(zones: RunningZones, browser: Chromium) -> None:
    """The page of a killed node says so and recovers with it; an open page whose server is gone says that it is old."""
    browser.open(address(zones, "/zone/enterprise"))
    browser.wait_text("enterprise is", no="does not answer")
    zones.nodes[layout.ENTERPRISE].kill()
    browser.wait_text("enterprise is broken: the node does not answer", "systemctl status bsfg@enterprise")
    is_readable(browser)
    zones.nodes[layout.ENTERPRISE].start()
    browser.wait_text("enterprise is", no="does not answer")
    assert browser.complaints() == []
    with _page(zones) as page:
        browser.open(page.wait_line("page: ").removeprefix("page: "))
        browser.wait_text("as of")
        page.kill()
        browser.wait_text("This page hears nothing from its server")
        is_readable(browser)


def test_a_broker_that_is_cut_off(zones: RunningZones, browser: Chromium) -> None:
    """The enterprise's own page names the cause first, what follows from it below, and what to do; then it recovers."""
    browser.open(address(zones, "/zone/enterprise"))
    browser.wait_text("enterprise is", no="cut")
    zones.broker.freeze()
    try:
        browser.wait_text("enterprise is broken", "cut")
        status = zones.status(layout.ENTERPRISE)
        assert status is not None
        assert status["verdict"] == "broken"
        is_readable(browser)
    finally:
        zones.broker.thaw()
    browser.wait_text("enterprise is", no="cut")


def test_a_lost_device_is_seen_above(zones: RunningZones, browser: Chromium) -> None:
    """The plant's Modbus device goes: the enterprise's fleet says which zone and why, its page names the source and its
    tags; and so until it is back."""
    device = zones.plant[1]
    browser.open(address(zones, "/zone/plant-a"))
    browser.wait_text("2 of 2 sources deliver", no="TAGS WITHOUT A GOOD VALUE")
    device.stop()
    try:
        browser.open(address(zones, "/fleet"))
        browser.wait_text("of 3 zones", "source boiler: not connected")
        browser.open(address(zones, "/zone/plant-a"))
        browser.wait_text("plant-a is broken: source boiler", "TAGS WITHOUT A GOOD VALUE", "plant/unit1")
        if "PAGE_PICTURES" in os.environ:
            browser.picture(PICTURES / "zone.png")
        is_readable(browser)
    finally:
        device.start()
    browser.wait_text("plant-a is", no="source boiler: not connected")


def test_pictures_of_a_thousand_zones(tmp_path: Path, browser: Chromium) -> None:
    """A thousand zones are on one screen, the nine in trouble first; the page of one leads back by what it names."""
    import time

    from agent.fact_store import FactStore
    from agent.settings.store import StoreSettings

    (tmp_path / "state").mkdir()
    (tmp_path / "node.toml").write_text('[node]\nzone = "enterprise"\n[page]\nlisten_port = 0\n')
    trouble = {93: "lost", 7: "lost", 551: "behind", 12: "behind", 13: "behind", 600: "full", 601: "full", 700: "bad"}
    now_ms = time.time_ns() // 1_000_000
    settings = StoreSettings(commit_interval_ms=0, ballast_bytes=0)
    with FactStore.open(tmp_path / "state" / "facts.db", "enterprise", settings=settings) as store:
        ages_ms = [8_000_000 if n == 417 else -30_000 for n in range(1000)]  # ahead, for a machine at work
        made = [gateway(f"plant-{n:04}", now_ms - age_ms) for n, age_ms in enumerate(ages_ms)]
        Zones(store).send(*(with_trouble(health, trouble.get(n, "")) for n, health in enumerate(made)))
    words, where = [sys.executable, "-m", "agent.cli"], ["--config", tmp_path / "node.toml"]
    with (
        Child("node", [*words, "run", *where], tmp_path / "node.log") as node,
        Child("page", [*words, "page", *where], tmp_path / "page.log") as page,
    ):
        node.start()
        page.start()
        base = page.wait_line("page: ").removeprefix("page: ").rstrip("/")
        browser.open(f"{base}/fleet")
        browser.wait_text("3 of 1,001 zones are broken, 2 full, 4 late.", "plant-0417", "silent: no health")
        if "PAGE_PICTURES" in os.environ:
            browser.picture(PICTURES / "fleet.png")
        assert browser.run("return document.querySelectorAll('.cells li').length") == 1001
        is_readable(browser)


def test_a_page_before_there_is_anything(tmp_path: Path, browser: Chromium) -> None:
    """Where no node has ever run, each page says what is missing and what to do."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant"\n[page]\nlisten_port = 0\n')
    words = [sys.executable, "-m", "agent.cli", "page", "--config", tmp_path / "node.toml"]
    with Child("page", words, tmp_path / "page.log") as page:
        page.start()
        base = page.wait_line("page: ").removeprefix("page: ").rstrip("/")
        for path in ("/", "/fleet", "/tags", "/tag?tag=tag:x", "/incidents"):
            browser.open(base + path)
            is_readable(browser)
        browser.open(base)
        browser.wait_text("plant is broken: the node does not answer", "cannot be read")


def _page(zones: RunningZones) -> Child:
    """Another page of the enterprise, on a port of its own."""
    file = zones.folder / "second.toml"
    text = zones.configs[layout.ENTERPRISE].read_text()
    state = zones.folder / layout.ENTERPRISE / "state"
    text = text.replace('zone = "enterprise"\n', f'zone = "enterprise"\nstate_dir = "{state}"\n', 1)
    port = zones.page_ports[layout.ENTERPRISE]
    file.write_text(text.replace(f"listen_port = {port}", "listen_port = 0"))
    page = Child(
        "second page", [sys.executable, "-m", "agent.cli", "page", "--config", file], zones.folder / "second.log"
    )
    page.start()
    return page
