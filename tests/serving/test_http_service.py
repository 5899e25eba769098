from convoy.serving.http_service import describe_api
from convoy.serving.versions import ModelConfig
from tests.serving.running import running


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


def test_headers_for_browsers(server, half_plus_two):
    status, headers, text = server.ask("/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "unsafe-inline" not in policy
    assert policy.count("'sha256-") == text.count(b"<script>") + text.count(b"<style>")
    for path in ("/", "/v2", "/nothing"):
        _, headers, _ = server.ask(path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers
    assert server.ask("/v2", method="OPTIONS")[0] == 404
    models = [ModelConfig("half", half_plus_two)]
    with running(models, cors_origin="https://example.com", token="secret") as other:
        status, headers, _ = other.ask("/v1/models/half:predict", method="OPTIONS")
        assert status == 204
        assert headers["Access-Control-Allow-Origin"] == "https://example.com"
        assert "Authorization" in headers["Access-Control-Allow-Headers"]
        status, headers, _ = other.ask("/v1/models/half:predict", {"instances": [1.0]})
        assert (status, headers["Access-Control-Allow-Origin"]) == (401, "https://example.com")
