"""Pictures of populations, models and runs.

Pages of runs (``page.py``) go from a folder (``runs.py``) to figures (``learning.py``, ``clusters.py``, ``several.py``,
…) that are drawn as SVG (``svg.py``, ``lines.py``, ``heat.py``, …) and put into one template (``assets/``).
``labels.py``, ``pseudo.py``, ``scaling.py`` and ``similarity.py`` draw PNGs with matplotlib (extra ``report``), which
is imported when one is drawn.
"""
