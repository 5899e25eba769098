import socket

from convoy.cli import request
from convoy_command import cli


def test_a_server_that_cannot_be_reached_is_named(monkeypatch, capsys):
    with socket.socket() as bound:  # It does not listen.
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setattr(request, "LISTENER_SECONDS", 0.0)
        assert cli.main(["request", "--model", "x", "--port", place.split(":")[1]]) == 1
        assert capsys.readouterr().err == (
            f"convoy request: error: {place} cannot be reached: Connection refused. Start convoy "
            "serve, or pass --host and --port.\n"
        )
