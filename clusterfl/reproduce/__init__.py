"""The papers' tables, run again: experiments, their cells, what came out, and the page that compares.

``experiments/<paper>/<table>.toml`` holds a base config, rows (methods), settings (columns), what a scale
changes, and the paper's own figures. A *cell* is one row in one setting with one seed: one run, and one small
JSON in ``experiments/<paper>/results``. docs/reproducing.md describes the format.
"""
