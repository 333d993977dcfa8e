from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from ptqc.calibration.images import Preprocessing, _decoded_mask
from ptqc.calibration.inputs import InputSpec
from ptqc.errors import CalibrationError, UsageError

TORCHVISION = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def spec(*shape, dtype=np.float32):
    return InputSpec("x", np.dtype(dtype), shape)


RAW = spec(1, 3, None, None, dtype=np.uint8)


@pytest.fixture
def photo(tmp_path):
    """A 12 x 20 (height x width) image whose pixel values name their place: red = row, green = column, blue = 200."""
    rows, columns = np.indices((12, 20), dtype=np.uint8)
    pixels = np.stack([rows, columns, np.full_like(rows, 200)], axis=2)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def pixels_of(photo):
    return np.asarray(Image.open(photo))


def test_the_native_size_is_kept_where_nothing_says_another(photo):
    got = Preprocessing().load(photo, RAW)
    np.testing.assert_array_equal(got, pixels_of(photo).transpose(2, 0, 1)[np.newaxis])


def test_torchvision_normalization(photo):
    got = TORCHVISION.load(photo, spec("N", 3, "H", "W"))
    scaled = pixels_of(photo).transpose(2, 0, 1)[np.newaxis] / 255
    mean, std = (np.reshape(value, (1, 3, 1, 1)) for value in (TORCHVISION.mean, TORCHVISION.std))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, (scaled - mean) / std, rtol=1e-5, atol=1e-6)


def test_keras_normalization_reaches_minus_one_to_one(tmp_path):
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "a.png")
    got = Preprocessing(scale=127.5, mean=1.0).load(tmp_path / "a.png", spec(1, "H", "W", 1))
    np.testing.assert_array_equal(got.reshape(-1), [-1, 1])


def test_caffe_statistics_follow_the_models_channel_order(photo):
    caffe = Preprocessing(scale=1.0, mean=(100.0, 2.0, 1.0), channel_order="BGR")
    got = caffe.load(photo, spec("N", "H", "W", 3))
    np.testing.assert_array_equal(got[0], pixels_of(photo)[:, :, ::-1] - np.array([100.0, 2.0, 1.0]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_float_inputs_get_their_own_dtype(photo, dtype):
    got = Preprocessing().load(photo, spec(1, 3, "H", "W", dtype=np.dtype(dtype)))
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_allclose(got[0, 2].astype(float), 200 / 255, rtol=4e-3)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 3, 8, 14), (1, 3, 30, 8)])
def test_the_models_size_is_covered_and_cropped_at_the_centre(photo, shape):
    got = Preprocessing(resample="nearest").load(photo, spec(*shape, dtype=np.uint8))
    assert got.shape == shape
    red, green = got[0, 0].astype(int), got[0, 1].astype(int)
    # Nothing is stretched: the same share of rows and columns is skipped, and the centre stays the centre.
    factor = max(shape[2] / 12, shape[3] / 20)
    assert abs(np.ptp(red[:, 0]) - (shape[2] - 1) / factor) <= 1.5
    assert abs(np.ptp(green[0]) - (shape[3] - 1) / factor) <= 1.5
    assert abs(red.mean() - 5.5) <= 1
    assert abs(green.mean() - 9.5) <= 1


def test_resize_then_crop_is_what_torchvision_does(photo):
    got = Preprocessing(resize=9, crop=(6, 8)).load(photo, RAW)
    resized = Image.open(photo).resize((int(9 * 20 / 12), 9), Image.Resampling.BILINEAR)
    top, left = round((9 - 6) / 2), round((15 - 8) / 2)
    expected = np.asarray(resized)[top : top + 6, left : left + 8].transpose(2, 0, 1)
    np.testing.assert_array_equal(got[0], expected)


def test_resize_alone_keeps_the_long_side_of_an_open_model(photo):
    assert Preprocessing(resize=6).load(photo, RAW).shape == (1, 3, 6, 10)


def test_stretch_shows_the_whole_image(photo):
    got = Preprocessing(fit="stretch", resample="nearest").load(photo, spec(1, 3, 6, 5, dtype=np.uint8))
    expected = np.asarray(Image.open(photo).resize((5, 6), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(got[0], expected.transpose(2, 0, 1))


def test_letterbox_pads_with_gray(photo):
    got = Preprocessing(fit="letterbox").load(photo, spec(1, 3, 20, 20, dtype=np.uint8))
    assert (got[0, :, :4] == 114).all()
    assert (got[0, :, 16:] == 114).all()
    np.testing.assert_array_equal(got[0, :, 4:16], pixels_of(photo).transpose(2, 0, 1))
    gray = Preprocessing(fit="letterbox").load(photo, spec(1, 1, 20, 20, dtype=np.uint8))
    assert (gray[0, 0, :4] == 114).all()


@pytest.mark.parametrize(("fit", "share"), [("letterbox", 0.5), ("letterbox-corner", 0.0)])
@pytest.mark.parametrize("size", [(20, 20), (7, 31), (40, 9)])
def test_letterboxes_are_those_of_pillow(photo, fit, share, size):
    got = Preprocessing(fit=fit).load(photo, spec(1, 3, *size, dtype=np.uint8))
    pad = ImageOps.pad(Image.open(photo), size[::-1], Image.Resampling.BILINEAR, (114,) * 3, (share, share))
    np.testing.assert_array_equal(got[0].transpose(1, 2, 0), np.asarray(pad))


@pytest.mark.parametrize(("fill", "expected"), [(0, (0, 0, 0)), ((9, 8.6, 7), (9, 9, 7))])
def test_what_a_letterbox_leaves_free_is_filled(photo, fill, expected):
    boxed = Preprocessing(fit="letterbox", resize=20, fill=fill)
    got = boxed.load(photo, RAW)
    assert got.shape == (1, 3, 20, 20)
    assert [set(got[0, channel, :4].ravel().tolist()) for channel in range(3)] == [{value} for value in expected]
    bgr = replace(boxed, channel_order="BGR").load(photo, RAW)
    np.testing.assert_array_equal(bgr, got[:, ::-1])


@pytest.mark.parametrize(("size", "shown"), [((2000, 1), (slice(10, 11), slice(None))), ((1, 2000), (slice(None), 10))])
def test_a_letterbox_shows_one_pixel_of_a_strip(tmp_path, size, shown):
    Image.new("RGB", size, (9, 9, 9)).save(tmp_path / "a.png")
    got = Preprocessing(fit="letterbox").load(tmp_path / "a.png", spec(1, 3, 20, 20, dtype=np.uint8))
    expected = np.full((20, 20), 114)
    expected[shown] = 9
    assert (got == expected).all()


@pytest.mark.parametrize("size", [(1, 65000), (65000, 1)])
@pytest.mark.parametrize("settings", [{}, {"resize": 256, "crop": (224, 224)}, {"resize": 256}])
def test_a_strip_is_not_made_as_wide_as_the_model(tmp_path, size, settings):
    """Most of what it would become is cropped."""
    path = tmp_path / "a.png"
    Image.new("RGB", size).save(path)
    read, takes = Preprocessing(**settings), spec("N", 3, 224, 224)
    for reads in (read.load, read.placement):
        with pytest.raises(CalibrationError, match=rf"image {path} has {size[0]} x {size[1]} pixels, .*--fit stretch"):
            reads(path, takes)
    assert replace(read, crop=None, fit="stretch").load(path, takes).shape == (1, 3, 224, 224)


def test_a_letterbox_of_no_size_is_refused(photo):
    with pytest.raises(CalibrationError, match="takes any size, so a letterbox needs one: give resize"):
        Preprocessing(fit="letterbox").load(photo, RAW)


def test_three_colours_do_not_fill_one_channel(photo):
    with pytest.raises(CalibrationError, match="fill has 3 values for 1 channels"):
        Preprocessing(fit="letterbox", fill=(1, 2, 3)).load(photo, spec(1, 1, 20, 20))


def test_bytes_are_taken_as_they_are_and_said_so():
    settings = Preprocessing(scale=127.5, mean=1.0, resize=8)
    used = settings.resolved([InputSpec("image", np.dtype(np.uint8), (1, 3, 4, 4))])
    assert (used.scale, used.mean, used.std) == (1, 0, 1)
    used = settings.resolved([InputSpec("image", np.dtype(np.float32), (1, 3, 4, 4))])
    assert (used.scale, used.mean, used.std) == (127.5, 1, 1)


def test_one_channel_is_gray(photo):
    got = Preprocessing().load(photo, spec(1, 1, "H", "W", dtype=np.uint8))
    np.testing.assert_array_equal(got[0, 0], np.asarray(Image.open(photo).convert("L")))


def test_the_cameras_orientation_is_respected(tmp_path):
    image = Image.new("RGB", (20, 12))
    exif = image.getexif()
    exif[0x0112] = 6  # rotated by a quarter turn
    image.save(tmp_path / "a.jpg", exif=exif)
    assert Preprocessing().load(tmp_path / "a.jpg", RAW).shape == (1, 3, 20, 12)


def test_sixteen_bit_gray_is_scaled_not_clipped(tmp_path):
    Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16)).save(tmp_path / "a.png")
    got = Preprocessing().load(tmp_path / "a.png", spec(1, "H", "W", 1, dtype=np.uint8))
    np.testing.assert_array_equal(got.reshape(-1), [0, 128, 255])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_other_modes_are_converted(tmp_path, mode):
    image = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    options: dict[str, Any] = {"transparency": b"\x80"} if mode == "P" else {}
    image.save(path, **options)
    assert (Preprocessing().load(path, RAW) == 255).all()


@pytest.mark.parametrize(
    ("input_spec", "message"),
    [
        (spec(1, 10), "images need an input of 4 axes, it has shape (1, 10)"),
        (spec(1, 3, 8, 8, dtype=np.int64), "images feed float or uint8 inputs, not int64"),
        (spec("N", None, None, None), "give layout NCHW or NHWC"),
        (spec(1, 3, 8, 3), "give layout NCHW or NHWC"),
        (spec(1, 1, 8, 8), "mean has 3 values for 1 channels: give 1 or 1"),
    ],
)
def test_inputs_that_take_no_images(photo, input_spec, message):
    with pytest.raises(CalibrationError) as caught:
        TORCHVISION.load(photo, input_spec)
    assert message in str(caught.value)


def test_a_given_layout_settles_what_the_shape_does_not_show(photo):
    got = Preprocessing(layout="NHWC").load(photo, spec("N", None, None, None, dtype=np.uint8))
    assert got.shape == (1, 12, 20, 3)
    with pytest.raises(CalibrationError, match="takes 4 channels in layout NCHW"):
        Preprocessing(layout="NCHW").load(photo, spec(1, 4, 8, 8))


@pytest.mark.parametrize("pixels", [np.float32(0.5), np.int32(70_000), np.int32(-1)])
def test_pixels_without_a_known_white_are_refused(tmp_path, pixels):
    """Converted they would be black, or white."""
    Image.fromarray(np.full((4, 4), pixels)).save(tmp_path / "a.tif")
    with pytest.raises(CalibrationError, match=r"a\.tif \(its pixels are floats or have 32 bits"):
        Preprocessing().load(tmp_path / "a.tif", RAW)


def test_a_truncated_image_is_named(photo):
    photo.write_bytes(photo.read_bytes()[:-40])
    with pytest.raises(CalibrationError, match=r"cannot decode image .*photo\.png"):
        Preprocessing().load(photo, RAW)


def test_a_file_holds_every_field(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('resize = 256\ncrop = [224, 200]\nmean = [0.5, 0.5, 0.5]\nstd = 2\nlayout = "NHWC"\n')
    expected = Preprocessing(resize=256, crop=(224, 200), mean=(0.5, 0.5, 0.5), std=2, layout="NHWC")
    assert Preprocessing.from_file(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size = 3", "unknown preprocessing size; known are resize, crop"),
        ("resize = ", "cannot read preprocessing from"),
        ("resize = " + "[" * 10_000, "cannot read preprocessing from"),
        ("resize = 0", "resize = 0, expected a positive int"),
        ("resize = [1, 2, 3]", "pair (height, width)"),
        ("crop = 2.5", "crop = 2.5"),
        ("scale = 0", "scale = 0, expected a finite number other than 0"),
        ("scale = [1.0, 2.0]", "scale = (1.0, 2.0)"),
        ("std = [1, 0, 1]", "std = (1, 0, 1)"),
        ("mean = []", "mean = ()"),
        ("mean = true", "mean = True"),
        ('mean = "a"', "mean = 'a'"),
        ('fit = "pad"', "expected one of crop, stretch, letterbox"),
        ("layout = 3", "expected one of NCHW, NHWC"),
        ('fit = "letterbox"\ncrop = 3', "give resize and no crop"),
        ("fill = 256", "fill = 256, expected a number from 0 to 255, or three"),
        ("fill = [1, 2]", "fill = (1, 2)"),
        ('fill = "gray"', "fill = 'gray'"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        Preprocessing.from_file(path)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read preprocessing from .*gone\.toml"):
        Preprocessing.from_file(tmp_path / "gone.toml")


def test_command_line_texts():
    parsed = Preprocessing.parse({"resize": "256", "crop": "224X200", "mean": "0.485,0.456,0.406", "scale": "1"})
    assert Preprocessing.parse({"fill": "1,2,3"}).fill == (1, 2, 3)
    assert parsed == Preprocessing(resize=256, crop=(224, 200), mean=(0.485, 0.456, 0.406), scale=1.0)
    assert Preprocessing.parse({"layout": "NHWC"}, base=parsed).resize == 256
    assert Preprocessing.parse({}) == Preprocessing()


@pytest.mark.parametrize(
    "options", [{"resize": "a"}, {"resize": "1x2x3"}, {"mean": "1,,2"}, {"size": "3"}, {"scale": "nan"}]
)
def test_command_line_texts_that_cannot_be_used(options):
    with pytest.raises(UsageError):
        Preprocessing.parse(options)


def test_keys_of_a_file_may_be_written_as_options_are(tmp_path):
    (tmp_path / "p.toml").write_text('channel-order = "BGR"\nscale = 1\n')
    assert Preprocessing.from_file(tmp_path / "p.toml") == Preprocessing(channel_order="BGR", scale=1)


@pytest.mark.parametrize("read", [lambda path: Preprocessing().load(path, RAW), _decoded_mask])
def test_no_other_program_decodes_an_image(tmp_path, monkeypatch, read):
    """Pillow would start Ghostscript for this one."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("another program was started"))
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("another program was started"))
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")
    (tmp_path / "cat.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    with pytest.raises(CalibrationError, match="cannot decode"):
        read(tmp_path / "cat.png")
