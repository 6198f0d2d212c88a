"""Train a network on handwritten digits, freeze it, certify it, and draw certified accuracy against the radius.

Run: python examples/quickstart.py [STEPS]
The figure is written to certified.html, which any browser opens.
"""

import sys

import altair as alt
import torch
from torch import nn

import lipcert as lc

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
torch.manual_seed(0)
train, test = lc.load_data("digits", "train"), lc.load_data("digits", "test")

# Every layer is 1-Lipschitz, so a small change of the image is a small change of the logits.
model = nn.Sequential(
    nn.Flatten(), lc.ResidualLinear(64, 128), lc.ResidualLinear(64, 128), lc.NormalizedHead(64, 10)
)
loss = lc.losses.OffsetCrossEntropy(offset=0.7, temperature=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(steps):
    batch = torch.randint(len(train), (128,))
    optimizer.zero_grad()
    loss(model(train.inputs()[batch]), train.labels[batch]).backward()
    optimizer.step()

# The frozen network holds plain numbers. The proof is about exactly those numbers.
network = lc.freeze(model.eval())
result = lc.certify(network, test.inputs(), test.labels)
print(f"natural accuracy {result.natural_accuracy:.1%}")
radii = [index / 50 for index in range(76)]
shares = [result.certified_accuracy(radius) for radius in radii]
print(f"certified accuracy within 36/255: {result.certified_accuracy(36 / 255):.1%}")

rows = [{"radius": radius, "certified": share} for radius, share in zip(radii, shares, strict=True)]
figure = alt.Chart(alt.Data(values=rows)).mark_line()
figure = figure.encode(alt.X("radius:Q", title="L2 radius"), alt.Y("certified:Q", title="certified accuracy"))
figure.save("certified.html")
