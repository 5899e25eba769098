"""Where the parts of a pipeline are: replicas of it, and the devices of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from convoy.engine.feed import Placement
from convoy.engine.replicate import AXIS


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
        own = [r for r, row in enumerate(self.rows) if row[0].process_index == jax.process_index()]
        self.own_rows = [self.rows[replica] for replica in own]
        """Those of this process, which starts what runs on them."""
        self.first_own = own[0] if own else 0
        self.readers = tuple(readers)
        self.left_over = tuple(devices[self.replicas * width :])

    @property
    def spans_processes(self) -> bool:
        return len(self.own_rows) < len(self.rows)

    def is_own(self, replica: int) -> bool:
        return replica - self.first_own in range(len(self.own_rows))

    @property
    def platform(self) -> str:
        return self.rows[0][0].platform

    def column(self, place: int) -> jax.sharding.Mesh:
        """Return the devices at one place of all replicas."""
        return jax.sharding.Mesh(np.array([row[place] for row in self.rows]), (AXIS,))

    def everywhere(self, tree: Any) -> list[dict[int, Any]]:
        """Copy data to every reader of every replica of this process."""
        return [{k: jax.device_put(tree, row[k]) for k in self.readers} for row in self.own_rows]

    def divided(self, block: Any) -> list[dict[int, Any]]:
        """Give each replica of this process its share of the second axis, which is the sample."""
        placed = []
        for replica, row in enumerate(self.own_rows, start=self.first_own):
            share = jax.tree.map(lambda leaf, r=replica: self._share(leaf, r), block)
            placed.append({k: jax.device_put(share, row[k]) for k in self.readers})
        return placed

    def _share(self, leaf: Any, replica: int) -> Any:
        size = leaf.shape[1] // self.replicas
        return leaf[:, replica * size : (replica + 1) * size]
