"""The look of the svg picture: one style sheet for light and dark, and the patterns of CPUs that are nobody's.

Colours stand in classes, never in variables: converters such as rsvg-convert know no variables.
"""

from collections.abc import Sequence

from nri_plugin.cli.palette import Paint
from nri_plugin.cli.picture import Owner

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SHARED_FILL = "#d8dee4"

_LIGHT = {
    ".page": "fill:#ffffff",
    ".title,.number,.label": "fill:#1f2328",
    ".muted": "fill:#59636e",
    ".frame": "stroke-width:1",
    ".socket>.frame": "fill:#f6f8fa;stroke:#6e7781",
    ".node>.frame": "fill:#e6f1fb;stroke:#0087d7",
    ".cache>.frame": "fill:#f3f8f1;stroke:#5f875f",
    ".core>.frame": "fill:#ffffff;stroke:#b6bec7",
    ".plain": f"fill:{SHARED_FILL}",
    ".offline": "fill:none;stroke:#6e7781;stroke-dasharray:3 2",
    ".hatch": "stroke:#8c959f;stroke-width:1.4",
    ".dot": "fill:#99a2ac",
}
_DARK = {
    ".page": "fill:#0d1117",
    ".title,.number,.label": "fill:#e6edf3",
    ".muted": "fill:#9198a1",
    ".socket>.frame": "fill:#161b22;stroke:#8b949e",
    ".node>.frame": "fill:#12263a;stroke:#2f8fd8",
    ".cache>.frame": "fill:#15241a;stroke:#6f9f6f",
    ".core>.frame": "fill:#0d1117;stroke:#484f58",
    ".plain": "fill:#3d444d",
    ".offline": "fill:none;stroke:#8b949e;stroke-dasharray:3 2",
    ".hatch": "stroke:#6e7681;stroke-width:1.4",
    ".dot": "fill:#6e7681",
}

PATTERNS = (
    '<defs><pattern id="reserved" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="plain" width="8" height="8"/><line class="hatch" x1="0" y1="0" x2="0" y2="8"/></pattern>'
    '<pattern id="isolated" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect class="plain" width="6" height="6"/><circle class="dot" cx="3" cy="3" r="1.1"/></pattern></defs>'
)


def style_sheet(owners: Sequence[Owner], paints: Sequence[Paint]) -> str:
    """The sheet; who is pointed at, in the machine or in the legend, stands out, without any script."""
    lines = [f"text{{font-family:{FONT};font-variant-ligatures:none}}", ".letter{font-weight:700}"]
    lines += [".strong{font-weight:700}", ".cpu:hover>rect{stroke:#e3b341;stroke-width:2}"]
    lines += _rules(_LIGHT)
    lines += [
        f".k{at}{{fill:{paint.fill}}}.i{at}{{fill:{paint.ink}}}"
        for at, paint in enumerate(paints)
        if paint.fill
    ]
    lines += [
        f"svg:has(.o{at}:hover) .cpu:not(.o{at}){{opacity:.25}}"
        for at, owner in enumerate(owners)
        if owner.cpus
    ]
    lines.append("@media (prefers-color-scheme:dark){" + "".join(_rules(_DARK)) + "}")
    lines.append("@media print{" + "".join(_rules(_LIGHT)) + "}")
    return "<style>" + "\n".join(lines) + "</style>"


def _rules(look: dict[str, str]) -> list[str]:
    return [f"{what}{{{how}}}" for what, how in look.items()]
