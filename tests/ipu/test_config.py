import copy

import jax
import pytest
from convoy import ipu
from convoy.ipu.config import devices_of
from convoy.ipu.options import OPTIONS


def values_of(config):
    return config.to_dict()


DEFAULTS = {
    "auto_select_ipus": [],
    "select_ipus": [],
    "allow_recompute": False,
    "selection_order": ipu.config.SelectionOrder.AUTO,
    "serialization_output_folder": "",
    "compilation_poplar_options": {},
    "gcl_poplar_options": {},
    "convolutions.poplar_options": {},
    "matmuls.poplar_options": {},
    "matmuls.clear_pass_type": False,
    "slices.poplar_options": {},
    "pooling.poplar_options": {},
    "floating_point_behaviour.inv": False,
    "floating_point_behaviour.div0": False,
    "floating_point_behaviour.oflo": False,
    "floating_point_behaviour.nanoo": False,
    "floating_point_behaviour.esr": ipu.config.StochasticRoundingBehaviour.OFF,
    "floating_point_behaviour.set_all": False,
    "norms.use_stable_statistics": False,
    "norms.experimental.distributed_batch_norm_replica_group_size": 1,
    "optimizations.math.fast": False,
    "optimizations.math.dot_strength": True,
    "optimizations.enable_fast_math": False,
    "optimizations.prefetch_data_streams": True,
    "optimizations.combine_embedding_lookups": False,
    "optimizations.combine_matmuls": False,
    "optimizations.enable_graph_outlining": True,
    "optimizations.merge_infeed_io_copies": True,
    "optimizations.maximum_cross_replica_sum_buffer_size": 0,
    "optimizations.maximum_reduce_scatter_buffer_size": 0,
    "optimizations.maximum_inter_ipu_copies_buffer_size": 0,
    "optimizations.maximum_send_recv_cluster_size": 0,
    "optimizations.maximum_reduce_many_buffer_size": 0,
    "optimizations.maximum_all_gather_buffer_size": 0,
    "optimizations.minimum_remote_tensor_size": 128,
    "optimizations.merge_remote_buffers": ipu.config.MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
    "optimizations.enable_gather_simplifier": True,
    "optimizations.enable_dynamic_slice_replacement": True,
    "optimizations.triangular_solve_expander_block_size": 0,
    "optimizations.cholesky_block_size": 0,
    "scheduling.algorithm": ipu.config.SchedulingAlgorithm.CHOOSE_BEST,
    "scheduling.maximum_scheduler_lookahead_depth": 5,
    "scheduling.maximum_scheduler_search_space_size": 64,
    "io_tiles.num_io_tiles": 0,
    "io_tiles.place_ops_on_io_tiles": False,
    "io_tiles.available_memory_proportion": 0.9,
    "device_connection.type": ipu.config.DeviceConnectionType.ALWAYS,
    "device_connection.version": "",
    "device_connection.enable_remote_buffers": False,
    "ipu_model.compile_ipu_code": True,
    "ipu_model.tiles_per_ipu": 0,
    "ipu_model.version": "ipu2",
    "experimental.always_rearrange_copies_on_the_host": False,
    "experimental.enable_remote_buffer_embedding": False,
    "experimental.enable_prng_stability": False,
    "experimental.multi_replica_distribution.process_index": 0,
    "experimental.multi_replica_distribution.process_count": 0,
}


def test_has_every_option_with_its_default():
    config = ipu.config.IPUConfig()
    assert set(values_of(config)) == set(DEFAULTS)
    for path, default in DEFAULTS.items():
        found = config
        for name in path.split("."):
            found = getattr(found, name)
        assert (found, type(found)) == (default, type(default))


def test_configurations_share_nothing():
    one, other = ipu.config.IPUConfig(), ipu.config.IPUConfig()
    one.convolutions.poplar_options["partialsType"] = "half"
    one.auto_select_ipus.append(2)
    assert other.convolutions.poplar_options == {}
    assert other.auto_select_ipus == []


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("auto_select_ipu", "auto_select_ipus"),
        ("floating_point_behavior", "floating_point_behaviour"),
    ],
)
def test_suggests_the_name_that_was_meant(path, near):
    config = ipu.config.IPUConfig()
    with pytest.raises(ValueError, match=rf"no option {path}. Did you mean {near}\?"):
        setattr(config, path, 1)
    with pytest.raises(ValueError, match=near):
        getattr(config, path)


def test_suggests_names_inside_of_a_category():
    config = ipu.config.IPUConfig()
    with pytest.raises(ValueError, match=r"Did you mean norms.use_stable_statistics\?"):
        config.norms.use_stable_statistic = True


def test_finds_a_name_that_is_in_another_category():
    with pytest.raises(ValueError, match=r"Did you mean floating_point_behaviour.esr\?"):
        _ = ipu.config.IPUConfig().norms.esr


def test_refuses_to_replace_a_category():
    with pytest.raises(Exception, match="norms is a category"):
        ipu.config.IPUConfig().norms = 1


def test_goes_through_a_dict_and_json():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = [2, 1]
    config.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.ON
    config.optimizations.math.fast = True
    saved = config.to_dict()
    assert saved["floating_point_behaviour.esr"] == 1
    assert saved["optimizations.math.fast"] is True
    other = ipu.config.IPUConfig()
    other.from_json(config.to_json())
    assert values_of(other) == saved
    assert other.floating_point_behaviour.esr is ipu.config.StochasticRoundingBehaviour.ON


def test_what_a_dict_leaves_out_stays(caplog):
    config = ipu.config.IPUConfig()
    config.allow_recompute = True
    config.from_dict({"auto_select_ipus": 3})
    assert config.allow_recompute
    assert config.auto_select_ipus == 3
    assert "so not changed" in caplog.text
    with pytest.raises(ValueError, match=r"no option allow_recomputed\. Did you mean"):
        config.from_dict({"allow_recomputed": True})
    with pytest.raises(TypeError, match=r"allow_recompute = 1 is of type int\. Assign a bool"):
        config.from_dict({"allow_recompute": 1})


def test_tells_of_its_options():
    config = ipu.config.IPUConfig()
    found = config.get_attribute_metadata("norms.use_stable_statistics")
    assert (found.name, found.type, found.default) == (
        "norms.use_stable_statistics",
        (bool,),
        False,
    )
    assert config.norms.get_attribute_metadata("use_stable_statistics") is found
    assert config.get_attribute_metadata("optimizations.enable_fast_math").deprecated
    assert found.deprecated_msg == ""
    with pytest.raises(TypeError, match=r"norms\.use_stable_statistics = 1"):
        found.check_type(1)
    order = config.get_attribute_metadata("selection_order")
    assert order.__doc__ == "the order of a logical device's devices"
    with pytest.raises(ValueError, match=r"no option norms\.nothing"):
        config.norms.get_attribute_metadata("nothing")


def test_copies_and_prints_all_options():
    config = ipu.config.IPUConfig()
    config.select_ipus = [1]
    assert values_of(copy.deepcopy(config)) == values_of(config)
    lines = str(config).splitlines()
    assert len(lines) == len(OPTIONS)
    assert "select_ipus = [1]" in lines
    assert repr(config).startswith("IPUConfig\n    ")
    assert str(config.matmuls).splitlines()[0] == "matmuls.poplar_options = {}"


def test_one_device_by_default():
    assert devices_of("/device:IPU:0") == (jax.devices()[0],)
    with pytest.raises(RuntimeError, match="No IPU system is configured"):
        ipu.config.get_ipu_config()


def test_each_entry_is_a_logical_device(configure):
    configure([2, 1])
    assert devices_of("/device:IPU:0") == tuple(jax.devices()[:2])
    assert devices_of("/device:IPU:1") == (jax.devices()[2],)
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 2
    assert len(ipu.config.get_ipu_config()) == 2
    with pytest.raises(ValueError, match="'/device:IPU:2' is not configured"):
        devices_of("/device:IPU:2")


def test_a_number_becomes_a_list_when_it_is_applied(configure):
    assert configure(2).auto_select_ipus == [2]


def test_warns_when_another_configuration_is_replaced(configure, caplog):
    configure(1)
    configure(1)
    assert "Resetting existing IPU configuration" not in caplog.text
    configure(2)
    assert "Resetting existing IPU configuration before applying new" in caplog.text


def test_later_changes_have_no_effect(configure):
    config = configure(1)
    config.auto_select_ipus = 4
    assert len(devices_of("/device:IPU:0")) == 1
    assert ipu.config.get_ipu_config()[0].auto_select_ipus == [1]


def test_takes_a_configuration_that_may_not_replace_another(configure):
    config = configure(1)
    ipu.config.configure_ipu_system(config, reset_configuration=False)
    config.auto_select_ipus = 2
    with pytest.raises(ValueError, match=r"Call reset_ipu_configuration\(\) first"):
        ipu.config.configure_ipu_system(config, reset_configuration=False)
    ipu.config.reset_ipu_configuration()
    ipu.config.configure_ipu_system(config, reset_configuration=False)
    assert len(devices_of("/device:IPU:0")) == 2


def test_refuses_what_is_not_a_configuration():
    with pytest.raises(TypeError, match="takes an IPUConfig, but received dict"):
        ipu.config.configure_ipu_system({})
