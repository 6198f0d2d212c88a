"""Write a certificate, verify it with one file that needs numpy alone, and see that a changed radius is refuted.

Run: python examples/verify_certificate.py
The checker gets a folder with check.py, certificate.json and two tensor files: what you would send to others.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lipcert as lc
from lipcert import check

with TemporaryDirectory() as place:
    config = lc.TrainConfig(model="sll_nano", data="digits", steps=40, offset=0.7, temperature=0.1, threads=1)
    run = lc.train(config, Path(place) / "run")
    run.certify(examples=50)
    certificate = run.folder / "certificate.json"
    record = json.loads(certificate.read_text())

    # What somebody else needs. Nothing of it imports lipcert or torch.
    sent = Path(place) / "sent"
    sent.mkdir()
    for name in (record["weights"], record["inputs"]["file"], certificate.name):
        shutil.copy(run.folder / name, sent)
    shutil.copy(check.__file__, sent / "check.py")

    def verify():
        words = [sys.executable, "-I", "check.py", "certificate.json"]
        return subprocess.run(words, cwd=sent, capture_output=True, text=True, check=False)

    answer = verify()
    print(answer.stdout.strip())
    assert answer.returncode == 0

    # A radius that is one per cent larger than what is proved.
    index, label, radius = record["claims"][0]
    record["claims"][0] = [index, label, (1.01 * float.fromhex(radius)).hex()]
    (sent / certificate.name).write_text(json.dumps(record))
    answer = verify()
    print(answer.stdout.strip())
    print(f"exit code after the change: {answer.returncode}")
    assert answer.returncode == 1
