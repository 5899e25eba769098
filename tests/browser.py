"""Chromium without a window, driven by its own protocol."""

import asyncio
import base64
import io
import json
import shutil
import subprocess

import aiohttp
from PIL import Image

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Tab:
    """One page of a browser.

    Attributes:
        errors: what the page has written to its console as an error, or thrown.
    """

    def __init__(self, socket):
        self.errors = []
        self._socket = socket
        self._number = 0

    async def do(self, method, **parameters):
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = json.loads((await self._socket.receive()).data)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event):
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append([argument.get("value") for argument in about["args"]])
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])

    async def evaluate(self, expression):
        answer = await self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, (answer, self.errors)
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait in the page, frame by frame, until something is true."""
        await self.evaluate(
            "new Promise((done, fail) => { const began = Date.now(); const look = () => "
            f"({expression}) ? done() : Date.now() - began > 30000 ? fail('waited too long') : "
            "requestAnimationFrame(look); look(); })"
        )

    async def resize(self, width, height=720, *, mobile=True):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        await self.do("Emulation.setDeviceMetricsOverride", **size)

    async def move(self, x, y, kind="mouseMoved", **more):
        await self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    async def screenshot(self, path, **clip):
        """Save what is shown, or a part of it, in few colours."""
        more = {"clip": clip | {"scale": 1}} if clip else {}
        shot = await self.do("Page.captureScreenshot", format="png", **more)
        image = Image.open(io.BytesIO(base64.b64decode(shot["data"])))
        image.convert("P", palette=Image.Palette.ADAPTIVE).save(path)


async def in_browser(url, folder, steps, width=420, *, height=720, mobile=True, ready="true"):
    """Open a page, wait until it is ready, and take some steps in it."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            port = await asyncio.to_thread(_port, process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    pages = [p for p in await answer.json() if p["type"] == "page"]
                async with session.ws_connect(
                    pages[0]["webSocketDebuggerUrl"], max_msg_size=0
                ) as ws:
                    tab = Tab(ws)
                    await tab.do("Runtime.enable")
                    await tab.do("Log.enable")
                    await tab.resize(width, height, mobile=mobile)
                    await tab.do("Page.navigate", url=url)
                    await tab.until(ready)
                    await steps(tab)
        finally:
            process.terminate()


def _port(process):
    for line in process.stderr:
        if b"DevTools listening on" in line:
            return line.decode().split("/")[2].split(":")[1]
    raise AssertionError("the browser did not start")
