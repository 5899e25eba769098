"""A strategy that Graphcore removed."""

from typing import NoReturn


class IPUMultiWorkerStrategyV1:
    """Not available: use `PopDistStrategy`."""

    def __init__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError("Use ipu.distributed.popdist_strategy.PopDistStrategy instead.")


IPUMultiWorkerStrategy = IPUMultiWorkerStrategyV1
