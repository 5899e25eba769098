"""Where the commands of a page are run, one after the other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from convoy_command import cli

from .pages import ROOT
from .small import make_small

PROGRAMS = Path(sys.executable).parent
SECONDS = 900


class Terminal:
    """Runs commands in a folder, and ends the servers that it has started.

    Args:
        house: a folder that stands for the repository.
        data: the folder of the data sets.
        monkeypatch: changes the folder of this process.
    """

    def __init__(self, house, data, monkeypatch):
        self.house = house
        self.places = {"DIR": data}
        self.monkeypatch = monkeypatch
        self.servers = []
        self.before = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=SECONDS)
            assert server.returncode == 0

    def folder_of(self, command):
        """Return where a command runs: in an example's folder, or in the house."""
        place = command.folder.relative_to(ROOT)
        return self.house / place if "examples" in place.parts else self.house

    def run(self, command):
        """Run a command at a small size; it has to succeed."""
        folder = self.folder_of(command)
        kind = tuple(command.words[:2])
        words = make_small(command, folder, self.places, self.before.get(kind, []))
        self.before[kind] = command.words
        program, *rest = [command.program, *words[1:]]
        if program == "curl":
            # Only a shell understands what it sends.
            line = command.line.replace("127.0.0.1:8501", self.places["REST"])
            self._process(["bash", "-c", f"{line} --fail --silent"], folder, {})
        elif program == "convoy" and rest[0] == "serve":
            self._serve(rest, folder)
        elif program == "convoy" and rest[0] != "launch":
            # Here, where all is imported.
            self.monkeypatch.chdir(folder)
            assert cli.main(rest) == 0, f"{command} failed; as {words}"
        else:
            self._process([PROGRAMS / program, *rest], folder, command.variables)

    def _process(self, words, folder, variables):
        environment = os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"} | variables
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{words} failed: {done.stdout}{done.stderr}"

    def _serve(self, words, folder):
        command = [PROGRAMS / "convoy", *words]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        self.servers.append(server)
        rest, grpc = (server.stdout.readline().split()[-1] for _ in range(2))
        self.places |= {"REST": rest.split("/")[2], "GRPC": grpc.split(":")[1]}
