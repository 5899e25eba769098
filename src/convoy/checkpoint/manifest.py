"""The schema of a checkpoint's manifest.

A checksum shows that a manifest is complete, not that Convoy wrote it. So every field is checked
before it is used: types, ranges, and names of files, which cannot leave the folder.
"""

from collections.abc import Callable
from typing import Annotated, Literal

from convoy.checkpoint.errors import DamagedError
from convoy.types import Json
from convoy_command.parser import one_line
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

FORMAT = "convoy-checkpoint"
VERSION = 1

# The only file that a manifest names; those of the arrays and of the manifest have fixed names.
MODEL = "model.json"
# NumPy's arrays have at most 64 dimensions, and JAX's fewer.
_MAX_DIMENSIONS = 32

Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, lt=1 << 63)]
Shape = Annotated[list[Size], Field(max_length=_MAX_DIMENSIONS)]


class _Schema(BaseModel):
    """A schema without conversions; unknown keys are ignored, as later versions may add some."""

    model_config = ConfigDict(strict=True, frozen=True)


class ArrayEntry(_Schema):
    """Type, shape and checksum of an array."""

    dtype: str
    shape: Shape
    sha256: Checksum


class _Callback(_Schema):
    type: str
    state: Json


class _State(_Schema):
    """The fields of a state that this package reads; some states have only a few of them."""

    weights_only: bool = False
    global_step: Size = 0
    epoch: Size = 0
    step: Size = 0
    total: Size = 0
    logs: Json = {}
    stopped: bool = False
    place: Json = {}
    random: Json = {}
    callbacks: list[_Callback] = []


class _About(_Schema):
    written: str = ""
    versions: dict[str, str | None] = {}
    optimizer: Json = {}


def _matches(schema: type[_Schema]) -> Callable[[Json], Json]:
    def check(value: Json) -> Json:
        schema.model_validate(value)
        return value

    return check


class Manifest(_Schema):
    """The content of a manifest.

    Attributes:
        format: name of the format.
        version: version of the format.
        name: name of the checkpoint's folder.
        about: information that is not part of the state, such as package versions.
        state: everything that a run needs to resume, except for arrays.
        arrays: arrays by name, in the order of the file.
        header: checksum of the header of the file of arrays.
        files: checksums of further files by name.
    """

    format: str
    version: int
    name: str
    about: Annotated[Json, AfterValidator(_matches(_About))]
    state: Annotated[Json, AfterValidator(_matches(_State))]
    arrays: dict[Annotated[str, Field(min_length=1)], ArrayEntry]
    header: Checksum
    files: dict[Literal["model.json"], Checksum]


def parse(body: Json) -> Manifest:
    """Return the manifest in a JSON object.

    Raises:
        DamagedError: if it is none; the message names the first field that is wrong.
    """
    try:
        return Manifest.model_validate(body)
    except ValidationError as error:
        raise DamagedError(describe_problem(error)) from None


def describe_problem(error: ValidationError) -> str:
    """Return the first problem of a validation in one line."""
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    return one_line(f"{place}: {problem['msg']}".removeprefix(": "))
