"""`convoy compile`: compiles the programs of a run for devices of other machines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from convoy.cli.train import parse
from convoy.compile import output
from convoy.compile.console import Console
from convoy.compile.exported import run_exported
from convoy.compile.failures import TargetError
from convoy.compile.session import CompileResult, compile_run
from convoy.compile.sources import run_program, run_training
from convoy.compile.targets import parse_target
from convoy.compile.toolchain import open_target
from convoy.configuration import Configuration, ConfigurationError, Count, add_flags, read
from convoy_command.parser import Parser, stop

PROGRAM = "convoy compile"
USAGE = (
    f"{PROGRAM} --target TARGET "
    "[--flag of convoy train ... | --exported FOLDER | script.py its arguments]"
)


@dataclass(frozen=True)
class CompileOptions(Configuration, all_flags=True):
    """Flags of `convoy compile`.

    Attributes:
        target: devices: tpu:v5e:4x4, tpu:v6e:16x16, gpu:h100:8, gpu:h100:4x8 (4 hosts)
        json: print a JSON document instead of text
        replicas: replicas of a script that does not use Convoy; batch_size is the global batch
        exported: folder of a model that convoy export has written; its programs are compiled
    """

    target: str
    json: bool = False
    replicas: Count | None = None
    exported: str | None = None


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage=USAGE,
        description="Compile the programs of a run for devices that this machine does not have, "
        "and show their memory, work and communication. Takes the flags of convoy train, a script, "
        "or an exported model.",
        epilog="The exit status is 0 if all programs fit into the memory of the devices, otherwise "
        "1. It is 2 if the options or the installed compilers are not valid.",
    )
    add_flags(parser, CompileOptions)
    return parser


def main(words: Sequence[str]) -> int:
    """Compile programs for a target; return the exit status."""
    own, script = _divide(words)
    parser = make_parser()
    flags, others = parser.parse_known_args(own)
    try:
        options = read(CompileOptions, vars(flags), flags=True)
        target = parse_target(options.target)
        opened = open_target(target)
    except (ConfigurationError, TargetError) as error:
        parser.error(str(error))
    with Console() as console:
        if script:
            if others:
                parser.error(
                    f"{others[0]} is not a flag of {PROGRAM}. Flags of the script follow its name."
                )
            if not Path(script[0]).is_file():
                parser.error(f"{script[0]} is not a file. Pass the path of a script.")
            run = partial(run_program, script, options.replicas)
        elif options.exported is not None:
            if others:
                parser.error(f"{others[0]} cannot be combined with --exported. Leave one out.")
            run = partial(run_exported, options.exported)
        else:
            run = partial(run_training, parse(others, PROGRAM), console.line)
        try:
            result = compile_run(target, opened, run, console)
        except ValueError as error:
            if script:
                raise  # with the place in the script
            stop(str(error), PROGRAM)
    if not (result.programs or result.rejected):
        parser.error(
            "the run has compiled nothing: no model of a strategy was trained, evaluated "
            "or used for prediction. Pass --replicas for a script that does not use "
            "Convoy."
        )
    print(json.dumps(output.document(result), indent=2) if options.json else _as_text(result))
    return 0 if result.fits else 1


def _divide(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the command line before the script, if there is one."""
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
    return list(words[:place]), list(words[place:])


def _as_text(result: CompileResult) -> str:
    programs = [output.describe(program, result.target) for program in result.programs]
    stages = [output.describe_stages(result.stages, result.target)] if result.stages else []
    heading = output.heading(result.target, result.hosts)
    parts = [heading, *programs, *stages, output.verdict(result)]
    return "\n\n".join(parts)
