"""Settings of Sphinx for ``make docs``."""

project = "Phalanx"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Phalanx"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
