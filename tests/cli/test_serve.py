import json
import signal
import subprocess
import sys
import urllib.request

import convoy
import pytest
from convoy.serving.client import TOKEN_VARIABLE
from convoy_command import cli
from tests.serving.models import half_plus

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "There is no model to serve."),
        (["--model", "half"], "--model half is not NAME=FOLDER."),
        (["--model", "half=none"], "none is not a folder."),
        (["--model", "a=.", "--model", "a=."], "Two models are called a."),
        (["--model", "a=.", "--tls-key", "x"], "go together"),
        (["--model", "a=.", "--port", "-1", "--grpc-port", "-1"], "nothing to listen on"),
        (["--model", "a=.", "--max-request-bytes", "0"], "pass 1 or more"),
        (["--model", "a=.", "--port", "65536"], "--port 65536: pass 65535 or less"),
        (["--model", "a=.", "--grpc-port", "-2"], "pass -1 or more"),
        (["--model", "a=.", "--token", ""], "the token is empty"),
        (["--model", "a=.", "--token", "  "], "the token is empty, or has spaces"),
        (["--model", "a=.", "--token", "x", "--token-file", "y"], "not both"),
        (
            ["--model", "a=.", "--token-file", "none"],
            "--token-file none: there is no such file. Pass its path.",
        ),
        (["--model", "a=.", "--tls-client-ca", "x"], "needs --tls-certificate"),
    ],
)
def test_a_server_that_cannot_start_says_so(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_empty_variable_does_not_turn_authentication_off(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with pytest.raises(SystemExit):
        cli.main(["serve", "--model", "a=."])
    assert f"${TOKEN_VARIABLE}: the token is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid cannot be resolved"),
        (["--host", "\u00e9" * 100], "cannot be resolved"),
        (["--tls-certificate", "text", "--tls-key", "text"], "not PEM files with a certificate"),
        (["--token-file", "empty"], "--token-file empty: the token is empty"),
    ],
)
def test_a_start_that_fails_is_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("text")
    (tmp_path / "empty").touch()
    assert cli.main(["serve", "--model", "a=.", "--port", "0", "--grpc-port", "-1", *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.slow
def test_a_server_serves_until_it_is_told_to_stop(tmp_path):
    convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])
    command = [sys.executable, "-m", "convoy", "serve", "--model", f"half={tmp_path / 'half'}"]
    command += ["--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            grpc_address = process.stdout.readline().split()[-1]
            body = json.dumps({"instances": [1.0, 2.0]}).encode()
            with urllib.request.urlopen(f"{address}v1/models/half:predict", body) as response:
                assert json.loads(response.read()) == {"predictions": [2.5, 3.0]}
            words = ["--model", "half", "--port", grpc_address.split(":")[1], "--num-images", "20"]
            assert cli.main(["request", *words]) == 0
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
