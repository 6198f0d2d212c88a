"""The command line: one file per command, torch imported only when a command runs."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {  # the class that runs it, as module.name, and what it does
    "demo": ("demo.Demo", "the whole story on the embedded digits, in a few minutes"),
    "train": ("train.Train", "train a certified network"),
    "certify": ("certify.Certify", "radii that hold in float64, and a certificate to check"),
    "audit": ("audit.Audit", "prove the constant of every layer, or say which has no proof"),
    "check": ("check.Check", "verify a certificate with the independent checker"),
    "attack": ("attack.Attack", "try to change the answers that are not certified"),
    "report": ("report.Report", "one page of all that runs have proved"),
    "compare": ("compare.Compare", "methods side by side at equal budget"),
    "reproduce": ("reproduce.Reproduce", "a table of the paper, its numbers beside ours"),
    "export": ("export.Export", "the frozen network for another program"),
    "import": ("importing.Import", "a run folder from a checkpoint of the paper's code"),
    "data": ("data.Data", "list the named data sets, or get one ready"),
    "models": ("models.Models", "list the named architectures, or all fields of one"),
    "bench": ("bench.Bench", "what named networks cost on this machine"),
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
    """``lipcert COMMAND``: 0 the claim holds, 1 it does not, 2 bad usage or bad input."""
    words = sys.argv[1:]
    if words in (["-h"], ["--help"]):
        print(HELP)
        sys.exit(0)
    if words == ["--version"]:
        from lipcert import __version__

        print(f"lipcert {__version__}")
        sys.exit(0)
    if not words or words[0] not in COMMANDS:
        expected, got = ", ".join(COMMANDS), repr(words[0]) if words else "none"
        print(f"lipcert: expected a command, {expected}; got {got}. Run lipcert --help.", file=sys.stderr)
        sys.exit(2)

    from lipcert.cli.memory import keep_memory
    from lipcert.cli.parse import parsed

    keep_memory()
    module, name = COMMANDS[words[0]][0].split(".")
    home = import_module(f"lipcert.cli.{module}")
    try:
        if words[0] == "train":  # its defaults may come from a file
            command = home.parse_train(words[1:])
        else:
            command = parsed(getattr(home, name), words[1:], f"lipcert {words[0]}")
        sys.exit(command.run())
    except (ValueError, OSError, MemoryError) as error:  # bad input: one line, no traceback
        print(f"lipcert: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        kept = f"; {interrupt}" if str(interrupt) else ""
        print(f"lipcert: interrupted{kept}", file=sys.stderr)
        sys.exit(130)


def one_line(error: Exception) -> str:
    """What went wrong, with the file it went wrong with."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    if type(error).__name__ == "ValidationError":  # pydantic's, without importing it
        from lipcert.cli.train import one_line_of

        return one_line_of(error)
    return str(error)
