"""Which replica this is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from convoy import cross_replica
from convoy.ipu.ops.groups import AXIS


def replication_index(name: str | None = None) -> Any:
    """Return the number of the replica that runs this."""
    del name
    return jax.lax.axis_index(AXIS) if cross_replica.count() > 1 else jnp.int32(0)
