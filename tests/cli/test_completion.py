import subprocess

import pytest
from convoy_command import cli
from tests import parts

COMPLETE = """
source "$1"
convoy_completes() {
  COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
  "$function" convoy "${@: -1}" "${@: -2:1}"
  echo "${COMPREPLY[@]}"
}
function=$(complete -p convoy | sed 's/.*-F \\([^ ]*\\).*/\\1/')
convoy_completes convoy ch
convoy_completes convoy train --pipeline-sp
convoy_completes convoy train --optimizer ad
convoy_completes convoy train --config cifar10_f
convoy_completes convoy checkpoint sh
convoy_completes convoy checkpoint verify "$2/ep"
convoy_completes convoy data verify --dataset cifar1
"""


@parts.needs("bash")
def test_bash_completes_verbs_flags_words_and_files(tmp_path, capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "convoy.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "epoch-1").touch()
    words = ["bash", "-c", COMPLETE, "bash", script, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["checkpoint"],
        ["--pipeline-splits"],
        ["adam", "adamw"],
        ["cifar10_fast"],
        ["show"],
        [str(tmp_path / "epoch-1")],
        ["cifar10", "cifar100"],
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in cli.VERBS)
