"""The command line: one file per command, torch imported only when a command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """``lipcert COMMAND``: 0 the claim holds, 1 it does not, 2 bad usage or bad input."""
    import tyro

    from lipcert.cli.data import Data
    from lipcert.cli.demo import Demo

    command = tyro.extras.subcommand_cli_from_dict(
        {"demo": Demo, "data": Data},
        prog="lipcert",
        description="Certified 1-Lipschitz neural networks: build them, train them, prove them.",
    )
    try:
        sys.exit(command.run())
    except (ValueError, OSError, MemoryError) as error:  # bad input: one line, no traceback
        print(f"lipcert: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("lipcert: interrupted", file=sys.stderr)
        sys.exit(130)


def one_line(error: Exception) -> str:
    """What went wrong, with the file it went wrong with."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    return str(error)
