"""The results: a path in text files and plots, and a cloud of points in PLY files."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Literal

from retinad.client.points import points_of

from ..exit_codes import ExitCode, JobError
from .drawing import svg
from .frames import Colours, FrameSource, PosedFrame
from .path import CameraPath
from .plot import draw_path
from .ply import ramp, write_ply
from .pose_files import kitti_lines, tum_lines
from .voxels import VoxelCloud

TRAJECTORY_FORMS = {
    ".svg": "svg",
    ".png": "png",
    ".tum.txt": "tum",
    ".tum": "tum",
    ".kitti.txt": "kitti",
    ".kitti": "kitti",
}
CLOUD_FORMS = {".ply": "ply"}

ColourBy = Literal["height", "confidence", "image"]
COLOURS: tuple[ColourBy, ...] = ("height", "confidence", "image")

Say = Callable[[str], None]


@dataclass(eq=False)
class PathResult:
    """A camera's path; implements `collect.Result`."""

    source: FrameSource
    path: CameraPath
    say: Say
    _was_thinned: bool = False

    def add(self, frame: PosedFrame) -> bool:
        """See `Result.add`."""
        is_of_use = self.path.add(frame)
        if self.path.dropped and not self._was_thinned:
            self._was_thinned = True
            self.say(f"more than {self.path.max_poses} poses: from now on the older ones are thinned (--max-poses)")
        return is_of_use

    def clear(self) -> None:
        """See `Result.clear`."""
        self.path.clear()

    def write(self, form: str, file: BinaryIO) -> None:
        """See `Result.write`."""
        match form:
            case "tum":
                lines = tum_lines(self.path, self.source.name, self.source.clock)
                file.writelines(f"{line}\n".encode() for line in lines)
            case "kitti":
                file.writelines(f"{line}\n".encode() for line in kitti_lines(self.path))
            case "svg":
                file.write(svg(draw_path(self.path, self.source.name)))
            case "png":
                from .png import png

                file.write(png(draw_path(self.path, self.source.name)))
            case _:
                raise AssertionError(form)

    def describe(self) -> str:
        """See `Result.describe`."""
        lost = f" ({self.path.lost} frames had none)" if self.path.lost else ""
        thinned = f", thinned by {self.path.dropped}" if self.path.dropped else ""
        return f"{len(self.path)} poses{lost}{thinned}, a path of {self.path.length:.4g} ({self.path.unit}),"


@dataclass(eq=False)
class CloudResult:
    """A cloud of points; implements `collect.Result`.

    Attributes:
        source: where frames come from.
        cloud: the points.
        say: prints a line for people.
        min_confidence: pixels with less confidence are left out.
        colour_by: what the colours show.
        every: every n-th frame is used.
    """

    source: FrameSource
    cloud: VoxelCloud
    say: Say
    min_confidence: float = 0.0
    colour_by: ColourBy = "height"
    every: int = 1
    _unit: str = "stream"
    _frames: int = 0
    _seen: int = field(default=0, repr=False)

    def add(self, frame: PosedFrame) -> bool:
        """See `Result.add`."""
        if frame.view is None or frame.pose is None:
            return False
        self._seen += 1
        if (self._seen - 1) % self.every:
            return False
        self._unit = frame.unit
        found = points_of(replace(frame.view, min_confidence=self.min_confidence))
        assert frame.view.confidence is not None, "views are made with one"
        colours = None
        if self.colour_by == "image":
            colours = self._picture(frame)[found.y, found.x]
        before = self.cloud.voxel
        self.cloud.add(found.points, frame.view.confidence[found.rows, found.columns], colours)
        if self.cloud.voxel != before:
            self.say(
                f"more than {self.cloud.max_points} points: voxels are now {self.cloud.voxel:g} wide (--max-points)"
            )
        self._frames += 1
        return True

    def clear(self) -> None:
        """See `Result.clear`."""
        self.cloud.clear()
        self._frames = self._seen = 0

    def write(self, form: str, file: BinaryIO) -> None:
        """See `Result.write`."""
        vertices = self.cloud.vertices
        if self.colour_by != "image":
            vertices = vertices.copy()
            shown = -vertices["y"] if self.colour_by == "height" else vertices["confidence"]
            vertices["red"], vertices["green"], vertices["blue"] = ramp(shown).T
        comments = (self.source.name, f"unit {self._unit}", f"voxel {self.cloud.voxel:g}", f"frames {self._frames}")
        write_ply(file, vertices, comments)

    def describe(self) -> str:
        """See `Result.describe`."""
        far = f" ({self.cloud.too_far} too far away)" if self.cloud.too_far else ""
        voxels = f"voxels of {self.cloud.voxel:g} ({self._unit})"
        return f"{len(self.cloud)} points{far} from {self._frames} frames, {voxels},"

    def _picture(self, frame: PosedFrame) -> Colours:
        assert frame.picture is not None, "asked for when the source was opened"
        assert frame.view is not None
        picture = frame.picture()
        _, _, width, height = frame.view.shown
        if picture.shape != (height, width, 3):
            raise JobError(
                ExitCode.NO_INPUT,
                f"a frame of the recording is {picture.shape[1]}x{picture.shape[0]}, but it was {width}x{height} when "
                "it was extracted: the recording has changed",
            )
        return picture
