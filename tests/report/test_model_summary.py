def test_the_summary_has_layers_sizes_and_the_parallel_configuration(recorded, staged):
    model, _, report = recorded
    found = report.run["runs"][0]["model"]
    assert (found["name"], found["parameters"]) == ("small", model.count_params())
    assert [layer["name"] for layer in found["layers"]] == [layer.name for layer in model.layers]
    assert found["layers"][0]["output"] == [None, 12, 12, 4]
    trainable = sum(variable.value.nbytes for variable in model.trainable_variables)
    assert found["bytes"]["weights"] == trainable
    assert (found["replicas"], found["stages"]) == (1, 1)
    staged_model = staged[2].run["runs"][0]["model"]
    assert (staged_model["stages"], staged_model["gradient_accumulation"]) == (2, 4)
