"""A stand-in for Slurm on one machine: `sbatch` as a function, `srun` and `scontrol` as programs.

It reads the directives of a batch file, sets the variables that Slurm sets, and starts the tasks of
a step as processes of this machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

# A first line of `#!` cannot have a path with spaces. The second is a command for the shell and a
# text for Python.
SRUN = f"""#!/bin/sh
''''exec "{sys.executable}" "$0" "$@" # '''
import os, subprocess, sys, time
words = sys.argv[1:]
options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
place = next(i for i, word in enumerate(words) if not word.startswith("-"))
count = int(os.environ["SLURM_NTASKS"])
step = dict(SLURM_STEP_NUM_TASKS=str(count), SLURM_STEP_NODELIST="localhost")
tasks = [
    subprocess.Popen(words[place:], env=os.environ | step | dict(SLURM_PROCID=str(index)))
    for index in range(count)
]
print(*(task.pid for task in tasks), file=open("pids", "w"), flush=True)
end = None
while any(task.poll() is None for task in tasks):
    if end is None and any(task.poll() is not None for task in tasks):
        end = time.monotonic() + int(options["--wait"])
    if end is not None and time.monotonic() > end:
        for task in tasks:
            task.kill()
    time.sleep(0.05)
statuses = [task.wait() for task in tasks]
sys.exit(max(128 - status if status < 0 else status for status in statuses))
"""
SCONTROL = '#!/bin/sh\necho "$@" >> scontrol.txt\n'


def directives(text):
    """Return the options of a batch file; those without a value have an empty one."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.M))


def fill_in(text, **values):
    """Fill in the places of a written job."""
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


class Slurm:
    """A cluster of one machine.

    Args:
        folder: from which jobs are submitted.
    """

    def __init__(self, folder):
        self.folder, self.programs = Path(folder), Path(folder) / "slurm"
        self.programs.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def start(self, text):
        """Start the batch file of a job, whose places are filled in."""
        options = directives(text)
        (self.folder / "job.sbatch").write_text(text)
        tasks = int(options["nodes"]) * int(options["ntasks-per-node"])
        variables = {name: value for name, value in os.environ.items() if name[:4] != "XLA_"}
        variables |= {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_NTASKS": str(tasks),
            "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
        }
        return subprocess.Popen(
            ["bash", "job.sbatch"],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, text):
        """Run the batch file; return its exit status and output."""
        with self.start(text) as batch:
            output, _ = batch.communicate()
        return batch.returncode, output

    @property
    def requeued(self):
        """The calls of `scontrol`."""
        path = self.folder / "scontrol.txt"
        return path.read_text().splitlines() if path.exists() else []
