"""Fake cameras and media files."""

from ..media import make_folder, make_video, serve

__all__ = ["make_folder", "make_video", "serve"]
