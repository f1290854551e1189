"""The map from a stream's present epoch to its first one."""

from .similarity import Similarity


class Trajectory:
    """Composes the alignments of epochs; `to_first` maps the present epoch's frame to the first one's."""

    def __init__(self, to_first: Similarity | None = None) -> None:
        self.to_first = to_first or Similarity.identity()

    def advance(self, new_to_old: Similarity) -> None:
        """Starts an epoch, with its map to the one before."""
        self.to_first = self.to_first.after(new_to_old)
