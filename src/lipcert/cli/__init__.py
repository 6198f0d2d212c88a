"""The command line: one file per command, torch imported only when a command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """``lipcert COMMAND``: 0 the claim holds, 1 it does not, 2 bad usage or bad input."""
    import tyro

    from lipcert.cli.attack import Attack
    from lipcert.cli.audit import Audit
    from lipcert.cli.certify import Certify
    from lipcert.cli.check import Check
    from lipcert.cli.compare import Compare
    from lipcert.cli.data import Data
    from lipcert.cli.demo import Demo
    from lipcert.cli.export import Export
    from lipcert.cli.importing import Import
    from lipcert.cli.memory import keep_memory
    from lipcert.cli.models import Models
    from lipcert.cli.report import Report
    from lipcert.cli.reproduce import Reproduce
    from lipcert.cli.train import Train, parse_train

    keep_memory()
    try:
        if sys.argv[1:] == ["--version"]:
            from lipcert import __version__

            print(f"lipcert {__version__}")
            sys.exit(0)
        if sys.argv[1:2] == ["train"]:  # its defaults may come from a file
            sys.exit(parse_train(sys.argv[2:]).run())
        command = tyro.extras.subcommand_cli_from_dict(
            {
                "demo": Demo,
                "train": Train,
                "certify": Certify,
                "audit": Audit,
                "check": Check,
                "attack": Attack,
                "compare": Compare,
                "reproduce": Reproduce,
                "report": Report,
                "export": Export,
                "data": Data,
                "models": Models,
                "import": Import,
            },
            prog="lipcert",
            description="Certified 1-Lipschitz neural networks: build them, train them, prove them.",
        )
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
