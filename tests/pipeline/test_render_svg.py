from pathlib import Path
from xml.etree import ElementTree

from convoy.pipeline.render_svg import picture
from convoy.pipeline.schedules import generate
from convoy.pipeline.simulate import simulate

COMMITTED = Path(__file__).parents[2] / "docs" / "pipeline-timeline.svg"


def test_every_action_is_a_box_as_wide_as_it_is_long():
    timeline = simulate(generate("zero-bubble", stages=2, micro_batches=3))
    root = ElementTree.fromstring(picture(timeline))
    boxes = [box for box in root if box.tag.endswith("rect")][1:]
    assert len(boxes) == len(timeline.events)
    for box, event in zip(boxes, timeline.events, strict=True):
        part = float(box.get("width")) / (760 - 74 - 6)
        assert abs(part - (event.end - event.start) / timeline.seconds) < 1e-3


def test_the_picture_in_the_readme_is_what_is_drawn():
    drawn = picture(simulate(generate("1f1b", stages=4, micro_batches=8)))
    assert COMMITTED.read_text() == drawn
