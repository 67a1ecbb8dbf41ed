"""Charts as SVG, drawn here: rows of bars and dots, lines, matrices, with axes and legends.

A chart is a value with `draw(width)`. Colors are names of the palette, written as CSS variables.
"""

from paceline.report.chart.lines import Line, Lines
from paceline.report.chart.rows import Bar, Dot, Hill, Interval, Row, Rows, Tick

__all__ = ["Bar", "Dot", "Hill", "Interval", "Line", "Lines", "Row", "Rows", "Tick"]
