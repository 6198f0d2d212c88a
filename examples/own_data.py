"""Train and certify on your own images: an .npz file with x_train, y_train, x_test and y_test.

Run: python examples/own_data.py
The images here are random stripes, horizontal or vertical, as 8-bit gray values of shape (N, 1, 8, 8).
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import lipcert as lc

rng = np.random.default_rng(0)


def stripes(count):
    labels = rng.integers(0, 2, count)
    rows = np.repeat(rng.integers(0, 2, (count, 8, 1)), 8, axis=2)
    images = np.where(labels[:, None, None], rows, rows.transpose(0, 2, 1)) * 200
    return (images[:, None] + rng.integers(0, 50, (count, 1, 8, 8))).astype(np.uint8), labels


with TemporaryDirectory() as folder:
    path = Path(folder) / "stripes.npz"
    (x_train, y_train), (x_test, y_test) = stripes(1000), stripes(200)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    config = lc.TrainConfig(model="sll_nano", data=str(path), steps=40, offset=0.7, temperature=0.1, threads=1)
    run = lc.train(config, Path(folder) / "run")
    run.certify(examples=100)
    print(f"natural accuracy {run.natural:.1%}, certified within 36/255: {run.certified(36 / 255):.1%}")
