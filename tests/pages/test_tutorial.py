"""The commands of the tutorial run, one after the other, in an empty folder."""

import re

from paths import ROOT
from processes import command


def test_the_commands_of_the_tutorial_run(tmp_path):
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert [line.split()[:2] for line in lines] == [
        ["lipcert", name] for name in ("train", "audit", "certify", "check", "attack", "report")
    ]
    for line in lines:
        result = command(*line.split()[1:], cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs" / "tutorial" / "report.html").is_file()
