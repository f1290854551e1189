"""Poses, intrinsics and similarities, in numpy."""
