"""Pictures in PyTorch: classifiers, detectors, segmentation, super-resolution and reading printed words."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pictures
import prose
import torch
from common import Data, Place, apart, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import by_dynamo, by_torchscript, check, classified, seeded, tensors, train

KINDS = len(pictures.SHAPES)
CALIBRATION = 256


def convolution(inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch normalization."""
    layer = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside))


def head(channels: int, classes: int) -> nn.Sequential:
    """The end of a classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


# -- classifiers


class Residual(nn.Module):
    """He et al. 2016, with two convolutions."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(inside, outside, stride=stride), nn.ReLU(), convolution(outside, outside))
        self.past = convolution(inside, outside, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.past(x))


def digits_resnet(place: Place) -> Data:
    seeded()
    x, y = pictures.digits(16)
    model = nn.Sequential(
        convolution(1, 24), nn.ReLU(), Residual(24, 24, 1), Residual(24, 48, 2), Residual(48, 96, 2), head(96, 10)
    )
    train(model, tensors(x[:1200], y[:1200]), classified, 150)
    check(model, x[1200:], y[1200:])
    by_torchscript(place, model, {"image": torch.zeros(1, 1, 16, 16)}, ["logits"], 7)
    return split({"image": x}, CALIBRATION, 597)


class InvertedResidual(nn.Module):
    """Sandler et al. 2018: expand, depthwise, project."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int = 4) -> None:
        super().__init__()
        wide = inside * expansion
        self.add = stride == 1 and inside == outside
        self.body = nn.Sequential(
            convolution(inside, wide, 1),
            nn.ReLU6(),
            convolution(wide, wide, 3, stride, wide),
            nn.ReLU6(),
            convolution(wide, outside, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.add else self.body(x)


def shapes_mobilenet_v2(place: Place) -> Data:
    seeded()
    x, y = pictures.single_shapes(8500, 48)
    stages = [(16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
    model = nn.Sequential(
        convolution(3, 16, 3, 2),
        nn.ReLU6(),
        *(InvertedResidual(*stage) for stage in stages),
        convolution(80, 192, 1),
        nn.ReLU6(),
        head(192, KINDS),
    )
    train(model, tensors(x[:8000], y[:8000]), classified, 600)
    check(model, x[8000:], y[8000:])
    by_torchscript(place, model, {"input": torch.zeros(1, 3, 48, 48)}, ["output"], 9)
    return split({"input": x}, CALIBRATION, 500)


class Shuffled(nn.Module):
    """Ma et al. 2018: half of the channels pass, the other half is convolved, then both are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            convolution(half, half, 1),
            nn.ReLU(),
            convolution(half, half, 3, 1, half),
            convolution(half, half, 1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        past, new = x.chunk(2, 1)
        joined = torch.cat([past, self.body(new)], 1)
        count, channels, height, width = joined.shape
        return joined.reshape(count, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


def digits_shufflenet(place: Place) -> Data:
    seeded()
    x, y = pictures.digits(24)
    model = nn.Sequential(
        *(convolution(1, 32, 3, 2), nn.ReLU(), Shuffled(32), Shuffled(32)),
        *(convolution(32, 96, 3, 2), nn.ReLU(), Shuffled(96), Shuffled(96), Shuffled(96)),
        *(convolution(96, 160, 1), nn.ReLU(), head(160, 10)),
    )
    train(model, tensors(x[:1200], y[:1200]), classified, 300)
    check(model, x[1200:], y[1200:])
    by_torchscript(place, model, {"image": torch.zeros(1, 1, 24, 24)}, ["logits"], 10)
    return split({"image": x}, CALIBRATION, 597)


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2021, the patches by three convolutions (Xiao et al. 2021), to learn from few pictures."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        widths = (3, width // 4, width // 2, width)
        stages = (nn.Sequential(convolution(a, b, 3, 2), nn.ReLU()) for a, b in pairwise(widths))
        self.patches = nn.Sequential(*stages, nn.Conv2d(width, width, 1))
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // 8) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.body(tokens)[:, 0])


def shapes_vit(place: Place) -> Data:
    seeded()
    x, y = pictures.single_shapes(10500, 48)
    model = VisionTransformer(48, 96, 4)
    train(model, tensors(x[:10000], y[:10000]), classified, 900, 1e-3)
    check(model, x[10000:], y[10000:])
    by_dynamo(place, model, {"pixels": torch.zeros(2, 3, 48, 48)}, ["logits"], 18)
    return split({"pixels": x}, CALIBRATION, 500)


# -- detectors


def backbone(widths: Sequence[int]) -> nn.ModuleList:
    """Stages that halve height and width."""
    pairs = zip((3, *widths), widths, strict=False)
    return nn.ModuleList(
        nn.Sequential(convolution(a, b, 3, 2), nn.SiLU(), convolution(b, b), nn.SiLU()) for a, b in pairs
    )


def batched(found: Sequence[pictures.Scene], most: int = 4) -> list[Tensor]:
    """Pictures, boxes (N, most, 4) and kinds (N, most), -1 where there is none."""
    boxes, kinds = np.zeros((len(found), most, 4), np.float32), np.full((len(found), most), -1)
    for row, one in enumerate(found):
        boxes[row, : len(one.boxes)], kinds[row, : len(one.kinds)] = one.boxes, one.kinds
    return tensors(np.stack([one.picture for one in found]), boxes, kinds)


def nearest(anchors: Tensor, boxes: Tensor, kinds: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """For each anchor (A, 2) the box (N, A, 4) with the nearest centre; its kind, or -1 beyond reach times its size."""
    far = (anchors[None, :, None] - boxes[:, None, :, :2]).abs().amax(-1)
    far = torch.where((kinds < 0)[:, None], torch.inf, far)
    distance, which = far.min(-1)
    box = torch.gather(boxes, 1, which[..., None].expand(-1, -1, 4))
    kind = torch.gather(kinds, 1, which)
    return box, torch.where(distance < reach * box[..., 2], kind, -1)


def centres(size: int, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Centres (A, 2) of the cells of each level in pixels, and their strides (A, 1)."""
    points, steps = [], []
    for stride in strides:
        along = (torch.arange(size // stride) + 0.5) * stride
        y, x = torch.meshgrid(along, along, indexing="ij")
        points.append(torch.stack([x, y], -1).reshape(-1, 2))
        steps.append(torch.full((points[-1].shape[0], 1), float(stride)))
    return torch.cat(points), torch.cat(steps)


class Yolo(nn.Module):
    """A head as in YOLOv8: distances to the four sides as distributions, out (N, 4 + classes, anchors)."""

    BINS = 8

    def __init__(self, size: int) -> None:
        super().__init__()
        self.stages = backbone((24, 48, 96, 128))
        self.boxes = nn.ModuleList(nn.Conv2d(width, 4 * self.BINS, 1) for width in (96, 128))
        self.classes = nn.ModuleList(nn.Conv2d(width, KINDS, 1) for width in (96, 128))
        for layer in self.classes:
            nn.init.constant_(layer.bias, -4.0)
        points, steps = centres(size, (8, 16))
        self.register_buffer("points", points.T[None].contiguous())
        self.register_buffer("steps", steps.T[None].contiguous())
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32).view(1, self.BINS, 1, 1))

    def raw(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (N, 4, A) in pixels and logits (N, classes, A)."""
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        sides = torch.cat([head_(level).flatten(2) for head_, level in zip(self.boxes, levels[2:], strict=True)], 2)
        logits = torch.cat([head_(level).flatten(2) for head_, level in zip(self.classes, levels[2:], strict=True)], 2)
        shares = sides.view(len(sides), 4, self.BINS, -1).transpose(1, 2).softmax(1)
        before, after = (shares * self.bins).sum(1).chunk(2, 1)
        low, high = self.points - before * self.steps, self.points + after * self.steps
        return torch.cat([(low + high) / 2, high - low], 1), logits

    def forward(self, x: Tensor) -> Tensor:
        boxes, logits = self.raw(x)
        return torch.cat([boxes, logits.sigmoid()], 1)


def yolo_loss(model: Yolo, x: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
    """Cross-entropy of the classes, and the L1 distance of boxes where there is one."""
    found, logits = model.raw(x)
    box, kind = nearest(model.points[0].T, boxes, kinds, 0.3)
    wanted = functional.one_hot(kind + 1, KINDS + 1)[..., 1:].transpose(1, 2).float()
    there = (kind >= 0).unsqueeze(1)
    off = (functional.l1_loss(found, box.transpose(1, 2), reduction="none") * there).sum() / there.sum()
    entropy = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / there.sum()
    return entropy + 0.1 * off


def shapes_yolo(place: Place) -> Data:
    seeded()
    x, boxes, kinds = batched(pictures.scenes(2000, 64, (1, 4), 5))
    model = Yolo(64)
    train(model, [x[:1800], boxes[:1800], kinds[:1800]], yolo_loss, 250)
    by_torchscript(place, model, {"images": x[:1]}, ["output0"], 17, {"images": {0: "batch"}, "output0": {0: "batch"}})
    return split({"images": x.numpy()}, CALIBRATION, 128)


class Ssd(nn.Module):
    """Liu et al. 2016: three anchors a cell, out offsets (N, A, 4) and shares of classes (N, A, classes + 1)."""

    SIZES = (0.2, 0.3, 0.42)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.stages = backbone((24, 48, 96, 96))
        self.offsets = nn.ModuleList(nn.Conv2d(96, 4 * 3, 3, padding=1) for _ in range(2))
        self.classes = nn.ModuleList(nn.Conv2d(96, (KINDS + 1) * 3, 3, padding=1) for _ in range(2))
        points, _ = centres(size, (8, 16))
        side = torch.tensor(self.SIZES).repeat(len(points)) * size
        self.anchors = torch.cat([points.repeat_interleave(3, 0), side[:, None], side[:, None]], 1)

    def raw(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets and logits."""
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        pairs = list(zip(self.offsets, self.classes, levels[2:], strict=True))
        offsets = [a(level).permute(0, 2, 3, 1).reshape(len(x), -1, 4) for a, _, level in pairs]
        logits = [b(level).permute(0, 2, 3, 1).reshape(len(x), -1, KINDS + 1) for _, b, level in pairs]
        return torch.cat(offsets, 1), torch.cat(logits, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        offsets, logits = self.raw(x)
        return offsets, logits.softmax(-1)


def ssd_loss(model: Ssd, x: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
    """Cross-entropy with little weight on the background, and smooth L1 of the offsets."""
    offsets, logits = model.raw(x)
    box, kind = nearest(model.anchors[:, :2], boxes, kinds, 0.35)
    fits = ((box[..., 2] / model.anchors[:, 2]).log().abs() < 0.35) & (kind >= 0)
    kind = torch.where(fits, kind, -1)
    wanted = torch.cat(
        [(box[..., :2] - model.anchors[:, :2]) / model.anchors[:, 2:], (box[..., 2:] / model.anchors[:, 2:]).log()], -1
    )
    off = functional.smooth_l1_loss(offsets[fits], wanted[fits], reduction="sum") / fits.sum().clamp(min=1)
    weight = torch.tensor([0.1] + [1.0] * KINDS)
    return functional.cross_entropy(logits.transpose(1, 2), kind + 1, weight) + off


def shapes_ssd(place: Place) -> Data:
    seeded()
    x, boxes, kinds = batched(pictures.scenes(2000, 64, (1, 4), 6))
    model = Ssd(64)
    train(model, [x[:1800], boxes[:1800], kinds[:1800]], ssd_loss, 250)
    by_torchscript(place, model, {"image": x[:1]}, ["boxes", "scores"], 12)
    return split({"image": x.numpy()}, CALIBRATION, 128)


class CenterNet(nn.Module):
    """Zhou et al. 2019: maps of centres, sizes and offsets at a quarter of the resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = backbone((24, 48, 96))
        self.up = nn.Sequential(nn.ConvTranspose2d(96, 48, 2, 2), nn.BatchNorm2d(48), nn.ReLU())
        self.heat, self.size, self.shift = (
            nn.Sequential(convolution(48, 48), nn.ReLU(), nn.Conv2d(48, outs, 1)) for outs in (KINDS, 2, 2)
        )
        nn.init.constant_(self.heat[-1].bias, -3.0)

    def raw(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the centres, sizes and offsets."""
        first = self.stages[0](x)
        quarter = self.stages[1](first)
        joined = self.up(self.stages[2](quarter)) + quarter
        return self.heat(joined), self.size(joined), self.shift(joined)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heat, size, shift = self.raw(x)
        return heat.sigmoid(), size, shift


def centernet_loss(model: CenterNet, x: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
    """Focal loss on bumps around the centres, L1 of sizes and offsets at them."""
    heat, size, shift = model.raw(x)
    side = heat.shape[-1]
    along = torch.arange(side)
    centre = boxes[..., :2] / 4
    cell = centre.floor().clamp(0, side - 1)
    far = (along[None, None, None] - cell[..., 0, None, None]) ** 2 + (along[:, None] - cell[..., 1, None, None]) ** 2
    bumps = torch.exp(-far / (2 * (boxes[..., 2, None, None] / 20) ** 2 + 1e-3)) * (kinds >= 0)[..., None, None]
    wanted = (functional.one_hot(kinds + 1, KINDS + 1)[..., 1:, None, None] * bumps[:, :, None]).amax(1)
    share, exact = heat.sigmoid(), (wanted > 0.999).float()
    rise = exact * (1 - share) ** 2 * functional.logsigmoid(heat)
    fall = (1 - exact) * (1 - wanted) ** 4 * share**2 * functional.logsigmoid(-heat)
    count = exact.sum().clamp(min=1)
    at = (cell[..., 1] * side + cell[..., 0]).long()
    there = (kinds >= 0).unsqueeze(1)
    pick = [torch.gather(m.flatten(2), 2, at[:, None].expand(-1, 2, -1)) for m in (size, shift)]
    off = (pick[0] - boxes[..., 2:].transpose(1, 2) / 4).abs() * 0.2 + (pick[1] - (centre - cell).transpose(1, 2)).abs()
    return -(rise + fall).sum() / count + (off * there).sum() / count


def shapes_centernet(place: Place) -> Data:
    seeded()
    x, boxes, kinds = batched(pictures.scenes(2000, 64, (1, 4), 7))
    model = CenterNet()
    train(model, [x[:1800], boxes[:1800], kinds[:1800]], centernet_loss, 250)
    free = [{0: "batch", 2: "height", 3: "width"}]
    by_dynamo(place, model, {"image": x[:2]}, ["heat", "size", "shift"], 18, free)
    return split({"image": x.numpy()}, CALIBRATION, 128)


# -- segmentation and super-resolution


class UNet(nn.Module):
    """Ronneberger et al. 2015."""

    def __init__(self, widths: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        first, second, third = widths
        self.down1, self.down2, self.deep = self._two(3, first), self._two(first, second), self._two(second, third)
        self.up2, self.up1 = nn.ConvTranspose2d(third, second, 2, 2), nn.ConvTranspose2d(second, first, 2, 2)
        self.join2, self.join1 = self._two(2 * second, second), self._two(2 * first, first)
        self.last = nn.Conv2d(first, KINDS + 1, 1)

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
    found = pictures.scenes(1400, 64, (1, 4), 8)
    x, masks = tensors(np.stack([one.picture for one in found]), np.stack([one.mask for one in found]))
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
