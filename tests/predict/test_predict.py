"""Answers for images of your own: the radii of ``certify``, whatever form the images have; bad input is refused."""

import io
import json
import shutil
import struct
import zipfile
import zlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import lipcert as lc
from lipcert.cli.predict import Predict, down
from lipcert.models.presets import model_spec
from lipcert.predict import open_classifier, predict, read_images
from lipcert.training.checkpoint import save_weights
from lipcert.zoo import HERE, load_pretrained
from processes import command

DIGITS = lc.load_data("digits", "test")
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def digits():
    return open_classifier("digits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six digits as PNG files in a folder."""
    place = tmp_path_factory.mktemp("images")
    for index, image in enumerate(DIGITS.images[:6, 0].numpy()):
        Image.fromarray(image).save(place / f"{index}.png")
    (place / "notes.txt").write_text("no image")
    return place


def test_answers_are_those_of_certify_and_the_rival_is_the_nearest(digits):
    inputs = DIGITS.inputs()[:70]  # more than one batch
    answers = predict(digits, [str(index) for index in range(70)], inputs)
    result = lc.certify(digits.proved, inputs)
    assert [float(answer.radius) for answer in answers] == result.radii.tolist()
    assert [answer.prediction for answer in answers] == [str(label) for label in result.predictions.tolist()]
    network = load_pretrained("digits").network.double()
    pairs = digits.proved.pairwise()
    with torch.no_grad():
        logits = network(inputs.double())
    for answer, row in zip(answers, logits, strict=True):
        first = int(answer.prediction)
        quotients = [(float((row[first] - row[j]) / pairs[first, j]), j) for j in range(10) if j != first]
        assert int(answer.rival) == min(quotients)[1]
        assert answer.radius == pytest.approx(min(quotients)[0], rel=1e-6)


def test_with_one_output_the_rival_is_the_other_class(tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), lc.ResidualLinear(64, 8), lc.AffineLinear(64, 1)).eval()
    result = lc.certify(lc.freeze(model), DIGITS.inputs()[:8])
    result.save(tmp_path / "one")
    classifier = open_classifier(str(tmp_path / "one"))
    answers = predict(classifier, list("abcdefgh"), DIGITS.inputs()[:8])
    assert [answer.prediction for answer in answers] == [str(label) for label in result.predictions.tolist()]
    assert all({answer.prediction, answer.rival} == {"0", "1"} for answer in answers)
    assert [answer.radius for answer in answers] == result.radii.tolist()


def test_every_form_of_the_same_images_is_the_same_input(folder, tmp_path):
    images = DIGITS.images[:6].numpy()
    expected = DIGITS.inputs()[:6]
    forms = {
        "nchw": images,
        "nhwc": images.transpose(0, 2, 3, 1),
        "nhw": images[:, 0],
        "float": expected.numpy(),
        "wide": expected.numpy().astype(np.float64),
    }
    for name, array in forms.items():
        np.save(tmp_path / f"{name}.npy", array)
        names, inputs = read_images(tmp_path / f"{name}.npy", SHAPE)
        assert torch.equal(inputs, expected), name
        assert names[5] == f"{tmp_path / f'{name}.npy'}[5]"
    np.savez(tmp_path / "one.npz", whatever=images)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(6))
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    for path in (tmp_path / "one.npz", tmp_path / "data.npz", folder, tmp_path / "images.zip"):
        assert torch.equal(read_images(path, SHAPE)[1], expected), path
    for index in range(6):
        names, inputs = read_images(folder / f"{index}.png", SHAPE)
        assert torch.equal(inputs, expected[index : index + 1])
        assert names == [str(folder / f"{index}.png")]
    np.save(tmp_path / "single.npy", images[0, 0])
    assert torch.equal(read_images(tmp_path / "single.npy", SHAPE)[1], expected[:1])


def test_colors_become_gray_and_gray_becomes_colors(tmp_path):
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    assert read_images(tmp_path / "red.png", SHAPE)[1].shape == (1, *SHAPE)
    Image.new("L", (8, 8), 51).save(tmp_path / "gray.png")
    assert torch.equal(read_images(tmp_path / "gray.png", (3, 8, 8))[1], torch.full((1, 3, 8, 8), 51.0) / 255)


def test_other_sizes_are_refused_unless_they_are_resized(tmp_path):
    Image.new("L", (20, 30), 102).save(tmp_path / "large.png")
    with pytest.raises(ValueError, match=r"has 30×20 pixels, but the network takes 8×8\. Add --resize"):
        read_images(tmp_path / "large.png", SHAPE)
    resized = read_images(tmp_path / "large.png", SHAPE, resize=True)[1]
    assert torch.equal(resized, torch.full((1, *SHAPE), 102.0) / 255)
    np.save(tmp_path / "large.npy", np.zeros((30, 20), np.uint8))
    with pytest.raises(ValueError, match=r"has the shape \(30, 20\), but the network takes 1×8×8"):
        read_images(tmp_path / "large.npy", SHAPE)
    with pytest.raises(ValueError, match="--resize is for image files"):
        read_images(tmp_path / "large.npy", SHAPE, resize=True)


def deep_ppm():
    return b"P6 8 8 65535\n" + np.full((8, 8, 3), 300, ">u2").tobytes()


def deep_png():
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + np.full((8, 3), 300, ">u2").tobytes() for _ in range(8))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def of_pillow(image, format="PNG", **options):
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


DIFFERENT = {  # images that three bytes a pixel do not show, and why
    "deep.png": (deep_png, "16 bits a channel"),
    "deep.ppm": (deep_ppm, "16 bits a channel"),
    "hidden.png": (lambda: of_pillow(Image.new("RGBA", (8, 8), (0, 0, 0, 0))), "transparent pixels"),
    "faint.png": (lambda: of_pillow(Image.new("LA", (8, 8), (0, 254))), "transparent pixels"),
    "hole.png": (lambda: of_pillow(Image.new("L", (8, 8), 7), transparency=7), "transparent pixels"),
    "palette.png": (
        lambda: of_pillow(Image.new("L", (8, 8), 3).convert("P"), transparency=3),
        "transparent pixels",
    ),
    "film.gif": (
        lambda: of_pillow(
            Image.new("L", (8, 8), 1), "GIF", save_all=True, append_images=[Image.new("L", (8, 8), 99)]
        ),
        "several images in one file",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_an_image_that_is_more_than_the_network_sees_is_refused(name, tmp_path):
    content, reason = DIFFERENT[name]
    (tmp_path / name).write_bytes(content())
    for shape in (SHAPE, (3, 8, 8)):
        with pytest.raises(ValueError, match=reason) as refusal:
            read_images(tmp_path / name, shape)
        assert len(str(refusal.value).splitlines()) == 1


def test_opaque_images_are_read_whatever_their_form(tmp_path):
    color = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    Image.fromarray(color).convert("RGBA").save(tmp_path / "opaque.png")
    Image.fromarray(color[..., 0]).convert("P").save(tmp_path / "palette.png", transparency=255)
    (tmp_path / "bits.ppm").write_bytes(b"P1 8 8 " + b"0 1 " * 32)
    (tmp_path / "plain.ppm").write_bytes(b"P3 8 8 255 " + " ".join(map(str, color.flat)).encode())
    expected = torch.from_numpy(color).permute(2, 0, 1)[None] / 255
    assert torch.equal(read_images(tmp_path / "plain.ppm", (3, 8, 8))[1], expected)
    assert torch.equal(
        read_images(tmp_path / "bits.ppm", SHAPE)[1], (torch.arange(64) % 2 == 0).view(1, *SHAPE).float()
    )
    assert torch.equal(read_images(tmp_path / "opaque.png", (3, 8, 8))[1], expected)
    assert torch.equal(read_images(tmp_path / "palette.png", SHAPE)[1], expected[:, :1])


@pytest.mark.parametrize("name", ["photo.png", "photo.tiff", "photo.jpg"])
def test_a_photograph_is_turned_as_viewers_show_it(name, tmp_path):
    bright = np.zeros((64, 64), np.uint8)
    bright[8:16, 24:56], bright[40:48, 8:24] = 200, 90
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(bright).save(tmp_path / name, exif=exif)
        with Image.open(tmp_path / name) as image:
            expected = torch.from_numpy(np.array(ImageOps.exif_transpose(image)))[None, None] / 255
        assert torch.equal(read_images(tmp_path / name, (1, 64, 64))[1], expected)
        small = read_images(tmp_path / name, SHAPE, resize=True)[1]
        assert (small - torch.nn.functional.avg_pool2d(expected, 8)).abs().mean() < 0.06


class Explosive:
    def __reduce__(self):
        return exec, ("raise AssertionError('unpickled')",)


BAD = {
    "nothing.png": None,
    "empty.png": b"",
    "text.png": b"no image at all",
    "empty.npy": b"",
    "text.npy": b"no array at all",
    "pickle.npy": np.array([Explosive()], dtype=object),
    "integers.npy": np.zeros((8, 8), np.int64),
    "complex.npy": np.zeros((8, 8), np.complex128),
    "nan.npy": np.full((8, 8), np.nan),
    "large.npy": np.full((8, 8), 255.0),
    "negative.npy": np.full((8, 8), -0.1),
    "no-images.npy": np.zeros((0, 1, 8, 8), np.uint8),
    "no-axes.npy": np.uint8(3),
    "five-axes.npy": np.zeros((2, 2, 1, 8, 8), np.uint8),
    "text.npz": b"no archive at all",
    "names.npz": {"a": np.zeros((8, 8)), "b": np.zeros((8, 8))},
    "notes.txt": b"neither",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name, tmp_path):
    path, content = tmp_path / name, BAD[name]
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(ValueError, match=name.split(".")[0]) as refusal:
        read_images(path, SHAPE)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_folder_without_images_and_a_table_of_numbers(tmp_path):
    with pytest.raises(ValueError, match="holds no image"):
        read_images(tmp_path, SHAPE)
    np.save(tmp_path / "rows.npy", 100 * np.ones((3, 16)))
    assert read_images(tmp_path / "rows.npy", (16,))[1].shape == (3, 16)
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    for shape in ((16,), (2, 8, 8)):
        with pytest.raises(ValueError, match="not images"):
            read_images(tmp_path / "image.png", shape)


def test_a_network_is_a_name_a_folder_a_run_or_a_file(tmp_path, digits):
    run = lc.Run(tmp_path / "run")
    run.folder.mkdir()
    small = {"image_shape": SHAPE, "channels": 8, "conv_layers": 1, "dense_layers": 1, "dense_hidden": 8}
    save_weights(run.model_file, lc.create_model("sll_nano", **small).state_dict(), model_spec("sll_nano", **small))
    run.write_record()
    run.export("torch")
    inputs = DIGITS.inputs()[:4]
    names = list("abcd")
    expected = lc.certify(run.frozen(), inputs).radii.tolist()
    for model in (run.folder, run.model_file, run.folder / "network.safetensors"):
        answers = predict(open_classifier(str(model)), names, inputs)
        assert [answer.radius for answer in answers] == expected
    shutil.copytree(HERE / "digits", tmp_path / "copy")
    for classifier in (open_classifier(str(tmp_path / "copy")), open_classifier("copy", tmp_path)):
        assert predict(classifier, names, inputs) == predict(digits, names, inputs)
    for name in ("nothing", str(tmp_path / "nothing"), str(tmp_path / "nothing.safetensors")):
        with pytest.raises((ValueError, OSError)) as refusal:
            open_classifier(name)
        assert len(str(refusal.value).splitlines()) == 1


def test_the_command_prints_a_table_or_json(folder, capsys):
    assert Predict((folder, folder / "0.png"), json=True).run() == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["model"], said["norm"], said["arithmetic"]) == ("digits", "L2", "float64")
    assert [row["image"] for row in said["images"]] == [*(f"{i}.png" for i in range(6)), str(folder / "0.png")]
    assert Predict((folder,)).run() == 0
    table = capsys.readouterr().out
    for row in said["images"][:6]:
        line = next(line for line in table.splitlines() if row["image"] in line)
        cells = [cell.strip() for cell in line.strip("│ ").split("│")]
        assert cells[1:] == [row["prediction"], down(row["radius"]), row["rival"]]


def test_a_printed_radius_is_rounded_down():
    for radius in (0.0, 0.1234, 0.12339999999999999, 0.99999, 3.0, 123.45678, 2.0**400):
        shown = Fraction(down(radius))
        assert shown <= Fraction(radius) < shown + Fraction(1, 10_000)


def test_bad_usage_is_exit_code_2(tmp_path):
    for words in (["predict"], ["predict", tmp_path / "x.png"], ["predict", tmp_path, "--model", "nothing"]):
        result = command(*words)
        assert (result.returncode, len(result.stderr.splitlines()), result.stdout) == (2, 1, "")
