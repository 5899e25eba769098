"""Local batches of every layout of a chunk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import fetcher, local_batch_shapes

X = np.arange(12, dtype=np.float32)
ORDER = np.array([11, 3, 0, 7, 5, 1, 10, 2, 4, 6, 8, 9], np.int32)
OFFSET = np.int32(4)

CHUNKS = {
    "contiguous": Chunk("contiguous", (X, None, OFFSET), 4, 2, 2),
    "ordered": Chunk("ordered", (jnp.asarray(X), ORDER, OFFSET), 4, 2, 2),
    "block": Chunk("block", X[4:].reshape(2, 4), 4, 2, 2),
}


def expected(layout):
    samples = ORDER[4:] if layout == "ordered" else X[4:]
    return np.asarray(samples, np.float32).reshape(2, 4)


@pytest.mark.parametrize("layout", CHUNKS)
def test_fetches_a_micro_batch_by_its_index(layout):
    chunk = CHUNKS[layout]
    fetch = fetcher(chunk, replicas=1)
    for index, batch in enumerate(expected(layout)):
        np.testing.assert_array_equal(fetch(chunk.source, jnp.int32(index)), batch)


@pytest.mark.parametrize("layout", ["contiguous", "ordered"])
def test_each_replica_fetches_its_shard(layout):
    chunk = CHUNKS[layout]
    fetch = fetcher(chunk, replicas=2, in_one_program=False)
    for replica in range(2):
        shard = fetch(chunk.source, jnp.int32(1), jnp.int32(replica))
        np.testing.assert_array_equal(shard, expected(layout)[1].reshape(2, 2)[replica])


@pytest.mark.parametrize("layout", CHUNKS)
def test_the_shapes_of_a_local_batch(layout):
    shapes = local_batch_shapes(CHUNKS[layout], replicas=2)
    assert shapes == jax.ShapeDtypeStruct((2,), np.float32)
