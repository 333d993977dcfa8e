"""Sounds: spoken words of the espeak-ng that the package espeakng-loader ships, music of tones, noise, and spectra."""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
from scipy import signal

RATE = 16000
COMMANDS = ("yes", "no", "up", "down", "left", "right", "stop", "go")
RETRIEVAL, CHARACTERS_UTF8, RATE_PARAMETER, PITCH_PARAMETER = 1, 1, 1, 3
VOICES = ("en", "en-us", "en+f2", "en+f4", "en+m3", "en+m7", "en-gb-scotland+f3", "en-us+m5")
ESPEAK_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Speaker:
    """Speech synthesis; packages: the folder with the unpacked wheel."""

    def __init__(self, packages: Path) -> None:
        folder = packages / "espeakng_loader"
        self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self._rate = self._library.espeak_Initialize(RETRIEVAL, 0, str(folder / "espeak-ng-data").encode(), 0)
        self._parts: list[np.ndarray] = []
        self._callback = ESPEAK_CALLBACK(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, _events: int | None) -> int:
        if samples and count:
            self._parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, text: str, voice: str = "en", rate: int = 160, pitch: int = 50) -> np.ndarray:
        """Speech at 16 kHz in -1 to 1."""
        self._parts.clear()
        self._library.espeak_SetVoiceByName(voice.encode())
        self._library.espeak_SetParameter(RATE_PARAMETER, rate, 0)
        self._library.espeak_SetParameter(PITCH_PARAMETER, pitch, 0)
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, CHARACTERS_UTF8, None, None)
        self._library.espeak_Synchronize()
        spoken = np.concatenate([np.zeros(1, np.int16), *self._parts]) / 32768
        return signal.resample_poly(spoken, RATE, self._rate).astype(np.float32)

    def varied(self, text: str, rng: np.random.Generator) -> np.ndarray:
        """The same in a voice, at a speed and a pitch drawn at random."""
        return self.say(text, str(rng.choice(VOICES)), int(rng.integers(120, 220)), int(rng.integers(20, 80)))


@cache
def speaker(packages: Path) -> Speaker:
    """The one speaker of a process; espeak-ng can be started only once."""
    return Speaker(packages)


def noise(count: int, rng: np.random.Generator) -> np.ndarray:
    """Noise whose power falls with its frequency, of a random loudness."""
    coloured = signal.lfilter([1.0], [1.0, -rng.uniform(0.5, 0.97)], rng.normal(size=count))
    return (coloured / np.abs(coloured).max() * 10 ** rng.uniform(-3, -1)).astype(np.float32)


def speech(packages: Path, sentences: list[str], seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Sentences with pauses and some noise, exactly so long."""
    count, length = int(seconds * RATE), 0
    parts: list[np.ndarray] = []
    while length < count:
        spoken = speaker(packages).varied(str(rng.choice(sentences)), rng) * 10 ** rng.uniform(-1, 0)
        parts += [np.zeros(int(rng.uniform(0.1, 0.8) * RATE), np.float32), spoken]
        length = sum(map(len, parts))
    whole = np.concatenate(parts)[:count]
    return np.clip(whole + noise(count, rng), -1, 1).astype(np.float32)


def melody(seconds: float, rate: int, rng: np.random.Generator) -> np.ndarray:
    """Tones of the piano's middle octaves with overtones that die away, up to three at once, in some noise."""
    whole = np.zeros(int(seconds * rate))
    for _ in range(max(1, int(seconds * 4))):
        start, length = rng.uniform(0, seconds * 0.9), rng.uniform(0.15, 0.9)
        time = np.arange(min(int(length * rate), len(whole) - int(start * rate))) / rate
        pitch = 440 * 2 ** (rng.integers(-21, 22) / 12)
        wave = sum(np.sin(2 * np.pi * pitch * k * time) / k**1.5 for k in range(1, 7) if pitch * k < rate / 2)
        attack = np.minimum(1, time / 0.01)
        whole[int(start * rate) :][: len(time)] += wave * attack * np.exp(-3 * time) * rng.uniform(0.1, 0.4)
    whole += rng.normal(0, 10 ** rng.uniform(-4, -2.5), len(whole))
    return np.clip(whole, -1, 1).astype(np.float32)


def mel_filters(bands: int, window: int, rate: int = RATE, highest: float = 8000.0) -> np.ndarray:
    """Triangles of equal area, evenly spaced on Slaney's mel scale, as librosa's default: (bands, window // 2 + 1)."""
    edges = _hertz(np.linspace(0, _mel(np.array(highest)), bands + 2))
    frequencies = np.linspace(0, rate / 2, window // 2 + 1)
    up = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def _mel(hertz: np.ndarray) -> np.ndarray:
    return np.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * np.log(np.maximum(hertz, 1) / 1000) / np.log(6.4))


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) * (mel - 15) / 27))


def mel_spectrogram(wave: np.ndarray, bands: int, window: int, hop: int) -> np.ndarray:
    """Power in mel bands: (frames, bands)."""
    framed = np.lib.stride_tricks.sliding_window_view(np.pad(wave, window // 2, "reflect"), window)[::hop]
    power = np.abs(np.fft.rfft(framed * signal.get_window("hann", window))) ** 2
    return (power @ mel_filters(bands, window).T).astype(np.float32)
