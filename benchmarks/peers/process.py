"""Process of a runner, controlled by the coordinator."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers import environments, protocol
from benchmarks.peers.peers import Contender


class RunnerProcess:
    """A runner that runs only during its turns.

    Between turns the process is stopped by a signal, so that its thread pools take no CPU time from
    the peer whose turn it is.
    """

    def __init__(self, contender: Contender, log: Path, keeps_programs: bool = True) -> None:
        self.contender, peer = contender, contender.peer
        variables = {**os.environ, **peer.variables, **(peer.programs if keeps_programs else {})}
        variables.pop("KERAS_BACKEND", None)
        module = f"benchmarks.peers.{peer.runner}"
        with log.open("w") as errors:
            self.process: subprocess.Popen[Any] = subprocess.Popen(
                [str(environments.python(peer.environment)), "-m", module, peer.variant],
                cwd=environments.ROOT,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def prepare(self, workload: str, timeout: float) -> protocol.Ready:
        line = f"prepare {workload} {self.contender.precision}"
        return protocol.parse_ready(self.request(line, timeout))

    def run(self, steps: int, timeout: float) -> float:
        """Run some steps and return their seconds, as the runner measured them."""
        return protocol.parse_seconds(self.request(f"run {steps}", timeout))

    def processor_seconds(self) -> float:
        """Return the CPU time of all its threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """Return the largest physical memory that it has used, since the last reset."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    def reset_peak(self) -> None:
        reset_peak_memory = "5"
        Path(f"/proc/{self.process.pid}/clear_refs").write_text(reset_peak_memory)

    def end(self) -> None:
        """Close its input, which ends it; if it does not end, kill it."""
        self._signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def request(self, line: str, timeout: float) -> str:
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            raise protocol.RunnerError(f"no response to {line!r} in {timeout:.0f} seconds")
        response = self.process.stdout.readline().decode()
        if not response:
            raise self._ended()
        self._signal(signal.SIGSTOP)
        return response

    def _ended(self) -> protocol.RunnerError:
        status = self.process.wait()
        killed = " by SIGKILL, as the kernel does when no memory is left" if status == -9 else ""
        return protocol.RunnerError(f"its process ended ({status}){killed}")

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
