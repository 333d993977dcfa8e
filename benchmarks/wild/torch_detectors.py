"""Detectors in PyTorch."""

from collections.abc import Sequence

import numpy as np
import pictures
import torch
from common import Data, Place, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import CALIBRATION, by_dynamo, by_torchscript, convolution, seeded, tensors, train


def backbone(widths: Sequence[int]) -> nn.ModuleList:
    """Stages that halve height and width."""
    pairs = zip((3, *widths), widths, strict=False)
    return nn.ModuleList(
        nn.Sequential(convolution(a, b, 3, 2), nn.SiLU(), convolution(b, b), nn.SiLU()) for a, b in pairs
    )


def batched(scenes: Sequence[pictures.Scene], most: int = 4) -> list[Tensor]:
    """Pictures, boxes (N, most, 4) and kinds (N, most), -1 where there is none."""
    boxes, kinds = np.zeros((len(scenes), most, 4), np.float32), np.full((len(scenes), most), -1)
    for row, one in enumerate(scenes):
        boxes[row, : len(one.boxes)], kinds[row, : len(one.kinds)] = one.boxes, one.kinds
    return tensors(np.stack([one.picture for one in scenes]), boxes, kinds)


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
        self.classes = nn.ModuleList(nn.Conv2d(width, pictures.KINDS, 1) for width in (96, 128))
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
    predicted, logits = model.raw(x)
    box, kind = nearest(model.points[0].T, boxes, kinds, 0.3)
    wanted = functional.one_hot(kind + 1, pictures.KINDS + 1)[..., 1:].transpose(1, 2).float()
    there = (kind >= 0).unsqueeze(1)
    off = (functional.l1_loss(predicted, box.transpose(1, 2), reduction="none") * there).sum() / there.sum()
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
        self.classes = nn.ModuleList(nn.Conv2d(96, (pictures.KINDS + 1) * 3, 3, padding=1) for _ in range(2))
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
        logits = [b(level).permute(0, 2, 3, 1).reshape(len(x), -1, pictures.KINDS + 1) for _, b, level in pairs]
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
    weight = torch.tensor([0.1] + [1.0] * pictures.KINDS)
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
            nn.Sequential(convolution(48, 48), nn.ReLU(), nn.Conv2d(48, outs, 1)) for outs in (pictures.KINDS, 2, 2)
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
    wanted = (functional.one_hot(kinds + 1, pictures.KINDS + 1)[..., 1:, None, None] * bumps[:, :, None]).amax(1)
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
