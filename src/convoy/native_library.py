"""Location of shared libraries that Python distributions install."""

from importlib import metadata
from pathlib import Path


def installed_file(distribution: str, name: str) -> Path | None:
    """Return the path of a file that a distribution installed; `None` if there is none.

    The list of installed files is searched, which works for wheels and for editable installs.

    Args:
        distribution: name of the distribution.
        name: name of the file, without folders.
    """
    try:
        files = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == name)
    return next((path.resolve() for path in found if path.exists()), None)
