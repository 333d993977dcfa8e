"""Pictures in PyTorch: segmentation, super-resolution, printed words and faces."""

from collections.abc import Sequence

import numpy as np
import pictures
import prose
import torch
from common import Data, Place, apart, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import CALIBRATION, by_dynamo, by_torchscript, check, classified, convolution, seeded, tensors, train

# -- segmentation and super-resolution


class UNet(nn.Module):
    """Ronneberger et al. 2015."""

    def __init__(self, widths: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        first, second, third = widths
        self.down1, self.down2, self.deep = self._two(3, first), self._two(first, second), self._two(second, third)
        self.up2, self.up1 = nn.ConvTranspose2d(third, second, 2, 2), nn.ConvTranspose2d(second, first, 2, 2)
        self.join2, self.join1 = self._two(2 * second, second), self._two(2 * first, first)
        self.last = nn.Conv2d(first, pictures.KINDS + 1, 1)

    @staticmethod
    def _two(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(convolution(inside, outside), nn.ReLU(), convolution(outside, outside), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        full = self.down1(x)
        half = self.down2(functional.max_pool2d(full, 2))
        deep = self.deep(functional.max_pool2d(half, 2))
        half = self.join2(torch.cat([half, self.up2(deep)], 1))
        return self.last(self.join1(torch.cat([full, self.up1(half)], 1)))


def shapes_unet(place: Place) -> Data:
    seeded()
    scenes = pictures.scenes(1400, 64, (1, 4), 8)
    x, masks = tensors(np.stack([one.picture for one in scenes]), np.stack([one.mask for one in scenes]))
    model = UNet()
    train(model, [x[:1200], masks[:1200]], classified, 200)
    check(model, x[1200:], masks[1200:])
    free = [{0: "batch", 2: "height", 3: "width"}]
    by_dynamo(place, model, {"image": x[:2]}, ["logits"], 20, free)
    return split({"image": x.numpy()}, CALIBRATION, 100)


def halves(place: Place, size: int, evaluation: int) -> tuple[Tensor, Tensor, Tensor]:
    """Photo crops at half and full resolution to train on, and small ones of other photographs."""
    seen, unseen = pictures.photo_crops(place.packages, 1200, evaluation, size)
    large, other = tensors(pictures.channels_first(seen), pictures.channels_first(unseen))
    return functional.avg_pool2d(large, 2), large, functional.avg_pool2d(other, 2)


def squared(model: nn.Module, small: Tensor, large: Tensor) -> Tensor:
    """Mean squared error."""
    return functional.mse_loss(model(small), large)


def photos_espcn(place: Place) -> Data:
    seeded()
    small, large, other = halves(place, 64, 64)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )
    train(model, [small, large], squared, 300)
    by_dynamo(place, model, {"image": small[:2]}, ["larger"], 19, [{0: "batch", 2: "height", 3: "width"}])
    return split({"image": torch.cat([small, other]).numpy()}, CALIBRATION, 64)


class SrResNet(nn.Module):
    """Ledig et al. 2017, narrow."""

    def __init__(self, width: int = 32, depth: int = 5) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 5, padding=2), nn.PReLU())
        self.body = nn.ModuleList(
            nn.Sequential(convolution(width, width), nn.PReLU(), convolution(width, width)) for _ in range(depth)
        )
        self.last = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(width, 3, 5, padding=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        deep = first
        for block in self.body:
            deep = deep + block(deep)
        return self.last(first + deep)


def photos_srresnet(place: Place) -> Data:
    seeded()
    small, large, other = halves(place, 48, 64)
    model = train(SrResNet(), [small, large], squared, 150).half()
    free = {name: {0: "batch", 2: f"{name}_height", 3: f"{name}_width"} for name in ("image", "larger")}
    by_torchscript(place, model, {"image": small[:1].half()}, ["larger"], 13, free)
    return split({"image": torch.cat([small, other]).numpy().astype(np.float16)}, CALIBRATION, 64)


# -- printed words


class Crnn(nn.Module):
    """Shi et al. 2017: columns of a picture through two directions of an LSTM, out (N, T, letters + 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Sequential(
            *(convolution(1, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(convolution(32, 64), nn.ReLU(), nn.MaxPool2d((2, 1))),
            *(convolution(64, 96), nn.ReLU(), nn.MaxPool2d((2, 1))),
        )
        self.reader = nn.LSTM(96 * 3, 96, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(192, 27)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.columns(x).permute(0, 3, 1, 2).flatten(2)
        return self.letters(self.reader(columns)[0])


def printed(count: int, seed: int) -> tuple[list[np.ndarray], list[str]]:
    """Pictures (1, 1, 24, W) of words, and the words."""
    rng = np.random.default_rng(seed)
    chosen = [str(word) for word in rng.choice(prose.words(), count)]
    return [pictures.line(word, 24, rng)[None, None].astype(np.float32) / 255 for word in chosen], chosen


def ctc_loss(model: Crnn, x: Tensor, letters: Tensor, lengths: Tensor, columns: Tensor) -> Tensor:
    """Connectionist temporal classification."""
    shares = model(x).log_softmax(-1).transpose(0, 1)
    return functional.ctc_loss(shares, letters, columns, lengths, zero_infinity=True)


def words_crnn(place: Place) -> Data:
    seeded()
    images, words = printed(3000, 1)
    wide = max(image.shape[-1] for image in images)
    x = np.concatenate([np.pad(image, ((0, 0),) * 3 + ((0, wide - image.shape[-1]),)) for image in images])
    letters = np.array([[ord(letter) - 96 for letter in word.ljust(10, "a")] for word in words])
    lengths, columns = np.array([len(word) for word in words]), np.array([image.shape[-1] // 2 for image in images])
    model = train(Crnn(), tensors(x, letters, lengths, columns), ctc_loss, 400, 3e-3)
    free = {"image": {0: "batch", 3: "width"}, "logits": {0: "batch", 1: "columns"}}
    by_torchscript(place, model, {"image": torch.as_tensor(images[0])}, ["logits"], 14, free)
    return apart([{"image": image} for image in printed(256, 2)[0]], 128)


# -- as facenet-pytorch ships it


class FaceONet(nn.Module):
    """The last network of MTCNN (Zhang et al. 2016), as facenet-pytorch lays it out."""

    def __init__(self) -> None:
        super().__init__()
        for number, (inside, outside, kernel) in enumerate([(3, 32, 3), (32, 64, 3), (64, 64, 3), (64, 128, 2)], 1):
            self.add_module(f"conv{number}", nn.Conv2d(inside, outside, kernel))
            self.add_module(f"prelu{number}", nn.PReLU(outside))
        self.pools = [nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(3, 2, ceil_mode=True)]
        self.pools += [nn.MaxPool2d(2, 2, ceil_mode=True), nn.Identity()]
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for number, pool in enumerate(self.pools, 1):
            x = pool(self.get_submodule(f"prelu{number}")(self.get_submodule(f"conv{number}")(x)))
        x = self.prelu5(self.dense5(x.permute(0, 3, 2, 1).flatten(1)))
        return self.dense6_2(x), self.dense6_3(x), self.dense6_1(x).softmax(1)


def face_onet(place: Place) -> Data:
    model = FaceONet()
    weights = place.packages / "facenet_pytorch" / "data" / "onet.pt"
    model.load_state_dict(torch.load(weights, weights_only=True))
    crowds = pictures.crowds(place.packages, 500, 48, 11)
    faces = pictures.portraits(place.packages, 400, 48)[..., None].repeat(3, -1)
    mixed = np.random.default_rng(0).permutation(np.concatenate([faces, crowds]))
    x = pictures.channels_first(mixed, 127.5 / 255, 128 / 255)
    by_torchscript(place, model, {"image": torch.zeros(1, 3, 48, 48)}, ["box", "landmarks", "face"], 11)
    return split({"image": x}, CALIBRATION, 500)
