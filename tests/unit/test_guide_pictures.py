"""The pictures of the guides are there, are used, and are made by the commands that the guides quote."""

import re

from tests import guides

SCRIPT = (guides.ROOT / "hack" / "draw-pictures").read_text(encoding="utf-8").splitlines()
PICTURES = guides.ROOT / "hack" / "pictures"


def shown() -> list[str]:
    return re.findall(r"!\[[^]]+\]\((?:\.\./\.\./)?hack/pictures/([^)]+)\)", guides.everything())


def quoted() -> set[str]:
    made = [
        block
        for block in guides.blocks(guides.everything(), "console")
        if any(f"> {name}" in block or f"={name}" in block for name in shown())
    ]
    return {line.removeprefix("$ ") for block in made for line in block.splitlines()}


def test_every_picture_is_shown_once_and_every_one_that_is_shown_is_there() -> None:
    assert sorted(shown()) == sorted(
        path.name for path in PICTURES.iterdir() if path.suffix in {".svg", ".png"}
    )
    assert len(shown()) == 4


def test_commands_of_the_guides_are_those_that_draw_the_pictures() -> None:
    drawing = {line for line in SCRIPT if line.startswith(("nri-pin ", "hack/demo ", "chromium "))}
    assert len(drawing) == 8
    assert drawing <= quoted()


def test_pictures_are_light_and_name_no_folder_of_a_machine() -> None:
    for path in PICTURES.iterdir():
        assert path.stat().st_size < 400_000, path
        assert b"/tmp/" not in path.read_bytes(), path


def test_pictures_load_nothing() -> None:
    for path in PICTURES.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"\w+://[^\"'\s<]*", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert "<script" not in text, path
