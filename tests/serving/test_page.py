"""The page, in a browser: Chromium without a window, driven by its own protocol."""

import asyncio
import base64
import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
from PIL import Image

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
SCREENSHOT = os.environ.get("CONVOY_SCREENSHOT")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium"),
]


class Tab:
    """One page of a browser."""

    def __init__(self, socket):
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

    async def evaluate(self, expression):
        answer = await self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait in the page, frame by frame, until something is true."""
        await self.evaluate(
            "new Promise((done, fail) => { const began = Date.now(); const look = () => "
            f"({expression}) ? done() : Date.now() - began > 60000 ? fail('waited too long') : "
            "requestAnimationFrame(look); look(); })"
        )

    async def choose(self, file):
        document = await self.do("DOM.getDocument")
        found = await self.do(
            "DOM.querySelector", nodeId=document["root"]["nodeId"], selector="#file"
        )
        await self.do("DOM.setFileInputFiles", files=[str(file)], nodeId=found["nodeId"])


async def in_browser(url, folder, steps, width=420):
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
                    size = {"width": width, "height": 720, "deviceScaleFactor": 1, "mobile": True}
                    await tab.do("Emulation.setDeviceMetricsOverride", **size)
                    await tab.do("Page.navigate", url=url)
                    await tab.until("document.getElementById('models')?.rows.length")
                    await steps(tab)
        finally:
            process.terminate()


def _port(process):
    for line in process.stderr:
        if b"DevTools listening on" in line:
            return line.decode().split("/")[2].split(":")[1]
    raise AssertionError("the browser did not start")


def test_a_picture_is_classified_and_other_files_are_refused(server, pictures, tmp_path):
    picture, text = tmp_path / "red.png", tmp_path / "notes.txt"
    Image.new("RGB", (64, 64), "red").save(picture)
    text.write_text("This is no image.")
    data = base64.b64encode(picture.read_bytes()).decode()
    _, answer = server.json("/v1/models/pictures:predict", {"instances": [{"b64": data}]})
    scores = dict(zip("abcde", answer["predictions"][0], strict=True))
    best = max(scores, key=scores.get)

    async def steps(tab):
        rows = await tab.evaluate("document.getElementById('models').innerText")
        assert "pictures" in rows
        assert "AVAILABLE" in rows
        await tab.choose(picture)
        await tab.until("document.querySelectorAll('#classes li').length == 5")
        first = await tab.evaluate("document.querySelector('#classes li').innerText")
        assert first.split() == [best, f"{100 * scores[best]:.1f}", "%"]
        assert await tab.evaluate("!document.getElementById('picture').hidden")
        # It fits a phone: nothing sticks out to the right.
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if SCREENSHOT:
            shot = await tab.do("Page.captureScreenshot", format="png")
            image = Image.open(io.BytesIO(base64.b64decode(shot["data"])))
            image.convert("P", palette=Image.Palette.ADAPTIVE).save(Path(SCREENSHOT))
        await tab.choose(text)
        await tab.until("document.getElementById('error').textContent")
        error = await tab.evaluate("document.getElementById('error').textContent")
        assert error == "The bytes are not an image that can be read."
        assert await tab.evaluate("document.querySelectorAll('#classes li').length") == 0

    url = f"http://127.0.0.1:{server.server.port}/"
    asyncio.run(in_browser(url, tmp_path / "browser", steps))
