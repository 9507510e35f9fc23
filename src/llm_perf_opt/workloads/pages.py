"""Pages as pictures: drawing them from text, and cutting them into the tensors a vision model wants.

torchvision is not needed: Pillow resizes, NumPy does the rest. The sample pages of the repository are drawn
here too, so nothing of them belongs to anybody else.
"""

from __future__ import annotations

import math
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads.device import imported

if TYPE_CHECKING:
    from PIL.Image import Image

A4_AT_110_DPI = (910, 1286)
_MARGIN = 70
_GREY = (127, 127, 127)  # what is beside a page that is not square; 0 after normalising


def _pillow() -> Any:
    for name in ("PIL.Image", "PIL.ImageDraw", "PIL.ImageFont"):
        imported(name, "Pages need Pillow")
    return sys.modules["PIL"]


def open_page(path: Path) -> Image:
    """A picture file in RGB."""
    pil = _pillow()
    try:
        with pil.Image.open(path) as picture:
            converted: Image = picture.convert("RGB")
            return converted
    except (OSError, ValueError, pil.Image.DecompressionBombError) as error:
        raise UserError(
            f"The page {path} cannot be opened as a picture: {error}.", "Give a PNG or JPEG file."
        ) from error


def draw_page(text: str) -> Image:
    """Black text on white. The first line is the title; `| a | b |` lines become a table, `---` a rule."""
    pil, (width, height) = _pillow(), A4_AT_110_DPI
    page: Image = pil.Image.new("RGB", A4_AT_110_DPI, "white")
    pen = pil.ImageDraw.Draw(page)
    title, body = pil.ImageFont.load_default(size=30), pil.ImageFont.load_default(size=18)
    y, right = _MARGIN, width - _MARGIN
    for number, line in enumerate(text.splitlines()):
        if y > height - _MARGIN:
            break
        if number == 0:
            pen.text((_MARGIN, y), line, fill="black", font=title)
            y += 56
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            cell_width = (right - _MARGIN) / len(cells)
            for column, cell in enumerate(cells):
                left = _MARGIN + column * cell_width
                pen.rectangle((left, y, left + cell_width, y + 30), outline="black")
                pen.text((left + 8, y + 4), cell, fill="black", font=body)
            y += 30
        elif line.strip() == "---":
            pen.line((_MARGIN, y + 12, right, y + 12), fill="black", width=2)
            y += 26
        else:
            for part in textwrap.wrap(line, width=84) or [""]:
                pen.text((_MARGIN, y), part, fill="black", font=body)
                y += 26
    return page


def tile_grid(size: tuple[int, int], tile: int, most: int) -> tuple[int, int]:
    """Columns and rows of tiles for a page: the grid of 2 to `most` tiles nearest to its shape, more where they tie.

    A page no larger than one tile, and `most` below 2, give no tiles: (0, 0)."""
    width, height = size
    if most < 2 or max(width, height) <= tile:
        return 0, 0
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if 2 <= c * r <= most]
    closest = min(abs(width / height - c / r) for c, r in grids)
    tied = sorted((g for g in grids if abs(width / height - g[0] / g[1]) == closest), key=math.prod)
    best = tied[0]
    for grid in tied[1:]:
        # Blowing a small page up to many tiles shows nothing new.
        if width * height > 0.5 * tile * tile * math.prod(grid):
            best = grid
    return best


def whole_page(page: Image, side: int) -> NDArray[np.float32]:
    """The page in a square of that side, grey beside it: channels, rows, columns, between -1 and 1."""
    pil = _pillow()
    scale = side / max(page.size)
    small = page.resize((max(1, round(page.width * scale)), max(1, round(page.height * scale))), pil.Image.BICUBIC)
    square = pil.Image.new("RGB", (side, side), _GREY)
    square.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    return _normalised(square)


def page_tiles(page: Image, tile: int, most: int) -> list[NDArray[np.float32]]:
    """The page at full resolution, cut into tiles row by row."""
    pil = _pillow()
    columns, rows = tile_grid(page.size, tile, most)
    if not columns:
        return []
    sized = page.resize((columns * tile, rows * tile), pil.Image.BICUBIC)
    corners = [(column * tile, row * tile) for row in range(rows) for column in range(columns)]
    return [_normalised(sized.crop((x, y, x + tile, y + tile))) for x, y in corners]


def _normalised(picture: Image) -> NDArray[np.float32]:
    pixels = np.asarray(picture, dtype=np.float32) / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
