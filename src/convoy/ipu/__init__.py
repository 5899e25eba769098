"""Graphcore's names, for code that is being ported: `from convoy import ipu`."""

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
from convoy.ipu.ops import *  # noqa: F403

__all__ = [
    "config",
    "dataset_benchmark",
    "distributed",
    "eager",
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
    "scopes",
    "serving",
    "utils",
]
__all__ += ops.__all__

missing.advise(sys.modules[__name__])
sys.meta_path.append(missing.Finder())
