from convoy.train.messages import notify


def test_a_message_names_its_command(capsys):
    notify("3 images were skipped.")
    assert capsys.readouterr() == ("", "convoy train: 3 images were skipped.\n")
