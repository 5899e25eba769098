import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from convoy.pipeline import Schedule, generate, render_svg, render_text, simulate

COMMITTED = Path(__file__).parents[2] / "docs" / "pipeline-timeline.svg"


def test_every_action_is_a_box_as_wide_as_it_is_long():
    timeline = simulate(generate("zero-bubble", stages=2, micro_batches=3))
    root = ElementTree.fromstring(render_svg(timeline))
    boxes = [box for box in root if box.tag.endswith("rect")][1:]
    assert len(boxes) == len(timeline.events)
    for box, event in zip(boxes, timeline.events, strict=True):
        part = float(box.get("width")) / (760 - 74 - 6)
        assert abs(part - (event.end - event.start) / timeline.seconds) < 1e-3


def test_the_picture_in_the_readme_is_what_is_drawn():
    drawn = render_svg(simulate(generate("1f1b", stages=4, micro_batches=8)))
    assert COMMITTED.read_text() == drawn


def test_a_drawing_shows_devices_waits_and_the_bubble():
    assert render_text(simulate(generate("1f1b", 2, 2))) == (
        "device 0  0F0 0F1 .   .   0B0 --- .   0B1 ---\n"
        "device 1  .   1F0 1B0 --- 1F1 1B1 --- .   .\n"
        "bubble 33.3%, 9 units of time"
    )


def test_a_drawing_of_what_was_recorded_has_seconds():
    timeline = replace(simulate(generate("1f1b", 2, 2)), began=3.5)
    assert render_text(timeline).endswith("bubble 33.3%, 9,000.0 ms")


def test_a_caption_has_the_kinds_that_occur_and_the_bubble():
    def texts(name):
        image = render_svg(simulate(generate(name, 2, 2)), caption=True)
        return re.findall(r"<text[^>]*>(\D[^<]*)</text>", image)[2:]

    assert texts("1f1b") == ["forward", "backward", "bubble 33.3%, 9 units of time"]
    assert texts("zero-bubble")[:-1] == ["forward", "input gradient", "weight gradient"]


def test_a_box_that_is_too_narrow_for_its_number_has_none():
    timeline = simulate(generate("1f1b", 2, 100))
    assert len(re.findall(r"<text[^>]*>\d+</text>", render_svg(timeline, width=200))) == 0


def test_a_schedule_that_cannot_run_is_shown_as_its_actions_with_the_reason():
    shown = Schedule.from_csv("0B0,0F0")._repr_mimebundle_()
    assert list(shown) == ["text/plain"]
    assert shown["text/plain"].startswith("0B0,0F0\n")
