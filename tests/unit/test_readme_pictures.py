"""The README's pictures are there, are used, and are made by the commands that it quotes."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPT = (ROOT / "hack" / "draw-pictures").read_text(encoding="utf-8").splitlines()
PICTURES = ROOT / "hack" / "pictures"


def shown() -> list[str]:
    return re.findall(r"!\[[^]]+\]\(hack/pictures/([^)]+)\)", README)


def quoted() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    made = [block for block in blocks if any(f"> {name}" in block or f"={name}" in block for name in shown())]
    return [line.removeprefix("$ ") for block in made for line in block.splitlines()]


def test_every_picture_is_shown_and_every_one_that_is_shown_is_there() -> None:
    assert sorted(shown()) == sorted(
        path.name for path in PICTURES.iterdir() if path.suffix in {".svg", ".png"}
    )
    assert len(shown()) == 4


def test_commands_of_the_readme_are_those_that_draw_the_pictures() -> None:
    assert len(quoted()) == 8
    assert [command for command in quoted() if command not in SCRIPT] == []


def test_pictures_are_light_and_name_no_folder_of_a_machine() -> None:
    for path in PICTURES.iterdir():
        assert path.stat().st_size < 400_000, path
        assert b"/tmp/" not in path.read_bytes(), path


def test_pictures_load_nothing() -> None:
    for path in PICTURES.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"\w+://[^\"'\s<]*", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert "<script" not in text, path
