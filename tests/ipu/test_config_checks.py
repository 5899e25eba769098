import jax
import pytest
from convoy import ipu
from convoy.ipu.config import devices_of


def test_devices_are_selected_by_number():
    config = ipu.config.IPUConfig()
    config.select_ipus = [3, 1]
    config.configure_ipu_system()
    assert devices_of("/device:IPU:0") == (jax.devices()[3],)
    assert devices_of("/device:IPU:1") == (jax.devices()[1],)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("ZIGZAG", [0, 1, 2, 3]), ("SNAKE", [0, 1, 3, 2]), ("HOOF", [0, 2, 3, 1])],
)
def test_devices_follow_each_other_as_asked_for(configure, order, expected):
    configure(4, lambda c: setattr(c, "selection_order", ipu.config.SelectionOrder[order]))
    assert [device.id for device in devices_of("/device:IPU:0")] == expected


def test_names_once_what_has_no_effect(configure, caplog):
    def change(config):
        config.matmuls.clear_pass_type = True
        config.convolutions.poplar_options["availableMemoryProportion"] = "0.6"
        config.convolutions.poplar_options["partialsType"] = "half"
        config.matmuls.poplar_options["partialsType"] = "float"

    configure(1, change)
    configure(2, change)
    said = [record.message for record in caplog.records if "No effect" in record.message]
    assert said == [
        "No effect on these devices, and ignored in the configuration: "
        "convolutions.poplar_options['availableMemoryProportion'], "
        "convolutions.poplar_options['partialsType'], matmuls.clear_pass_type."
    ]


def set_at(path, value):
    def change(config):
        *categories, name = path.split(".")
        for category in categories:
            config = getattr(config, category)
        setattr(config, name, value)

    return change


@pytest.mark.parametrize(
    ("path", "value", "error", "match"),
    [
        ("select_ipus", [0], Exception, "Both auto_select_ipus and select_ipus"),
        (
            "norms.experimental.distributed_batch_norm_replica_group_size",
            0,
            ValueError,
            "Assign 1 or more",
        ),
        ("io_tiles.place_ops_on_io_tiles", True, ValueError, "needs io_tiles.num_io_tiles"),
        (
            "device_connection.type",
            ipu.config.DeviceConnectionType.PRE_COMPILE,
            ValueError,
            "needs device_connection.version",
        ),
        (
            "device_connection.type",
            ipu.config.DeviceConnectionType.NEVER,
            ValueError,
            "needs device_connection.version",
        ),
        ("auto_select_ipus", [1, 0], ValueError, r"= \[1, 0\]: assign numbers of 1 or more"),
        (
            "experimental.multi_replica_distribution.process_count",
            2,
            NotImplementedError,
            "replicas are those of one process",
        ),
    ],
)
def test_refuses_options_that_do_not_fit_together(configure, path, value, error, match):
    with pytest.raises(error, match=match):
        configure(1, set_at(path, value))


def test_replicas_with_tiles_of_their_own_for_input_share_no_statistics(configure):
    def change(config):
        config.norms.experimental.distributed_batch_norm_replica_group_size = 2
        config.io_tiles.num_io_tiles = 32

    with pytest.raises(ValueError, match=r"excludes io_tiles\.num_io_tiles"):
        configure(2, change)


def test_refuses_a_process_that_is_none_of_them(configure):
    def change(config):
        config.experimental.multi_replica_distribution.process_count = 1
        config.experimental.multi_replica_distribution.process_index = 1

    with pytest.raises(ValueError, match=r"process_index = 1\. Assign a number from 0 to 0"):
        configure(1, change)


def test_refuses_a_device_that_is_named_twice():
    config = ipu.config.IPUConfig()
    config.select_ipus = [1, 1]
    with pytest.raises(ValueError, match="names a device twice"):
        config.configure_ipu_system()


def test_refuses_options_that_were_changed_in_place(configure):
    with pytest.raises(TypeError, match=r"gcl_poplar_options = \{'a': 1\}"):
        configure(1, lambda config: config.gcl_poplar_options.update(a=1))
