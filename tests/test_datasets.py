"""Inputs: lists, globs, prompts and manifests; sampling that can be repeated; missing files that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_perf_opt.errors import UserError
from llm_perf_opt.options import checked_values, default_config
from llm_perf_opt.workloads.datasets import Item, batches, default_prompts, described, load_items, sample
from llm_perf_opt.workloads.workload_options import DatasetOptions, SamplingOptions

ROOT = Path(__file__).parents[1]
LIST = "datasets/omnidocbench/subsets/dev-3.txt"


def items(folder: Path = ROOT, manifest: Path | None = None, **options: Any) -> list[Item]:
    return load_items(DatasetOptions(**options), manifest, folder)


def refused(**options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        items(**options)
    return caught.value


# --- what ships --------------------------------------------------------------------------------------------------


def test_with_nothing_given_the_prompts_of_the_package_are_used() -> None:
    found = items()
    assert [item.prompt for item in found] == default_prompts()
    assert len(found) >= 3
    assert not any(item.prompt.startswith("#") for item in found if item.prompt)


def test_the_sample_list_names_pages_that_are_there() -> None:
    found = items(subset_filelist=LIST)
    assert [item.path.name for item in found if item.path] == ["page-001.png", "page-002.png", "page-003.png"]
    assert all(item.image == item.path for item in found)
    assert found[1].text().startswith("Readings of the Third Week")


def test_the_sample_pages_are_small_pictures_of_the_texts_beside_them(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image", reason="pages need Pillow")
    for item in items(subset_filelist=LIST):
        assert item.path is not None
        assert item.path.stat().st_size < 60_000
        with pil.open(item.path) as page:
            assert page.size == (910, 1286)
            assert page.convert("L").getextrema() == (0, 255)


def test_the_sample_prompts_can_be_named(tmp_path: Path) -> None:
    assert len(items(prompts="datasets/prompts/questions.txt")) == 8


# --- lists and globs -----------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "deep/c.png"):
        path = tmp_path / "set" / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "set" / "lists").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "root"),
    [("images/a.png", None), ("../images/a.png", None), ("a.png", "set/images"), ("images/a.png", "set")],
    ids=["beside the folder of lists", "relative to the list", "root of pages", "root of the set"],
)
def test_paths_in_a_list_are_relative_to_the_root_or_to_the_list(data: Path, line: str, root: str | None) -> None:
    (data / "set" / "lists" / "one.txt").write_text(f"\n# comment\n{line}\n", encoding="utf-8")
    (item,) = items(data, subset_filelist="set/lists/one.txt", root=root)
    assert item.path is not None
    assert item.path.resolve() == data / "set" / "images" / "a.png"


def test_an_absolute_path_in_a_list_is_taken_as_it_is(data: Path) -> None:
    (data / "one.txt").write_text(str(data / "set" / "images" / "b.png"), encoding="utf-8")
    assert [item.path for item in items(data, subset_filelist="one.txt")] == [data / "set" / "images" / "b.png"]


def test_a_glob_finds_files_below_the_root_in_a_fixed_order(data: Path) -> None:
    found = items(data, root="set", subset_filelist="images/**/*.png")
    assert [item.id for item in found] == ["001-a", "002-b", "003-c"]
    assert [item.id for item in items(data, root="set/images", subset_filelist="?.png")] == ["001-a", "002-b"]


def test_a_root_alone_means_all_its_pictures(data: Path) -> None:
    assert len(items(data, root="set")) == 3


def test_every_prompt_is_asked_about_every_file(data: Path) -> None:
    found = items(data, root="set", subset_filelist="images/?.png", prompts=["Read it.", "Count lines."])
    assert [(item.path.name if item.path else "", item.prompt) for item in found] == [
        ("a.png", "Read it."),
        ("a.png", "Count lines."),
        ("b.png", "Read it."),
        ("b.png", "Count lines."),
    ]
    assert len({item.id for item in found}) == 4


def test_a_missing_file_names_every_place_that_was_tried(data: Path) -> None:
    (data / "set" / "lists" / "one.txt").write_text("images/z.png\n", encoding="utf-8")
    error = refused(folder=data, subset_filelist="set/lists/one.txt", root="set/images")
    for place in ("set/images/images/z.png", "set/lists/images/z.png", "set/images/z.png"):
        assert str(data / place) in error.message
    assert "set/lists/one.txt" in error.message
    assert "dataset.root" in error.fix


def test_a_missing_list_an_empty_list_and_an_empty_glob_are_named(data: Path) -> None:
    assert str(data / "no.txt") in refused(folder=data, subset_filelist="no.txt").message
    (data / "empty.txt").write_text("# nothing\n", encoding="utf-8")
    assert "names no file" in refused(folder=data, subset_filelist="empty.txt").message
    assert "No file matches dataset.subset_filelist=*.gif" in refused(folder=data, subset_filelist="*.gif").message
    assert "is not a folder" in refused(folder=data, root="nowhere").message
    assert "no picture" in refused(folder=data, root="set/lists").message


def test_a_list_that_is_no_text_is_refused(data: Path) -> None:
    (data / "binary.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "it is not UTF-8 text" in refused(folder=data, subset_filelist="binary.txt").message


# --- prompts ----------------------------------------------------------------------------------------------------


def test_prompts_are_taken_as_they_are_or_from_a_file(tmp_path: Path) -> None:
    assert [item.prompt for item in items(prompts=["One.", "Two."])] == ["One.", "Two."]
    assert [item.prompt for item in items(prompts="Only one.")] == ["Only one."]
    (tmp_path / "p.txt").write_text("# c\nFrom a file.\n", encoding="utf-8")
    assert [item.prompt for item in items(tmp_path, prompts="p.txt")] == ["From a file."]
    (tmp_path / "p.txt").write_text("", encoding="utf-8")
    assert "contains no prompts" in refused(folder=tmp_path, prompts="p.txt").message


@pytest.mark.parametrize("prompts", [{"a": 1}, [1, 2], 7])
def test_prompts_that_are_no_texts_are_refused(prompts: Any) -> None:
    with pytest.raises(UserError, match=r"dataset\.prompts="):
        DatasetOptions(prompts=prompts)


# --- manifests ---------------------------------------------------------------------------------------------------


def manifest(folder: Path, content: Any) -> Path:
    path = folder / "inputs.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_manifest_lists_prompts_and_paths(data: Path) -> None:
    source = manifest(
        data,
        [
            {"prompt": "Hello ${not.an.interpolation}"},
            {"path": "set/images/a.png", "prompt": "Read.", "id": "first", "language": "en"},
            "set/images/b.png",
            "Just words.",
        ],
    )
    found = items(Path("/"), source)
    assert found[0] == Item("prompt-1", prompt="Hello ${not.an.interpolation}")
    assert found[1] == Item("first", "Read.", data / "set/images/a.png", {"language": "en"})
    assert found[2].path == data / "set/images/b.png"
    assert found[3].prompt == "Just words."


@pytest.mark.parametrize("text", ["a long question " * 100, "with\x00a nul", "two\nlines"])
def test_a_text_that_cannot_be_a_name_is_a_prompt(tmp_path: Path, text: str) -> None:
    (item,) = items(Path("/"), manifest(tmp_path, [text]))
    assert (item.prompt, item.path) == (text, None)


def test_what_was_run_is_written_as_a_manifest_that_gives_the_same_inputs(data: Path) -> None:
    found = items(data, manifest(data, [{"path": "set/images/a.png", "note": 3}, {"prompt": "Grüße"}]))
    again = data / "again.yaml"
    again.write_text(yaml.safe_dump([described(item) for item in found], allow_unicode=True), encoding="utf-8")
    assert items(Path("/"), again) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not YAML"),
        ("just words", "is not a list of inputs"),
        ([], "is not a list of inputs"),
        ([{"text": "x"}], "neither `prompt` nor `path`"),
        ([{"prompt": 3}], "have to be texts"),
        ([[1]], "neither a text nor names with values"),
        ([{"path": "gone.png"}], "gone.png, named by input 1 of the manifest"),
        ("- !!python/object/apply:os.system [true]", "is not YAML"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        items(tmp_path, manifest(tmp_path, content))
    assert message in caught.value.message


# --- sampling ----------------------------------------------------------------------------------------------------

TEN = [Item(str(number)) for number in range(10)]


def order(**sampling: Any) -> list[str]:
    return [item.id for item in sample(TEN, SamplingOptions(**sampling)).items]


def test_everything_that_is_given_runs_and_of_the_packages_prompts_one_batch(tmp_path: Path) -> None:
    listed = manifest(tmp_path, "- prompt: one\n- prompt: two\n- prompt: three\n")
    given = items(tmp_path, listed)
    assert str(sample(given, SamplingOptions())) == "3 of 3 inputs"
    assert str(sample(given, SamplingOptions(num_samples_per_epoch=2))) == "2 of 3 inputs"
    assert str(sample(given, SamplingOptions(num_epochs=2))) == "3 of 3 inputs in each of 2 epochs"
    assert len(sample(given, SamplingOptions(num_epochs=2)).items) == 6
    asked = load_items(DatasetOptions(prompts=("a", "b", "c")), folder=tmp_path)
    assert [item.prompt for item in sample(asked, SamplingOptions(), 2).items] == ["a", "b", "c"]
    packaged = load_items(DatasetOptions(), folder=tmp_path)
    assert len(packaged) > 2
    assert [len(sample(packaged, SamplingOptions(), size).items) for size in (1, 2)] == [1, 2]
    assert len(sample(packaged, SamplingOptions(num_samples_per_epoch=3)).items) == 3


def test_sampling_takes_the_first_items_of_every_epoch() -> None:
    assert order() == [str(number) for number in range(10)]
    assert order(num_epochs=2, num_samples_per_epoch=3) == ["0", "1", "2", "0", "1", "2"]
    assert order(num_samples_per_epoch=99) == order()


def test_a_shuffle_is_the_same_for_the_same_seed_and_another_in_every_epoch() -> None:
    first = order(randomize=True, num_epochs=2, seed=5)
    assert first == order(randomize=True, num_epochs=2, seed=5) != order(randomize=True, num_epochs=2, seed=6)
    assert sorted(first[:10]) == sorted(first[10:]) == sorted(order())
    assert first[:10] != first[10:]


@pytest.mark.parametrize(
    ("name", "bad"), [("num_epochs", 0), ("num_samples_per_epoch", 0), ("seed", -1), ("num_epochs", True)]
)
def test_sampling_that_cannot_be_names_the_key(name: str, bad: object) -> None:
    config = default_config()
    config["dataset"]["sampling"][name] = bad
    with pytest.raises(UserError, match=f"dataset.sampling.{name}="):
        checked_values(config)


def test_batches_keep_the_order_and_the_rest() -> None:
    assert [[item.id for item in batch] for batch in batches(TEN[:5], 2)] == [["0", "1"], ["2", "3"], ["4"]]


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "most", "grid"),
    [
        ((700, 700), 6, (0, 0)),  # fits into one tile
        ((910, 1286), 6, (2, 3)),  # a page
        ((2000, 1000), 6, (2, 1)),
        ((4000, 4000), 6, (2, 2)),
        ((910, 1286), 0, (0, 0)),
        ((800, 8000), 6, (1, 6)),
    ],
)
def test_a_page_is_cut_into_tiles_of_its_own_shape(size: tuple[int, int], most: int, grid: tuple[int, int]) -> None:
    from llm_perf_opt.workloads.pages import tile_grid

    assert tile_grid(size, 768, most) == grid


def test_tiles_are_the_page_in_order_and_the_whole_page_keeps_its_shape() -> None:
    pil = pytest.importorskip("PIL.Image", reason="pages need Pillow")
    from llm_perf_opt.workloads.pages import page_tiles, whole_page

    page = pil.new("RGB", (1600, 800), "white")
    page.paste("black", (800, 0, 1600, 800))  # right half
    tiles = page_tiles(page, 768, 2)
    assert [tile.shape for tile in tiles] == [(3, 768, 768)] * 2
    assert [float(tile.mean()) for tile in tiles] == pytest.approx([1.0, -1.0], abs=0.001)
    whole = whole_page(page, 64)
    assert whole.shape == (3, 64, 64)
    assert abs(float(whole[:, 5, 5].mean())) < 0.01  # grey above the page
    assert float(whole[:, 32, 5].mean()) == 1.0
    assert float(whole[:, 32, 60].mean()) == -1.0


@pytest.mark.torch
def test_pages_become_the_tensors_that_transformers_makes_of_them() -> None:
    np = pytest.importorskip("numpy")
    module = pytest.importorskip("transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2")
    from llm_perf_opt.workloads.pages import open_page, page_tiles, whole_page

    path = items(subset_filelist=LIST)[2].path
    assert path is not None
    page = open_page(path)
    theirs = module.DeepseekOcr2ImageProcessorPil()(page, return_tensors="np")
    assert list(theirs["num_local_patches"]) == [len(page_tiles(page, 768, 6))]
    one_level = 2 / 255  # they round at another place
    assert np.abs(whole_page(page, 1024) - theirs["pixel_values"][0]).max() <= one_level + 1e-6
    for ours, tile in zip(page_tiles(page, 768, 6), theirs["pixel_values_local"], strict=True):
        assert np.abs(ours - tile).max() <= one_level + 1e-6


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pages need Pillow")
    from llm_perf_opt.workloads.pages import open_page

    (tmp_path / "x.png").write_text("not a picture", encoding="utf-8")
    with pytest.raises(UserError, match=r"x\.png cannot be opened as a picture"):
        open_page(tmp_path / "x.png")
