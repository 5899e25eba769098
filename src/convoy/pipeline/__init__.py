"""Pipeline parallelism: schedules as data, their validation, simulation and rendering.

`convoy.split` and `convoy.PipelineStage` split a model into stages; `runner/` trains and runs it.
"""

from convoy.pipeline.render import render_svg, render_text
from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.schedules import ALIASES, NAMES, canonical_name, generate
from convoy.pipeline.simulation import DURATIONS, simulate
from convoy.pipeline.timeline import Event, Timeline, stage_durations
from convoy.pipeline.validation import ScheduleError, validate

__all__ = [
    "ALIASES",
    "DURATIONS",
    "NAMES",
    "Action",
    "Event",
    "Kind",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "canonical_name",
    "generate",
    "render_svg",
    "render_text",
    "simulate",
    "stage_durations",
    "validate",
]
