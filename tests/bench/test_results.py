import subprocess

from convoy.bench.results import git_commit


def test_the_commit_of_a_repository_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_commit() == "Not a git repo"
    commands = ["git init -q .", "git -c user.name=a -c user.email=b commit -qm x --allow-empty"]
    for command in commands:
        subprocess.run(command.split(), check=True)
    assert len(git_commit()) == 40
