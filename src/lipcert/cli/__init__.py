"""The command line: one file per command, torch imported only when a command runs."""

from __future__ import annotations

import os
import sys
from importlib import import_module

COMMANDS = {  # the class that runs it, as module.name, and what it does
    "demo": ("demo.Demo", "train, prove, attack and report on the embedded digits"),
    "train": ("train.Train", "train a certified network"),
    "certify": ("certify.Certify", "compute radii that hold in float64, with a certificate"),
    "audit": ("audit.Audit", "prove the constant of every layer, or say which has no proof"),
    "check": ("check.Check", "verify a certificate with the independent checker"),
    "predict": ("predict.Predict", "classify images of your own, with certified radii"),
    "attack": ("attack.Attack", "try to change the answers that are not certified"),
    "report": ("report.Report", "write one page about one run or several"),
    "compare": ("compare.Compare", "compare methods at equal budget"),
    "reproduce": ("reproduce.Reproduce", "make a table of the paper, with its numbers beside ours"),
    "export": ("export.Export", "write the frozen network for another program"),
    "import": ("importing.Import", "make a run folder from a checkpoint of the paper's code"),
    "data": ("data.Data", "list the named data sets, or prepare one"),
    "models": ("models.Models", "list the named architectures, or all fields of one"),
    "bench": ("bench.Bench", "measure what named networks cost on this machine"),
}
HELP = """usage: lipcert COMMAND ...

Certified 1-Lipschitz neural networks: build them, train them, prove them.

{}

lipcert COMMAND --help    the options of a command
lipcert --version
Exit codes: 0 the claim holds, 1 it does not, 2 bad usage or bad input.""".format(
    "\n".join(f"  {name:11}{line}" for name, (_, line) in COMMANDS.items())
)


def main() -> None:
    """Run ``lipcert COMMAND`` and exit: 0 the claim holds, 1 it does not, 2 bad usage or bad input."""
    from lipcert.errors import MissingExtra

    message, broken = "", False
    try:
        code = run(sys.argv[1:])
    except SystemExit as leaving:  # tyro has printed the help
        code = leaving.code
    except (ValueError, OSError, MemoryError, MissingExtra) as error:
        code, message = 2, describe(error)
        broken = isinstance(error, BrokenPipeError)
    except KeyboardInterrupt as interrupt:
        code, message = 130, f"interrupted; {interrupt}" if str(interrupt) else "interrupted"
    try:
        print(end="\n" if broken else "", flush=True)  # fails if the broken pipe is this one
    except BrokenPipeError:
        # Whoever read the output has seen enough, as in `lipcert models | head`: end as SIGPIPE would, silently.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    if message:
        print(f"lipcert: {message}", file=sys.stderr)
    if "RANK" in os.environ and not isinstance(code, str):
        # torchrun: at the usual end of a process, threads that its group has left behind can still abort it.
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


def run(words: list[str]) -> int | str | None:
    """Run the command that ``words`` name and return its exit code."""
    if not words or words[0] == "help":
        words = [*words[1:2], "--help"]
    if words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] == "--version":
        from lipcert import __version__

        print(f"lipcert {__version__}")
        return 0
    from lipcert.errors import name_extra, suggest

    if words[0] not in COMMANDS:
        raise ValueError(f"there is no command {words[0]!r}{suggest(words[0], COMMANDS)} Run lipcert --help.")
    from lipcert.cli.parse import parse

    module, name = COMMANDS[words[0]][0].split(".")
    with name_extra(f"lipcert {words[0]}"):
        home = import_module(f"lipcert.cli.{module}")
        if words[0] in ("train", "data"):  # defaults from a file; subcommands
            command = home.parse_words(words[1:])
        else:
            command = parse(getattr(home, name), words[1:], f"lipcert {words[0]}")
        return command.run()


def describe(error: Exception) -> str:
    """Return what went wrong in one line, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    if type(error).__name__ == "ValidationError":  # pydantic's, without importing it
        from lipcert.errors import explain

        return explain(error)  # type: ignore[arg-type]
    return str(error)
