"""Video sources: a registry of the kinds of source, and a reader for each.

Nothing is imported here, so that a capture process starts in a fraction of a second. Parsing a source imports neither
numpy nor OpenCV; a kind's reader is imported when a source of that kind is opened.
"""
