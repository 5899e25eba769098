import pytest
from convoy.bench.spec import SpecError, read_benchmarks, read_entry, variant_name


def write(folder, text, name="benchmarks.yml"):
    file = folder / name
    file.write_text(text)
    return file


def test_an_entry_with_everything_is_read(tmp_path):
    (tmp_path / "inner").mkdir()
    spec = """
common_options: &common_options
  data:
    throughput: {regexp: 'rate ([0-9.]+)', skip: 2}
    loss: {regexp: 'loss ([0-9.]+)', reduction_type: final}

name_gen:
  <<: *common_options
  description: what it is
  cmd: python3 train.py --batch {batch}
  parameters: {batch: '1, 32', seed: 7}
  derived:
    per_sample: {expr: '{throughput} / {batch}'}
  env: {ROUNDS: 3}
  location: inner
  timeout: 60
"""
    (benchmark,) = read_benchmarks([write(tmp_path, spec)])
    assert benchmark.variants == ({"batch": "1", "seed": "7"}, {"batch": "32", "seed": "7"})
    assert [(m.name, m.skip, m.reduction) for m in benchmark.metrics] == [
        ("throughput", 2, "mean"),
        ("loss", 0, "final"),
    ]
    assert [d.expression for d in benchmark.derived] == ["{throughput} / {batch}"]
    assert benchmark.environment == {"ROUNDS": "3"}
    assert benchmark.location == tmp_path / "inner"
    assert benchmark.timeout == 60
    assert variant_name("name_gen", benchmark.variants[1]) == "name_gen_batch_32_seed_7"


def test_a_table_of_parameters_is_a_variant_for_each_row(tmp_path):
    entry = {"cmd": "x", "parameters": [["a", "b"], [1, 2], "3, 4"]}
    benchmark = read_entry("name", entry, tmp_path / "spec.yml")
    assert benchmark.variants == ({"a": "1", "b": "2"}, {"a": "3", "b": "4"})


def test_names_choose_and_order_and_convergence_is_asked_for(tmp_path):
    spec = "one: {cmd: a}\ntwo: {cmd: b}\nthree_conv: {cmd: c}\nshared_options: {cmd: d}\n"
    file = write(tmp_path, spec)

    def names(*asked, **settings):
        return [benchmark.name for benchmark in read_benchmarks([file], asked, **settings)]

    assert names() == ["one", "two"]
    assert names("two", "one") == ["two", "one"]
    assert names(include_convergence=True) == ["one", "two", "three_conv"]
    assert names("three_conv") == ["three_conv"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{cmd: a, notebook: b}", "it has both of cmd and notebook. Write one of them."),
        ("{timeout: 3}", "it has neither of cmd and notebook."),
        ("{cmd: a, timout: 3}", "'timout' is not a field of a benchmark. Did you mean timeout?"),
        ("{cmd: a, timeout: soon}", "timeout is 'soon'. Write a number of seconds."),
        ("{cmd: a, location: nowhere}", "there is no folder .*nowhere"),
        ("{cmd: 3}", "cmd or the notebook's file is not a text"),
        ("{notebook: lost.ipynb}", "there is no file .*lost.ipynb"),
        ("[cmd]", "was found where names with values were expected"),
        ("{cmd: a, parameters: [[a, b], [1]]}", "has 1 values for 2 names, a, b"),
        ("{cmd: a, parameters: 3}", "parameters is 3. Write names with values"),
        ("{cmd: a, data: {x: {regexp: '('}}}", "'\\(' is no regular expression"),
        ("{cmd: a, data: {x: {regexp: 'x'}}}", "'x' has 0 groups. Put the number"),
        ("{cmd: a, data: {x: {}}}", "data: x: there is no regexp"),
        ("{cmd: a, data: {x: {regexp: '(x)', skip: -1}}}", "skip is -1. Write 0 or more"),
        (
            "{cmd: a, data: {x: {regexp: '(x)', reduction_type: means}}}",
            "reduction_type is 'means'. Did you mean mean",
        ),
        ("{cmd: a, derived: {x: {}}}", "derived: x: there is no expr"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, entry, message):
    file = write(tmp_path, f"broken: {entry}\n")
    with pytest.raises(SpecError, match=message) as found:
        read_benchmarks([file])
    assert str(found.value).startswith(f"{file}: broken")


def test_every_problem_is_listed_at_once(tmp_path):
    file = write(tmp_path, "train_resnet: {cmd: a}\nother: {cmd: b, data: 3}\n")
    torn = write(tmp_path, "a: [", "torn.yml")
    with pytest.raises(SpecError) as found:
        read_benchmarks([file, torn, tmp_path / "lost.yml"], ["train_resnet8", "other"])
    torn_line, lost, unknown, other = str(found.value).splitlines()
    assert "torn.yml: the spec cannot be read" in torn_line
    assert "lost.yml: the spec cannot be read" in lost
    assert unknown == (
        "--benchmark train_resnet8: there is none of this name. Did you mean train_resnet?"
    )
    assert "other: data: 3 was found" in other


def test_a_broken_entry_that_is_not_asked_for_does_no_harm(tmp_path):
    file = write(tmp_path, "good: {cmd: a}\nbad: {}\n")
    assert [benchmark.name for benchmark in read_benchmarks([file], ["good"])] == ["good"]
