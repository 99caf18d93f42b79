"""The two plots of a cell, as Vega specifications, and the runtime that draws them inside the page.

Vega, through Altair: its charts are checked against a schema here, one specification serves every cell, and the drawing
is SVG that takes the page's own colours, prints sharply and speaks to screen readers. `vl-convert` carries the runtime
in its wheel: 0.9 MB of script, where Plotly needs 4.5 MB and Matplotlib one picture per cell. Nothing is fetched.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import altair as alt
import vl_convert

LAYER_COLOURS = [f"var(--layer-{i})" for i in range(8)]
LAYER_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 3], [4, 6], [1, 4], [10, 2, 2, 2, 2, 2]]
"""Eight of each: a ninth layer begins again. Dashes tell layers apart where colours do not."""


@cache
def vega_runtime() -> str:
    """Vega as one script, which sets `window.vegaEmbed` and keeps all its other names to itself."""
    return f"(() => {{\n{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}\n}})();"


@cache
def specifications() -> dict[str, dict[str, Any]]:
    """Vega specifications by name. The page fills in their data sets by name, and the width."""
    return {"diff": _compiled(_diff()), "locator": _compiled(_locator())}


def _compiled(chart: alt.LayerChart) -> dict[str, Any]:
    return vl_convert.vegalite_to_vega(_themed(chart).to_dict())


def _diff() -> alt.LayerChart:
    """Data: errors [token, error, layer], noise [low, limit], marks [token]."""
    token = alt.X(
        "token:Q", title="token", scale=alt.Scale(zero=False, nice=False, padding=4), axis=alt.Axis(format="d")
    )
    error = alt.Y(
        "error:Q", title="relative error", scale=alt.Scale(type="log", nice=True), axis=alt.Axis(format=".0e")
    )
    columns = alt.expr("width < 320 ? 2 : 4")
    layers = alt.Legend(
        orient="top", columns=columns, symbolType="stroke", symbolSize=300, symbolStrokeWidth=2, title=None
    )
    colour = alt.Color("layer:N", sort=None, legend=layers, scale=alt.Scale(range=LAYER_COLOURS))
    dash = alt.StrokeDash("layer:N", sort=None, legend=layers, scale=alt.Scale(range=LAYER_DASHES))
    hovered = alt.selection_point(on="pointerover", nearest=True, fields=["token", "layer"], empty=False)
    errors = alt.Chart(alt.NamedData("errors"))
    lines = errors.mark_line(strokeWidth=1.6, interpolate="step-after", aria=False).encode(
        x=token,
        y=error,
        color=colour,
        strokeDash=dash,
    )
    points = (
        errors.mark_point(filled=True, size=50, aria=False)
        .encode(
            x=token,
            y=error,
            color=colour,
            strokeDash=dash,  # or the legend would list colours and dashes apart
            opacity=alt.when(hovered).then(alt.value(1)).otherwise(alt.value(0)),
            tooltip=[
                alt.Tooltip("layer:N"),
                alt.Tooltip("token:Q", format="d"),
                alt.Tooltip("measured:N", title="error"),
            ],
        )
        .add_params(hovered)
    )
    noise = (
        alt.Chart(alt.NamedData("noise"))
        .mark_rect(color="var(--noise)", aria=False)
        .encode(y=alt.Y("low:Q", title="relative error"), y2="limit:Q")
    )
    return (noise + lines + points + _rules("token", top=2)).properties(height=240)


def _locator() -> alt.LayerChart:
    """Data: distances [depth, distance], nearest [depth, distance], marks [depth]."""
    depth = alt.X(
        "depth:Q", title="depth", scale=alt.Scale(zero=False, nice=False, padding=4), axis=alt.Axis(format="d")
    )
    distance = alt.Y("distance:Q", title="relative distance", scale=alt.Scale(zero=True, nice=True))
    hovered = alt.selection_point(on="pointerover", nearest=True, fields=["depth"], empty=False)
    distances = alt.Chart(alt.NamedData("distances"))
    line = distances.mark_line(color="var(--layer-0)", strokeWidth=1.4, aria=False).encode(x=depth, y=distance)
    points = (
        distances.mark_point(filled=True, size=50, color="var(--layer-0)", aria=False)
        .encode(
            x=depth,
            y=distance,
            opacity=alt.when(hovered).then(alt.value(1)).otherwise(alt.value(0)),
            tooltip=[alt.Tooltip("depth:Q", format="d"), alt.Tooltip("distance:Q", format=".3g")],
        )
        .add_params(hovered)
    )
    nearest = (
        alt.Chart(alt.NamedData("nearest"))
        .mark_point(shape="diamond", size=130, filled=True, color="var(--ink)", aria=False)
        .encode(x=depth, y=distance)
    )
    return (line + nearest + points + _rules("depth", top=90)).properties(height=200)


def _rules(field: str, top: int) -> alt.LayerChart:
    """Vertical marks with a name beside them, from `top` px on; `align` says on which side, `row` how far down."""
    marks = alt.Chart(alt.NamedData("marks"))
    rule = marks.mark_rule(color="var(--ink)", strokeDash=[5, 3], aria=False).encode(x=f"{field}:Q")
    aside = alt.expr("datum.align == 'left' ? 4 : -4")
    below = alt.expr(f"{top} + 15 * datum.row")
    name = marks.mark_text(
        align=alt.expr("datum.align"), dx=aside, dy=below, baseline="top", color="var(--ink)", aria=False
    )
    return rule + name.encode(x=f"{field}:Q", y=alt.value(0), text="name:N")


def _themed(chart: alt.LayerChart) -> alt.LayerChart:
    font = "system-ui, sans-serif"
    return (
        chart.configure(background="transparent", font=font, padding=4)
        .configure_view(stroke="var(--line)")
        .configure_axis(
            labelColor="var(--ink)",
            titleColor="var(--ink)",
            titleFontWeight="normal",
            gridColor="var(--line)",
            gridOpacity=0.6,
            domainColor="var(--line)",
            tickColor="var(--line)",
            labelFontSize=11,
            titleFontSize=12,
        )
        .configure_axisX(labelFlush=True, labelOverlap="greedy", labelSeparation=8, grid=False)
        .configure_axisY(tickCount=6, labelOverlap="greedy")
        .configure_legend(labelColor="var(--ink)", labelFontSize=12)
        .configure_text(fontSize=12)
    )
