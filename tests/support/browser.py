"""Headless Chromium, driven over its own pipe: a real page at a real address, at any width and in either theme."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.sessions import LONG

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


class Browser:
    """One tab. `complaints`: errors and messages of its console since the page was opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            *quiet,
        ]
        command = [str(CHROMIUM), *flags, f"--user-data-dir={self._folder / 'profile'}", "about:blank"]
        redirected = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "chromium", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._unread, self._tab = 0, b"", ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(LONG)

    def open(self, address: str, width: int, theme: str) -> None:
        """Show a page as a screen of this width in this theme does."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.complaints.clear()
        self.ask("Page.navigate", url=address)

    def until(self, expression: str) -> Any:
        """The value of an expression of the page, as soon as it is something."""
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            value = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"the page never came to {expression}")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._tab:
            message["sessionId"] = self._tab
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            came = self._next()
            if came.get("method") in _COMPLAINTS:
                self.complaints.append(json.dumps(came["params"]))
            if came.get("id") == self._number:
                assert "error" not in came, came
                return dict(came["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._in], [], [], LONG)[0], "Chromium does not answer"
            part = os.read(self._in, 1 << 16)
            assert part, "Chromium has ended"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(text))
