from convoy.serving.http_service import describe_api


def test_every_operation_has_a_summary_a_response_and_errors():
    described = describe_api("1.2.3")
    assert described["info"]["version"] == "1.2.3"
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert operation["summary"]
            assert {"200", "400", "404", "504"} <= set(operation["responses"])
            assert bool(operation["parameters"]) == ("{model}" in path)


def test_every_path_is_a_route_of_the_server(server):
    for path, methods in describe_api("")["paths"].items():
        for method in methods:
            _, answer = server.json(path.format(model="half_plus_two"), method=method.upper())
            assert "Malformed request" not in answer.get("error", "")
