"""Train and validate an image classifier: the same as `convoy train`.

python examples/cnns/train.py --model cifar_resnet8 --dataset-path DIR --num-epochs 6
"""

import sys

from convoy.cli.train import main

if __name__ == "__main__":
    sys.exit(main(program="train.py"))
