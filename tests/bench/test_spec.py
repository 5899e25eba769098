import pytest
from convoy.bench.spec import SpecError, read_benchmark, read_benchmarks, variant_name


def write(folder, text, name="benchmarks.yml"):
    file = folder / name
    file.write_text(text)
    return file


def test_an_entry_with_all_fields_is_read(tmp_path):
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
    assert benchmark.parameters == ({"batch": "1", "seed": "7"}, {"batch": "32", "seed": "7"})
    assert [(name, m.skip, m.reduction_type) for name, m in benchmark.data.items()] == [
        ("throughput", 2, "mean"),
        ("loss", 0, "final"),
    ]
    assert {name: d.expr for name, d in benchmark.derived.items()} == {
        "per_sample": "{throughput} / {batch}"
    }
    assert benchmark.env == {"ROUNDS": "3"}
    assert benchmark.location == tmp_path / "inner"
    assert benchmark.timeout == 60
    assert variant_name("name_gen", benchmark.parameters[1]) == "name_gen_batch_32_seed_7"


def test_a_table_of_parameters_is_a_variant_for_each_row(tmp_path):
    entry = {"cmd": "x", "parameters": [["a", "b"], [1, 2], "3, 4"]}
    benchmark = read_benchmark("name", entry, tmp_path / "spec.yml")
    assert benchmark.parameters == ({"a": "1", "b": "2"}, {"a": "3", "b": "4"})


def test_a_notebook_may_have_its_own_folder_and_timeout(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "walk.ipynb").write_text("{}")
    notebook = {"file": "walk.ipynb", "working_directory": "inner", "timeout": 5}
    entry = {"notebook": notebook, "timeout": 60}
    benchmark = read_benchmark("name", entry, tmp_path / "spec.yml")
    assert benchmark.notebook == tmp_path / "inner" / "walk.ipynb"
    assert (benchmark.location, benchmark.timeout) == (tmp_path / "inner", 5)


def test_names_select_and_order_and_convergence_needs_a_flag(tmp_path):
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
        ("{cmd: a, notebook: b}", "it has both cmd and notebook. Write one of them."),
        ("{timeout: 3}", "it has neither cmd nor notebook."),
        ("{cmd: a, timout: 3}", "timout is unknown. Did you mean timeout?"),
        ("{cmd: a, timeout: soon}", "timeout: 'soon' is not a number"),
        ("{cmd: a, timeout: 0}", "timeout 0: pass more than 0"),
        ("{cmd: a, location: nowhere}", "there is no folder .*nowhere"),
        ("{cmd: 3}", "cmd: 3 is not a string"),
        ("{notebook: {file: lost.ipynb, timout: 3}}", "timout is unknown. Did you mean timeout?"),
        ("{notebook: lost.ipynb}", "there is no file .*lost.ipynb"),
        ("[cmd]", r"\['cmd'\] is not a mapping\. Write fields"),
        ("{cmd: a, data: 3}", "data: 3 is not a section with keys and values"),
        ("{cmd: a, parameters: [[a, b], [1]]}", "has 1 values for 2 names, a, b"),
        ("{cmd: a, parameters: 3}", "parameters: 3 is not a set of parameters. Write a mapping"),
        ("{cmd: a, data: {x: {regexp: '('}}}", "data.x.regexp: '\\(' is not a regular expression"),
        (
            "{cmd: a, data: {x: {regexp: 'x'}}}",
            "'x' has 0 groups. Put \\( \\) around the number only",
        ),
        ("{cmd: a, data: {x: {}}}", "data.x.regexp is missing"),
        ("{cmd: a, data: {x: {regexp: '(x)', skip: -1}}}", "data.x.skip -1: pass 0 or more"),
        (
            "{cmd: a, data: {x: {regexp: '(x)', reduction_type: means}}}",
            "reduction_type: 'means' is not one of mean, final, min, value. Did you mean mean",
        ),
        ("{cmd: a, derived: {x: {}}}", "derived.x.expr is missing"),
    ],
)
def test_a_mistake_is_reported_with_its_place(tmp_path, entry, message):
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
    assert "torn.yml is not YAML" in torn_line
    assert "lost.yml cannot be read" in lost
    assert unknown == "--benchmark train_resnet8 is unknown. Did you mean train_resnet?"
    assert "other: data: 3 is not a section" in other


def test_an_invalid_entry_that_is_not_selected_is_ignored(tmp_path):
    file = write(tmp_path, "good: {cmd: a}\nbad: {}\n")
    assert [benchmark.name for benchmark in read_benchmarks([file], ["good"])] == ["good"]
