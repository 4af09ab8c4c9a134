"""A headless Chromium for the tests, driven through its own protocol over two pipes: no package is needed for it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
PATIENCE_S = 240.0


class Browser:
    """One tab. `errors` collects what the pages' scripts raise, and what they are not allowed to load."""

    def __init__(self, width: int = 1280, height: int = 860) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.errors: list[str] = []
        (read_orders, self._orders), (self._answers, write_answers) = os.pipe(), os.pipe()
        # high numbers first, since one of the pipes may have the number 3 or 4 here
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read_orders, write_answers)]

        def place() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        command += [f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=place,
            close_fds=True,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (*theirs, read_orders, write_answers):
            os.close(fd)
        self._count, self._rest, self._session = 0, b"", ""
        pages = [one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self._ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._orders)
        os.close(self._answers)
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Load a page, and wait until its script has run."""
        self._ask("Page.navigate", url=url)
        self.run("new Promise(done => document.readyState === 'complete' ? done() : window.onload = done)")

    def run(self, script: str) -> Any:
        """The value of an expression, or what its promise comes to."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        order: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._count:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message
