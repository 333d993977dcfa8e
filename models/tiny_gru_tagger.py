"""Recipe of `tiny_gru_tagger`: an embedding and a bidirectional GRU, operators that compute in float on any weights."""

import numpy as np
import tags
import torch
import training
from torch import nn

EPOCHS = 25
BATCHES_PER_EPOCH = 100
BATCH = 64


class Network(nn.Module):
    """Input (n, t) int64 tokens, output (n, t, 8) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tags.VOCABULARY, 48)
        self.gru = nn.GRU(48, 56, batch_first=True, bidirectional=True)
        self.classifier = nn.Sequential(nn.Linear(112, 64), nn.ReLU(), nn.Linear(64, tags.TAGS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, t) -> (n, t, 8)."""
        states, _ = self.gru(self.embedding(tokens))
        return self.classifier(states)


def train() -> Network:
    """Train on sequences that are generated anew for every batch."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = Network()

    def batches(_: int) -> training.Batches:
        for _ in range(BATCHES_PER_EPOCH):
            tokens, expected = tags.sequences(BATCH, rng)
            yield torch.from_numpy(tokens), torch.from_numpy(expected)

    def loss(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten())

    training.fit(network, batches, loss, EPOCHS, EPOCHS * BATCHES_PER_EPOCH, rate=1e-2)
    return network


EXPORT = training.Export(
    example=torch.zeros(2, tags.LENGTH, dtype=torch.int64), input="tokens", output="logits", axes={0: "N", 1: "T"}
)
