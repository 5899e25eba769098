"""Every page is followed from top to bottom, in a folder of its own.

Python code runs as it stands. Commands run at a small size, by the rules in `small.py`; `choice.py`
says which of them run elsewhere, by `make test-all` only, or not at all.
"""

import sys
from contextlib import nullcontext

import pytest

from .choice import NOT_RUN, RUN_BY, SLOW, fitting
from .pages import PAGES, ROOT, blocks, commands, commands_of
from .reader import names_at_hand, write_data_sets, write_files_at_hand, write_house
from .small import RULES, fitting_rule
from .terminal import Terminal

WHOLE = [command for command in commands() if command.whole]
# The tutorial's code is run with its own data by tests/examples/test_mnist.py.
CODE_ELSEWHERE = {ROOT / "examples/mnist/README.md"}
# What a page says that its commands print.
PRINTED = {ROOT / "README.md": "Accuracy: ", ROOT / "docs/serving.md": "Accuracy: "}


def has_code(page):
    return page not in CODE_ELSEWHERE and any(b.language == "python" for b in blocks(page))


def is_run(command, *, slow):
    if fitting(command, NOT_RUN) or fitting(command, RUN_BY):
        return False
    return slow or not fitting(command, SLOW)


def pages(*, slow):
    """Return the pages that have something to run: fast, or something slow."""
    if slow:
        found = {c.page for c in WHOLE if is_run(c, slow=True) and not is_run(c, slow=False)}
    else:
        found = {c.page for c in WHOLE if is_run(c, slow=False)} | set(filter(has_code, PAGES))
    return sorted(found)


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory):
    return write_data_sets(tmp_path_factory.mktemp("data-sets"))


@pytest.fixture
def follow(data_sets, tmp_path, monkeypatch):
    """Return a function that does all that a page says."""
    monkeypatch.setattr(sys, "argv", ["page.py", "--help"])

    def run(page, *, slow):
        house = write_house(tmp_path / "house")
        monkeypatch.chdir(house)
        names, has_files = names_at_hand(page), False
        with Terminal(house, data_sets, monkeypatch) as terminal:
            for number, block in enumerate(blocks(page), start=1):
                if block.language == "python" and has_code(page):
                    run_code(page, number, block, names)
                for command in commands_of(page, block):
                    if not is_run(command, slow=slow):
                        continue
                    if not has_files:
                        write_files_at_hand(page, house, data_sets)
                        has_files = True
                    terminal.run(command)

    return run


def run_code(page, number, block, names):
    code = compile(block.text, f"{page.relative_to(ROOT)}, block {number}", "exec")
    passes_status = "sys.exit(" in block.text
    with pytest.raises(SystemExit, match=r"^0$") if passes_status else nullcontext():
        exec(code, names)


# Keras's own, where `keras.ops` compares whole numbers with a network's outputs.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")
@pytest.mark.parametrize("page", pages(slow=False), ids=lambda page: page.stem)
def test_what_a_page_says_works(page, follow, capsys):
    follow(page, slow=False)
    assert PRINTED.get(page, "") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", pages(slow=True), ids=lambda page: str(page.relative_to(ROOT).with_suffix(""))
)
def test_what_a_page_says_works_with_commands_that_take_long(page, follow):
    follow(page, slow=True)


@pytest.mark.parametrize("table", [NOT_RUN, RUN_BY, SLOW], ids=["not run", "run by", "slow"])
def test_only_commands_that_are_on_a_page_are_set_apart(table):
    assert set(table) == {fitting(command, table) for command in WHOLE} - {None}


def test_every_rule_is_for_a_command():
    assert set(RULES) == {fitting_rule(command) for command in WHOLE} - {None}


def test_tests_that_run_a_command_are_there():
    for name in RUN_BY.values():
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text()
