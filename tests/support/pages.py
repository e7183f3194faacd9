"""A headless Chromium on Dagster's UI. Needs ``chromium`` and ``chromedriver``."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.common.by import By

from support.dagster_dev import wait_for

SIZE = (1400, 900)
PATIENCE = 180.0
"""Seconds for a page to show what it should."""


def lacking() -> str | None:
    """What there is no browser without, if it is not installed."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} not installed; on Debian: apt-get install chromium chromium-driver"


class Pages:
    """A browser on pages that asserts what they say."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self._browser = browser

    def open(self, address: str) -> None:
        """Go to a page."""
        self._browser.get(address)

    def click(self, xpath: str) -> None:
        """Click on the first of these, once there is one."""
        found = wait_for(lambda: self._browser.find_elements(By.XPATH, xpath), f"something at {xpath}", PATIENCE)
        self._browser.execute_script("arguments[0].click()", found[0])

    def show(self, xpath: str, edge: str = "end") -> None:
        """Scroll until the last of these is at the lower (``"end"``) or upper (``"start"``) edge."""
        found = wait_for(lambda: self._browser.find_elements(By.XPATH, xpath), f"something at {xpath}", PATIENCE)
        self._browser.execute_script(f"arguments[0].scrollIntoView({{block: '{edge}'}})", found[-1])

    def read(self, *words: str) -> str:
        """All that the page says, once it says all these words."""
        missing = list(words)

        def says_all() -> str | None:
            text = self.text
            missing[:] = [word for word in words if word not in text]
            return None if missing else text

        try:
            return wait_for(says_all, f"the words of {self._browser.current_url}", PATIENCE)
        except TimeoutError as error:
            raise AssertionError(f"{error}: it does not say {missing}, but:\n{self.text}") from None

    @property
    def text(self) -> str:
        """All that the page says now, on one line."""
        return " ".join(self._browser.find_element(By.TAG_NAME, "body").text.split())

    def png(self) -> bytes:
        """A picture of what is in sight."""
        return self._browser.get_screenshot_as_png()


@contextmanager
def opened_browser() -> Iterator[Pages]:
    """A browser that keeps nothing."""
    assert (why := lacking()) is None, why
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        for option in (
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-quic",
            "disable-dev-shm-usage",
            "no-first-run",
            "disable-background-networking",
            "disable-component-update",
            "disable-sync",
            "hide-scrollbars",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{option}")
        browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        metrics = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        try:
            yield Pages(browser)
        finally:
            browser.quit()
