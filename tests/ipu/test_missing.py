import pytest
from convoy import ipu
from convoy.ipu import missing


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        (ipu, "autoshard", r"convoy\.split"),
        (ipu, "horovod", r"ipu\.distributed"),
        (ipu, "anything", r"docs/porting\.md"),
        (ipu, "pipelinig_ops", r"Did you mean pipelining_ops\?"),
        (ipu.config, "IpuConfig", r"Did you mean IPUConfig\?"),
        (ipu.distributed, "PopDistStrategy", r"popdist_strategy\.PopDistStrategy"),
        (ipu.ops.cross_replica_ops, "cross_replica_sums", r"Did you mean cross_replica_sum\?"),
        (ipu.keras, "Model", r"plain keras\.Model"),
        (ipu.keras, "PipelineSequential", "set_pipelining_options"),
        (ipu.keras, "FunctionalNestedModelPipelineStageAssignment", "one flat list"),
        (ipu.utils, "create_ipu_config", "IPUConfig"),
        (ipu.utils, "set_convolution_options", "IPUConfig"),
        (ipu.ops, "nn_ops", r"keras\.ops"),
        (ipu.ipu_infeed_queue, "IPUIterator", r"loops\.repeat"),
    ],
)
def test_says_what_to_use_instead(module, name, advice):
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'\. .*{advice}"):
        getattr(module, name)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("from convoy.ipu import autoshard", r"convoy\.split"),
        ("import convoy.ipu.sharding", r"ipu\.keras\.PipelineStage"),
        ("from convoy.ipu.keras import PipelineModel", r"plain keras\.Model"),
        ("from convoy.ipu import util", r"Did you mean utils\?"),
        ("from convoy.ipu.utils import create_ipu_config", "IPUConfig"),
        ("from convoy.ipu.ops.pipelining_ops import pipline", r"Did you mean pipeline\?"),
    ],
)
def test_says_it_where_a_name_is_imported(line, advice):
    with pytest.raises(ModuleNotFoundError, match=rf"has no attribute '\w+'\. .*{advice}"):
        exec(line)


def test_everything_else_is_imported_as_before():
    names = {}
    exec("from convoy.ipu.config import *\nfrom convoy.ipu.utils import IPUConfig as same", names)
    assert names["IPUConfig"] is names["same"]
    with pytest.raises(ImportError, match="cannot import name '_private'"):
        exec("from convoy.ipu.config import _private")


def test_gives_advice_only_for_what_is_not_there():
    assert not [name for name in missing.INSTEAD if name in ipu.__all__]
