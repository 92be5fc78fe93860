"""Debian's Chromium, driven by Selenium: pages as a reader sees them, and axe, which judges whether anybody can."""

import base64
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.remote.remote_connection import RemoteConnection

from tests.waiting import wait_until

AXE = Path(__file__).resolve().parents[2] / "build/foreign/axe/node_modules/axe-core/axe.min.js"
HEIGHT_MAX = 2400
COMMAND_S_MAX = 60
"""For any answer of the browser. Selenium alone waits two minutes for one that hangs, tries four times to end it, and
leaves it running."""


class Chromium:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Take this size and colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, address: str) -> None:
        """Load a page."""
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a piece of JavaScript."""
        return self.driver.execute_script(script, *arguments)

    @property
    def text(self) -> str:
        """What a reader can read."""
        return str(self.run("return document.body.innerText"))

    def wait_text(self, *parts: str, no: str = "\0") -> None:
        """Wait until the page says all of this without being loaded again, and not `no`."""

        def says() -> bool:
            try:
                found = self.text
            except (JavascriptException, StaleElementReferenceException):
                return False
            return all(part in found for part in parts) and no not in found

        wait_until(says, f"the page to say {parts}")

    def complaints(self) -> list[str]:
        """What the console has: scripts that failed, files that the policy refused."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def is_wider_than_the_window(self) -> bool:
        """Whether the reader must scroll sideways."""
        return bool(self.run("return document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def violations(self) -> list[str]:
        """What axe finds."""
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text("utf-8")})
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document).then((found) => done(JSON.stringify(found.violations)))"
        )
        return [f"{violation['id']}: {violation['nodes'][0]['html'][:200]}" for violation in json.loads(found)]

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        found = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot",
            {"captureBeyondViewport": True, "clip": {**self._size(), "x": 0, "y": 0, "scale": 1}},
        )
        file.write_bytes(base64.b64decode(found["data"]))

    def _size(self) -> dict[str, int]:
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        return {"width": width, "height": min(height, HEIGHT_MAX)}


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser of its own, ended afterwards; the test is skipped where none is installed."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed (make system)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        service = webdriver.ChromeService(driver, popen_kw={"start_new_session": True})
        window = webdriver.Chrome(options=options, service=service)
        try:
            assert isinstance(window.command_executor, RemoteConnection)
            window.command_executor.client_config.timeout = COMMAND_S_MAX
            found = Chromium(window)
            found.look(1280)
            yield found
        finally:
            os.killpg(service.process.pid, signal.SIGKILL)  # the driver and its browser
            service.process.wait()
