"""Figures of exporter and extender in the text format of Prometheus. The agent's come from the Prometheus library."""

import json
from collections.abc import Mapping


def figure(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> str:
    """Return one metric: a counter if its name ends in `_total`, else a gauge.

    Args:
        name: of the metric.
        text: one sentence.
        value: its value, or the values by that of `label`, which may be several, separated by commas.
        label: the names of the labels.
    """
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    if not isinstance(value, Mapping):
        return "\n".join([*lines, f"{name} {value}\n"])
    for key, number in value.items():
        pairs = zip(label.split(","), key.split(",") if "," in label else [key], strict=True)
        labels = ",".join(f"{one}={json.dumps(of_one, ensure_ascii=False)}" for one, of_one in pairs)
        lines.append(f"{name}{{{labels}}} {number}")
    return "".join(f"{line}\n" for line in lines)
