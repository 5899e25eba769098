"""A strategy that was deprecated."""

from __future__ import annotations

from typing import Any, NoReturn


class IPUMultiWorkerStrategyV1:
    """Is gone: `PopDistStrategy` averages gradients over all replicas."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        raise NotImplementedError(
            "IPUMultiWorkerStrategy is deprecated and not there. Use "
            "ipu.distributed.popdist_strategy.PopDistStrategy."
        )


IPUMultiWorkerStrategy = IPUMultiWorkerStrategyV1
