"""Graphcore's names, for code that is being ported: `from convoy import ipu`."""

from __future__ import annotations

import sys

from convoy.ipu import (
    config,
    dataset_benchmark,
    distributed,
    eager,
    gradient_accumulation,
    ipu_compiler,
    ipu_estimator,
    ipu_infeed_queue,
    ipu_multi_worker_strategy,
    ipu_outfeed_queue,
    ipu_pipeline_estimator,
    ipu_run_config,
    ipu_session_run_hooks,
    ipu_strategy,
    keras,
    loops,
    missing,
    ops,
    optimizers,
    scopes,
    serving,
    utils,
)
from convoy.ipu.ops import (
    all_to_all_op,
    cross_replica_ops,
    grad_util_ops,
    pipelining_ops,
    rand_ops,
    reduce_scatter_op,
    replication_ops,
)

__all__ = [
    "all_to_all_op",
    "config",
    "cross_replica_ops",
    "dataset_benchmark",
    "distributed",
    "eager",
    "grad_util_ops",
    "gradient_accumulation",
    "ipu_compiler",
    "ipu_estimator",
    "ipu_infeed_queue",
    "ipu_multi_worker_strategy",
    "ipu_outfeed_queue",
    "ipu_pipeline_estimator",
    "ipu_run_config",
    "ipu_session_run_hooks",
    "ipu_strategy",
    "keras",
    "loops",
    "ops",
    "optimizers",
    "pipelining_ops",
    "rand_ops",
    "reduce_scatter_op",
    "replication_ops",
    "scopes",
    "serving",
    "utils",
]

missing.advise(sys.modules[__name__])
sys.meta_path.append(missing.Finder())
