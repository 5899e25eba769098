"""Starts the processes of `victim.py`, and kills them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).parent / "victim.py"


class Ended(NamedTuple):
    """How a run ended: its exit status (minus the signal), outcome if any, and ticks."""

    status: int
    outcome: dict | None
    ticks: list


class Victims:
    """A process that starts others to be killed."""

    def __init__(self, cache):
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CONVOY_COMPILATION_CACHE": str(cache)},
        )

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def run(self, variant, folder, after=None, what="", sent=(signal.SIGKILL,)):
        """Run to the end, or until a tick of some kind after a number of ticks, and then kill.

        Args:
            variant: what to train.
            folder: where its checkpoints are.
            after: how many ticks to wait for; `None` lets it run.
            what: the kind of the tick at which it is killed; any if empty.
            sent: the signals that it is sent.
        """
        self.process.stdin.write(f"{variant} {folder}\n")
        self.process.stdin.flush()
        pid, outcome, ticks, due = None, None, [], False
        for line in self.process.stdout:
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "pid":
                pid = int(rest)
            elif kind == "tick":
                ticks.append(rest)
                due = due or (after is not None and len(ticks) >= after and rest.startswith(what))
            elif kind == "result":
                outcome = json.loads(rest)
            elif kind == "ended":
                return Ended(int(rest), outcome, ticks)
            if due and pid is not None and sent:
                for number in sent:
                    os.kill(pid, number)
                sent = ()
        raise AssertionError("The victims' parent has died; see its output above.")


def kill_until_done(victims, variant, folder, rng, kills):
    """Kill a run again and again at random moments, every other time during a save.

    Returns:
        How the last one ended, which was let be, and at what the others were killed.
    """
    killed = []
    while len(killed) < kills:
        what = "" if len(killed) % 2 else ("sync", "rename")[rng.integers(2)]
        ended = victims.run(variant, folder, after=int(rng.integers(1, 30)), what=what)
        if ended.status == 0:
            break
        assert ended.status == -signal.SIGKILL, ended
        killed.append(ended.ticks[-1])
    return victims.run(variant, folder), killed
