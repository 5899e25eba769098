import pytest
from convoy.configuration import ConfigurationError, add_flags, check, options, read
from convoy.train.flags import Options
from convoy.train.graphcore_flags import GraphcoreOptions
from convoy_command.parser import Parser


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


def test_every_option_has_a_help_text_and_a_group():
    parser = Parser(prog="convoy train")
    add_flags(parser, GraphcoreOptions)
    groups = {
        action.dest: (group.title, action.help)
        for group in parser._action_groups
        for action in group._group_actions
    }
    for name in options(GraphcoreOptions):
        group, text = groups[name]
        assert text, name
        assert group not in (None, "options"), name
        assert not text.endswith("."), name


def test_the_defaults_are_valid():
    check(Options())
    check(GraphcoreOptions())


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"num_replicas": 0}, "--num-replicas 0: pass 1 or more."),
        ({"lookahead": -1}, "--lookahead -1: pass 0 or more."),
        ({"rand_augment": 2}, "--rand-augment 2: pass 1 or less."),
        ({"weight_decay": -0.5}, "--weight-decay -0.5: pass 0 or more."),
        ({"pipeline_num_parallel": -1}, "--pipeline-num-parallel -1: pass 0 or more."),
        ({"validation_views": 3}, "--validation-views: 3 is not one of 1, 2, 6."),
    ],
)
def test_values_outside_of_their_range_are_refused(values, problem):
    with pytest.raises(ConfigurationError) as error:
        read(Options, values, flags=True)
    assert str(error.value) == problem


@pytest.mark.parametrize("name", ["Grouped", "gpipe"])
def test_schedules_are_known_by_two_names(name):
    assert read(Options, {"pipeline_schedule": name}).pipeline_schedule == "gpipe"
