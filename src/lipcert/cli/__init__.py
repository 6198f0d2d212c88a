"""The command line: one file per command, torch imported only when a command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """``lipcert COMMAND``: 0 the claim holds, 1 it does not, 2 bad usage or bad input."""
    import tyro

    from lipcert.cli.demo import Demo

    command = tyro.extras.subcommand_cli_from_dict(
        {"demo": Demo},
        prog="lipcert",
        description="Certified 1-Lipschitz neural networks: build them, train them, prove them.",
    )
    try:
        sys.exit(command.run())
    except ValueError as error:  # bad input: one line, no traceback
        print(f"lipcert: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("lipcert: interrupted", file=sys.stderr)
        sys.exit(130)
