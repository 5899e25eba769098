"""The page in a browser: it draws, tells what is under the pointer, and fits a phone.

The pictures in the documentation are made here too:

    CONVOY_SCREENSHOTS=docs python -m pytest tests/report/test_page.py
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from convoy.report.notebook import display_data
from convoy.report.page import make_page
from tests import parts
from tests.browser import in_browser

SCREENSHOTS = os.environ.get("CONVOY_SCREENSHOTS")
READY = "document.documentElement?.dataset.ready"
DRAWN = "[...document.querySelectorAll('{} canvas')].every((c) => c.dataset.drawn)"

pytestmark = [pytest.mark.slow, parts.needs("Chromium")]


def open_page(page, tmp_path, steps, **size):
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")

    async def checked(tab):
        await tab.until(DRAWN.format(""))
        await steps(tab)
        assert tab.errors == []

    asyncio.run(in_browser(file.as_uri(), tmp_path / "browser", checked, ready=READY, **size))


async def colours(tab, canvas):
    """Return how many colours a canvas has: one that nothing was drawn on has a single one."""
    return await tab.evaluate(
        f"(() => {{ const c = document.querySelector({canvas!r}); "
        "const ink = c.getContext('2d'), found = new Set(); "
        "const d = ink.getImageData(0, 0, c.width, c.height).data; "
        "for (let i = 0; i < d.length; i += 4) found.add(`${d[i]},${d[i+1]},${d[i+2]},${d[i+3]}`);"
        "return found.size; })()"
    )


async def place(tab, selector):
    """Scroll to an element; returns its left, top, width and height in the window."""
    return await tab.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); "
        "e.scrollIntoView({block: 'center', behavior: 'instant'}); "
        "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )


async def tip_over(tab, selector, x, y):
    """Move the pointer over a share of an element's size; returns what is told there."""
    left, top, width, height = await place(tab, selector)
    await tab.move(left + x * width, top + y * height)
    return await tab.evaluate(
        "(({hidden, textContent}) => hidden ? '' : textContent)(document.getElementById('tip'))"
    )


async def swept(tab, selector, y, hits):
    """Move the pointer from left to right until something is told; returns that."""
    for step in range(1, 100):
        text = await tip_over(tab, selector, step / 100, y)
        if hits in text:
            return text
    raise AssertionError(f"nothing says {hits!r}")


def test_one_run_is_drawn_and_tells_its_values(staged, tmp_path):
    _, _, report = staged
    update = report.parts["pipelines"][-1]

    async def steps(tab):
        for section in ("timeline", "pipeline", "memory", "metrics"):
            assert await colours(tab, f"#{section} canvas") > 4
        # Of a row's bars, something under the pointer has its kind and time.
        assert "fit" in await swept(tab, "#timeline canvas", 0.3, "fit")
        assert "samples/s" in await swept(tab, "#timeline canvas", 0.88, "train")
        told = await swept(tab, "#pipeline canvas", 0.5, "stage 0")
        assert "micro-batch" in told
        assert "operation" in await tip_over(tab, "#memory canvas", 0.5, 0.5)
        assert "temporary" in await tip_over(tab, "#memory .stack", 0.01, 0.5)
        assert "training: 0." in await tip_over(tab, "#metrics canvas", 0.6, 0.5)
        shown = await tab.evaluate("document.querySelector('#pipeline').innerText")
        for kind in ("measured", "simulated"):
            assert f"bubble {100 * update[kind]['bubble']:.1f} %" in shown
        kernels = await tab.evaluate("document.querySelector('#convolutions').innerText")
        assert all(layer in kernels for layer in ("stem", "down"))

    open_page(make_page(report), tmp_path, steps, width=1200, height=900, mobile=False)


def test_zooming_shows_a_part(recorded, tmp_path):
    _, _, report = recorded

    async def span(tab):
        return await tab.evaluate("(() => { const v = plots[0].view; return v.to - v.from; })()")

    async def steps(tab):
        left, top, width, height = await place(tab, "#timeline canvas")
        whole = await span(tab)
        assert whole == pytest.approx(report.run["seconds"])
        x, y = left + width / 2, top + height / 2
        await tab.move(x, y, "mouseWheel", deltaX=0, deltaY=-300, modifiers=2)
        near = await span(tab)
        assert near < whole / 2
        await tab.evaluate("document.querySelector('#timeline [aria-label=\"Zoom in\"]').click()")
        assert await span(tab) == pytest.approx(near / 2)
        before = await tab.evaluate("plots[0].view.from")
        await tab.move(x, y, "mousePressed", button="left", clickCount=1)
        await tab.move(x - 60, y, button="left", buttons=1)
        await tab.move(x - 60, y, "mouseReleased", button="left", clickCount=1)
        assert await tab.evaluate("plots[0].view.from") > before
        await tab.evaluate("document.querySelector('#timeline canvas').focus()")
        await tab.do("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
        assert await span(tab) == pytest.approx(whole)
        # A wheel without a key stays the page's own.
        await tab.move(x, y, "mouseWheel", deltaX=0, deltaY=-300)
        assert await span(tab) == pytest.approx(whole)

    open_page(make_page(report), tmp_path, steps, width=1200, height=900, mobile=False)


def test_two_runs_stand_beside_each_other_on_a_phone(recorded, staged, tmp_path):
    (_, _, first), (_, _, second) = recorded, staged

    async def steps(tab):
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        head = await tab.evaluate("document.querySelector('#figures thead').innerText")
        assert head.split() == ["A", "B", "change"]
        rows = await tab.evaluate(
            "[...document.querySelectorAll('#figures tr')].map((row) => row.innerText)"
        )
        steps_row = next(row for row in rows if row.startswith("steps"))
        assert steps_row.split() == ["steps", "16", "16", "+0.0", "%"]
        assert await tab.evaluate("document.querySelectorAll('#timeline canvas').length") == 2
        for section in ("timeline", "memory", "metrics"):
            assert await colours(tab, f"#{section} canvas") > 4
        await tab.evaluate("document.querySelector('#memory select').value = 'train'")
        told = await tip_over(tab, "#metrics canvas", 0.5, 0.5)
        assert "A training" in told
        assert "B training" in told
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        before = await tab.evaluate("colour('back')")
        await tab.do("Emulation.setEmulatedMedia", features=dark)
        await tab.until(f"colour('back') !== {before!r}")

    open_page(make_page(first, second), tmp_path, steps, width=390)


def test_the_confusion_matrix_and_mistakes_are_shown(recorded, tmp_path):
    _, _, report = recorded
    dot = (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgG"
        "AWjR9awAAAABJRU5ErkJggg=="
    )
    mistake = {
        "name": "cat/1.jpg",
        "label": 0,
        "predicted": 1,
        "probability": 0.93,
        "picture": dot,
    }
    classified = replace(
        report,
        classification={
            "class_names": ["cat", "<b>dog</b>"],
            "matrix": [[7, 1], [0, 4]],
            "mistakes": [mistake],
        },
    )

    async def steps(tab):
        section = "document.getElementById('classification')"
        shown = await tab.evaluate(f"{section}.innerText")
        # Names are shown as they are, never as markup.
        assert "<b>dog</b> (93.0 %), not cat" in shown
        assert "87.5 %" in shown
        width = await tab.evaluate(f"{section}.querySelector('img').naturalWidth")
        assert width == 1

    open_page(make_page(classified), tmp_path, steps)


def test_a_run_that_has_only_begun_has_a_page(recorded, tmp_path):
    _, _, report = recorded
    begun = type(report)(
        report.folder,
        report.run | {"state": "running", "runs": [], "totals": {"host": {}, "devices": {}}},
        [],
        {name: [] for name in report.parts},
    )

    async def steps(tab):
        shown = await tab.evaluate("document.body.innerText")
        assert "running when this page was made" in shown

    open_page(make_page(begun), tmp_path, steps)


def test_a_run_that_can_be_resumed_does_not_look_like_one_that_failed(recorded, tmp_path):
    _, _, report = recorded
    told = "Stopped by SIGINT; checkpoint to resume from: here"
    stopped = replace(
        report,
        run=report.run
        | {"state": "stopped", "runs": [one | {"stopped": told} for one in report.run["runs"]]},
    )

    async def steps(tab):
        badge = "document.querySelector('.state')"
        assert await tab.evaluate(f"{badge}.textContent") == "preempted; can be resumed"
        assert await tab.evaluate(f"{badge}.title") == told
        colour = f"getComputedStyle({badge}).color"
        neutral = await tab.evaluate(colour)
        await tab.evaluate(f"{badge}.classList.add('failed')")
        assert await tab.evaluate(colour) != neutral

    open_page(make_page(stopped), tmp_path, steps)


def test_a_long_layer_name_leaves_room_for_numbers_on_a_phone(recorded, tmp_path):
    _, _, report = recorded
    name = "compile_loss/sparse_categorical_crossentropy"
    programs = [
        program | {"operations": [row | {"layer": name} for row in program["operations"]]}
        for program in report.programs
    ]

    async def steps(tab):
        cells = "[...document.querySelectorAll('#operations-table tbody tr:first-child td')]"
        assert await tab.evaluate(f"{cells}[0].textContent") == name
        ends = await tab.evaluate(f"{cells}.map((cell) => cell.getBoundingClientRect().right)")
        assert ends[3] <= 350  # count, and then some of the work
        # The name stays when the rest is scrolled.
        box = "document.querySelector('#operations-table').parentElement"
        await tab.evaluate(f"{box}.scrollLeft = 500")
        assert await tab.evaluate(f"{cells}[0].getBoundingClientRect().left") >= 0

    open_page(make_page(replace(report, programs=programs)), tmp_path, steps, width=390)


@pytest.mark.skipif(not SCREENSHOTS, reason="makes the pictures in the documentation")
def test_pictures_for_the_documentation(tmp_path):
    from tests.report.pictures import reports

    first, second = reports(tmp_path)
    folder = Path(SCREENSHOTS)

    async def part(tab, name, selector, margin=16):
        box = await tab.evaluate(
            f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect(); "
            "return [r.left + scrollX, r.top + scrollY, r.width, r.height]; })()"
        )
        left, top, width, height = box
        clip = {"x": max(0, left - margin), "y": max(0, top), "width": width + 2 * margin}
        await tab.screenshot(folder / name, **clip, height=min(height, 1100))

    async def steps(tab):
        height = await tab.evaluate("document.documentElement.scrollHeight")
        await tab.resize(1100, height, mobile=False)
        await tab.until(DRAWN.format(""))
        await part(tab, "report-pipeline.png", "#pipeline")
        await part(tab, "report-memory.png", "#memory")

    async def both(tab):
        await tab.screenshot(folder / "report-compare.png", x=0, y=0, width=1100, height=900)

    async def phone(tab):
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await tab.do("Emulation.setEmulatedMedia", features=dark)
        await place(tab, "#timeline")
        await tab.evaluate("document.querySelector('#timeline').scrollIntoView()")
        await swept(tab, "#timeline canvas", 0.88, "train")
        await tab.screenshot(folder / "report-phone.png")

    open_page(make_page(second), tmp_path, steps, width=1100, height=900, mobile=False)
    open_page(make_page(first, second), tmp_path, both, width=1100, height=900, mobile=False)
    open_page(make_page(first), tmp_path, phone, width=390, height=780)


def test_in_the_frame_of_a_notebook_links_move_the_page(staged, tmp_path):
    _, _, report = staged
    frame = display_data(report)["text/html"]
    assert 'sandbox="allow-scripts"' in frame
    file = tmp_path / "cell.html"
    # Without the sandbox, the test can look into the frame.
    file.write_text(frame.replace('sandbox="allow-scripts"', ""), encoding="utf-8")
    inner = "document.querySelector('iframe').contentDocument"

    async def steps(tab):
        link = f"{inner}.querySelector('nav a[href=\"#memory\"]')"
        await tab.evaluate(f"{link}.click()")
        await tab.until(f"Math.abs({inner}.getElementById('memory').getBoundingClientRect().y) < 1")
        assert tab.errors == []

    ready = f"document.querySelector('iframe') && {inner}?.documentElement?.dataset.ready"
    asyncio.run(in_browser(file.as_uri(), tmp_path / "browser", steps, 1000, ready=ready))
