"""Train and validate an image classifier: `convoy train` with Graphcore's defaults.

python examples/cnns/train.py --model cifar_resnet8 --dataset-path DIR --num-epochs 6
"""

import sys

from convoy.cli.train import main
from convoy.train.graphcore_flags import GraphcoreOptions

if __name__ == "__main__":
    # Flags and defaults are Graphcore's, and messages begin as those of its program do.
    sys.exit(
        main(
            program="train.py",
            defaults="graphcore_defaults",
            error_prefix="ValueError: ",
            schema=GraphcoreOptions,
        )
    )
