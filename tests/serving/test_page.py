"""The page, in a browser."""

import asyncio
import base64
import os

import pytest
from PIL import Image
from tests.browser import BROWSER, in_browser

SCREENSHOT = os.environ.get("CONVOY_SCREENSHOT")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium"),
]


async def choose(tab, file):
    document = await tab.do("DOM.getDocument")
    found = await tab.do("DOM.querySelector", nodeId=document["root"]["nodeId"], selector="#file")
    await tab.do("DOM.setFileInputFiles", files=[str(file)], nodeId=found["nodeId"])


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
        assert "available" in rows
        assert await tab.evaluate("stateOf({state: 'END', status: {}})") == "unloaded"
        told = "stateOf({state: 'END', status: {error_message: 'It is damaged.'}})"
        assert await tab.evaluate(told) == "failed"
        await choose(tab, picture)
        await tab.until("document.querySelectorAll('#classes li').length == 5")
        first = await tab.evaluate("document.querySelector('#classes li').innerText")
        assert first.split() == [best, f"{100 * scores[best]:.1f}", "%"]
        assert await tab.evaluate("!document.getElementById('picture').hidden")
        # It fits a phone: nothing sticks out to the right.
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if SCREENSHOT:
            await tab.screenshot(SCREENSHOT)
        await choose(tab, text)
        await tab.until("document.getElementById('error').textContent")
        error = await tab.evaluate("document.getElementById('error').textContent")
        assert error == "The bytes are not an image that can be read."
        assert await tab.evaluate("document.querySelectorAll('#classes li').length") == 0

    url = f"http://127.0.0.1:{server.server.port}/"
    ready = "document.getElementById('models')?.rows.length"
    asyncio.run(in_browser(url, tmp_path / "browser", steps, ready=ready))
