import pytest
from convoy_command import cli
from convoy_command.parser import Parser, suggestion


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("epcohs", ". Did you mean --epochs?"),
        ("epoch", ". Did you mean --epochs?"),
        ("size", ". Did you mean --batch-size?"),
        ("batch-si", ". Did you mean --batch-size?"),
        ("zzz", "."),
    ],
)
def test_a_sentence_about_an_unknown_word_ends_with_the_nearest(word, end):
    assert suggestion(word, ["epochs", "batch-size", "model"], "--") == end


def test_a_misspelt_flag_is_named_before_the_one_that_is_missing_without_it(capsys):
    parser = Parser(prog="program")
    parser.add_argument("--output", required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--outptu", "x"])
    assert capsys.readouterr().err == (
        "program: error: --outptu is not a flag. Did you mean --output?\n"
    )
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "the following arguments are required: --output" in capsys.readouterr().err


def test_flags_of_two_parsers_are_known(capsys):
    parser, other = Parser(prog="program"), Parser()
    parser.add_argument("--folder")
    other.add_argument("--model")
    parser.check_rest(["--model", "x"], other)
    for word, known in (("--foldr", "--folder"), ("--modle=x", "--model")):
        with pytest.raises(SystemExit):
            parser.check_rest([word], other)
        assert capsys.readouterr().err.endswith(f" is not a flag. Did you mean {known}?\n")


@pytest.mark.parametrize("flag", ["--num-epochs", "--epochs"])
def test_an_error_names_the_flag_as_it_was_typed(capsys, flag):
    parser = Parser(prog="program")
    parser.add_argument("--num-epochs", "--epochs")
    parser.parse_args([f"{flag}=0"])
    with pytest.raises(SystemExit):
        parser.error("--num-epochs 0: pass 1 or more, or --num-epochs-more.")
    assert capsys.readouterr().err == (
        f"program: error: {flag} 0: pass 1 or more, or --num-epochs-more.\n"
    )


def test_subcommands_take_no_abbreviations_either(capsys):
    parser = Parser(prog="program")
    below = parser.add_subparsers(dest="verb").add_parser("run")
    below.add_argument("--folder")
    assert parser.parse_args(["run", "--folder", "x"]).folder == "x"
    with pytest.raises(SystemExit):
        parser.parse_args(["run", "--fold", "x"])
    assert capsys.readouterr().err == (
        "program run: error: --fold is not a flag. Did you mean --folder?\n"
    )


def test_a_word_that_a_flag_does_not_take_is_answered_with_those_it_does(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["export", "--export-dir", "x", "--preprocessing", "scal"])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'scal' is not one of scale, " in line
    assert line.endswith("Did you mean scale?")


def test_train_reads_its_flags_itself(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--modle", "x"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "convoy train: error: --modle is not a flag. Did you mean --model?\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "launch --num-instnces 2 x.py",
            "launch: error: --num-instnces is not a flag. Did you mean --num-instances?",
        ),
        (
            "launch --num-instnces=2 x.py",
            "launch: error: --num-instnces is not a flag. Did you mean --num-instances?",
        ),
        (
            "data verify --dataset digits --dataset-paht x",
            "data verify: error: --dataset-paht is not a flag. Did you mean --dataset-path or "
            "--dataset?",
        ),
        (
            "checkpoint list folder stray",
            "checkpoint list: error: 'stray' was not expected; flags begin with --",
        ),
        (
            "doctor --zzz",
            "doctor: error: --zzz is not a flag. See the flags with: convoy doctor --help",
        ),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest_of_its_verb(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(words.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"convoy {said}\n"
