"""The page, in a browser."""

import asyncio
import base64
import json
import os
import subprocess

import convoy
import keras
import pytest
from convoy.serving.versions import ModelConfig
from PIL import Image
from tests import parts
from tests.browser import in_browser
from tests.serving.running import running

SCREENSHOT = os.environ.get("CONVOY_SCREENSHOT")

pytestmark = [pytest.mark.slow, parts.needs("Chromium")]


TOLD = "[...document.querySelectorAll('#arrays p')].map((line) => line.innerText)"
SHOWN = "document.getElementById('{}').offsetHeight > 0"


async def choose(tab, file):
    document = await tab.do("DOM.getDocument")
    found = await tab.do("DOM.querySelector", nodeId=document["root"]["nodeId"], selector="#file")
    await tab.do("DOM.setFileInputFiles", files=[str(file)], nodeId=found["nodeId"])


def look(server, folder, steps, **how):
    url = f"http://127.0.0.1:{server.server.port}/"
    ready = "document.getElementById('models')?.rows.length"
    asyncio.run(in_browser(url, folder / "browser", steps, ready=ready, **how))


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
        assert await tab.evaluate("document.getElementById('target').innerText") == "pictures"
        lines = await tab.evaluate(TOLD)
        assert lines[0] == "half_plus_two takes arrays: see /v1/models/half_plus_two/metadata"
        assert len(lines) == 2
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
        assert error.startswith("The bytes are not an image that can be read: one of JPEG, PNG")
        assert await tab.evaluate("document.querySelectorAll('#classes li').length") == 0

    look(server, tmp_path, steps, height=800)


@pytest.fixture(scope="module")
def server_of_arrays(half_plus_two, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    image, side = keras.Input((6, 6), name="image"), keras.Input((2,), name="side")
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(image), side])
    convoy.export(
        keras.Model([image, side], keras.layers.Dense(2)(joined)), folder / "two", batch_sizes=[1]
    )
    with running([ModelConfig("half", half_plus_two), ModelConfig("two", folder / "two")]) as it:
        yield it


@pytest.mark.parametrize("width", [420, 1280])
def test_models_that_take_arrays_come_with_a_command_and_no_place_for_images(
    server_of_arrays, tmp_path, width
):
    commands = []

    async def steps(tab):
        assert not await tab.evaluate(SHOWN.format("drop"))
        assert not await tab.evaluate(SHOWN.format("chooser"))
        assert await tab.evaluate(TOLD) == [
            f"{name} takes arrays: see /v1/models/{name}/metadata" for name in ("half", "two")
        ]
        commands.extend(
            await tab.evaluate(
                "[...document.querySelectorAll('#arrays pre')].map((code) => code.innerText)"
            )
        )
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")

    look(server_of_arrays, tmp_path, steps, width=width, mobile=width < 1000)
    # They can be pasted as they are.
    answers = [
        json.loads(subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout)
        for line in commands
    ]
    assert answers[0] == {"predictions": [3.0]}
    assert [len(row) for row in answers[1]["predictions"]] == [2]


def test_the_model_that_is_asked_is_always_named(pictures, tmp_path):
    picture = tmp_path / "red.png"
    Image.new("RGB", (64, 64), "red").save(picture)
    models = [ModelConfig(name, pictures[0]) for name in ("first", "second")]

    async def steps(tab):
        assert await tab.evaluate(SHOWN.format("chooser"))
        assert await tab.evaluate("document.getElementById('target').innerText") == "first"
        await choose(tab, picture)
        await tab.until("document.querySelectorAll('#classes li').length == 5")
        await tab.evaluate(
            "const select = document.getElementById('model'); select.value = 'second'; "
            "select.dispatchEvent(new Event('change'))"
        )
        # What the first has answered is not shown as the second's.
        assert await tab.evaluate("document.getElementById('target').innerText") == "second"
        assert await tab.evaluate("document.querySelectorAll('#classes li').length") == 0
        await choose(tab, picture)
        await tab.until("document.querySelectorAll('#classes li').length == 5")
        assert await tab.evaluate("document.getElementById('model').value") == "second"

    with running(models) as server:
        look(server, tmp_path, steps)
