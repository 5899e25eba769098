"""Options of a server that contradict each other are refused in one line."""

import re

import pytest
from convoy.serving.flags import ServerOptions


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.pem"
    path.write_text("content")
    return path


def test_the_defaults_go_together():
    options = ServerOptions()
    assert (options.port, options.grpc_port, options.token) == (8501, 8500, None)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("tls_certificate",), "--tls-certificate and --tls-key go together. Pass both."),
        (("tls_key",), "--tls-certificate and --tls-key go together. Pass both."),
        (
            ("tls_client_ca",),
            "--tls-client-ca needs --tls-certificate and --tls-key. Pass them too.",
        ),
    ],
)
def test_files_of_tls_go_together(file, names, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ServerOptions(**dict.fromkeys(names, file))


@pytest.mark.parametrize("name", ["token_file", "tls_client_ca"])
def test_a_missing_file_is_named(file, name):
    missing = file.with_name("missing")
    others = {} if name == "token_file" else {"tls_certificate": file, "tls_key": file}
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ValueError, match=rf"^{flag} .*missing: there is no such file\. Pass its"):
        ServerOptions(**others, **{name: missing})


def test_a_token_is_passed_in_one_way(file):
    with pytest.raises(ValueError, match="or --token-file, not both"):
        ServerOptions(token="a-long-enough-token", token_file=file)


def test_a_server_listens_somewhere():
    assert ServerOptions(port=-1).grpc_port == 8500
    with pytest.raises(ValueError, match=r"leave nothing to listen on\. Pass a port for one\.$"):
        ServerOptions(port=-1, grpc_port=-1)
