"""Where the parts of a pipeline are: replicas of it, and the devices of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from convoy.engine.data.chunks import Placement
from convoy.engine.replica_axis import AXIS


class Placed(NamedTuple):
    """Data on the devices that read it.

    Attributes:
        shapes: and types of it, before it was divided over replicas.
        copies: by replica and place, of those in this process.
    """

    shapes: Any
    copies: dict[int, dict[int, Any]]


class PipelinePlacement(Placement):
    """Devices in rows: a row is a replica of the pipeline, a column a place in it.

    Data goes to the columns that read it: those whose stages take the model's inputs, and the last,
    which takes the targets.

    Args:
        devices: all of them; those that do not fill a row are left over.
        width: devices of one replica.
        readers: the columns that read data.
    """

    def __init__(self, devices: Sequence[jax.Device], width: int, readers: Sequence[int]) -> None:
        super().__init__(mesh=None)
        self.replicas = len(devices) // width
        self.rows = [devices[r * width : (r + 1) * width] for r in range(self.replicas)]
        self.own = [r for r, row in enumerate(self.rows) if any(map(is_here, row))]
        """The replicas that this process has a part of."""
        self.readers = tuple(readers)
        self.left_over = tuple(devices[self.replicas * width :])

    @property
    def spans_processes(self) -> bool:
        return not all(is_here(device) for row in self.rows for device in row)

    @property
    def crosses_processes(self) -> bool:
        return any(len({device.process_index for device in row}) > 1 for row in self.rows)

    def is_own(self, replica: int) -> bool:
        return replica in self.own

    @property
    def platform(self) -> str:
        return self.rows[0][0].platform

    def column(self, place: int) -> jax.sharding.Mesh:
        """Return the devices at one place of all replicas."""
        return jax.sharding.Mesh(np.array([row[place] for row in self.rows]), (AXIS,))

    def everywhere(self, tree: Any) -> Placed:
        """Copy data to every reader of every replica in this process."""
        return Placed(_shapes(tree), {r: self._to_readers(tree, r) for r in self.own})

    def divided(self, block: Any) -> Placed:
        """Give each replica in this process its share of the second axis, which is the sample."""
        copies = {}
        for replica in self.own:
            share = jax.tree.map(lambda leaf, r=replica: self._share(leaf, r), block)
            copies[replica] = self._to_readers(share, replica)
        return Placed(_shapes(block), copies)

    def _to_readers(self, tree: Any, replica: int) -> dict[int, Any]:
        row = self.rows[replica]
        return {k: jax.device_put(tree, row[k]) for k in self.readers if is_here(row[k])}

    def _share(self, leaf: Any, replica: int) -> Any:
        size = leaf.shape[1] // self.replicas
        return leaf[:, replica * size : (replica + 1) * size]


def is_here(device: jax.Device) -> bool:
    """Return whether a device is this process's."""
    return device.process_index == jax.process_index()


def _shapes(tree: Any) -> Any:
    """Return shapes and types as they are on a device."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)),
        tree,
    )
