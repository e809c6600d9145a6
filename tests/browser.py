"""Chromium without a window, by its debugging pipe: what a page looks like at a width and in light or dark."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-device-scale-factor=1", "--remote-debugging-pipe",
)  # fmt: skip


def found() -> str | None:
    """Path of a Chromium on this machine."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


@dataclass
class Browser:
    """One tab. Fields: wanted, ours to it; said, its to us; session, of the tab."""

    wanted: int
    said: int
    session: str = ""
    _number: int = 0
    _rest: bytes = b""

    def call(self, method: str, **params: Any) -> Any:
        """The result of a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.wanted, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            read = os.read(self.said, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def show(self, page: Path, width: int, height: int, scheme: Literal["light", "dark"] = "light") -> None:
        """Load a file into a window of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, whole: bool = True) -> bytes:
        """PNG of the whole page, or of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])


@contextmanager
def browser(path: str, folder: Path) -> Iterator[Browser]:
    """A browser for the duration of a body. Args: folder, for its profile."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()

    def place() -> None:  # the browser reads from 3 and writes to 4
        os.dup2(from_us, 13)
        os.dup2(to_us, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    process = subprocess.Popen(
        [path, *_ARGUMENTS, f"--user-data-dir={folder}", "about:blank"], preexec_fn=place, close_fds=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(from_us)
    os.close(to_us)
    try:
        tab = Browser(to_browser, from_browser)
        target = tab.call("Target.createTarget", url="about:blank")["targetId"]
        tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab.call("Page.enable")
        yield tab
        tab.session = ""
        tab.call("Browser.close")
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
