"""Networks by name: plain Keras models with outputs between -1.2 and 1.2."""

from models.cosmoflow import cosmoflow, mlperf
from models.cosmoflow_v1 import cosmoflow_v1
from models.resnet import mini_resnet, resnet, resnet50

NETWORKS = {
    "cosmoflow": cosmoflow,
    "cosmoflow_v1": cosmoflow_v1,
    "mlperf": mlperf,
    "resnet": resnet,
    "resnet50": resnet50,
    "mini_resnet": mini_resnet,
}
