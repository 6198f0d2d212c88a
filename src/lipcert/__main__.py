"""``python -m lipcert`` is ``lipcert``."""

from lipcert.cli import main

main()
