"""Where the repository is, for tests that read its pages and results."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
