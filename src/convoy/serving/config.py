"""The configuration file of `convoy serve`: models, versions and labels."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from convoy.configuration import Configuration, Whole, read, read_yaml
from convoy.serving.versions import ModelConfig, VersionPolicy
from pydantic import BeforeValidator


def _parse_versions(value: Any) -> Any:
    if isinstance(value, VersionPolicy):
        return value
    if value == "all":
        return VersionPolicy(latest=0)
    if type(value) is int and value > 0:
        return VersionPolicy(latest=value)
    if isinstance(value, list) and value and all(type(version) is int for version in value):
        return VersionPolicy(specific=tuple(value))
    raise ValueError(
        f"{value!r} is neither `all`, nor a number of newest versions, nor a list of versions. "
        "Write one of these."
    )


@dataclass(frozen=True)
class ModelSection(Configuration):
    """A model in the file.

    Attributes:
        path: the model's folder, relative to the file.
        versions: `all`, a number of newest versions, or a list of versions.
        labels: version numbers by label.
    """

    path: str
    versions: Annotated[VersionPolicy, BeforeValidator(_parse_versions)] = field(
        default_factory=VersionPolicy
    )
    labels: dict[str, Whole] = field(default_factory=dict)


@dataclass(frozen=True)
class ServingFile(Configuration):
    """The content of the file: models by name."""

    models: dict[str, ModelSection]


def read_config(file: Path) -> list[ModelConfig]:
    """Read a configuration file.

    Raises:
        ConfigurationError: if its content is not valid.
    """
    content = read(ServingFile, read_yaml(file), f"--config {file}: ")
    return [
        ModelConfig(name, file.parent / section.path, section.versions, section.labels)
        for name, section in content.models.items()
    ]
