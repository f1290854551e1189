"""The pipeline's errors. Errors of a third-party library are translated to these in the one file that uses the library.

PipelineError
├── SourceError     a camera source cannot be opened or read; `fault` is the kind of failure
├── ModelError      a model, checkpoint or device cannot be used as configured
│   ├── SettingError    the model cannot work as configured: trying again cannot help
│   │   └── CheckpointError the weights' file cannot be used
│   ├── AdmissionError  there is no room for another stream; the open ones continue
│   └── DeviceError     the device itself failed: the process must stop
├── QueryError      a picture cannot be located in a stream's memory
├── StateError      a stream's memory cannot be saved, or a state file does not match the stream
└── PublishError    an endpoint or a key cannot be used as configured
    └── AccessError     another user could replace the socket of an endpoint, or change a key
"""

from collections.abc import Sequence
from enum import StrEnum

from .config_diff import Difference


class PipelineError(Exception):
    """Base class of this package's errors. The message says what failed, where, and what to do. It holds no secrets."""


class SourceFault(StrEnum):
    """Kinds of source failures, as named in status messages and logs."""

    REFUSED = "refused"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    TLS = "tls"
    CODEC = "codec"
    PERMISSION = "permission"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    STALLED = "stalled"
    CRASHED = "crashed"
    RESIZED = "resized"
    """A live stream changed its size or pixel format. Its source is reopened; this does not count as a failure."""

    @property
    def permanent(self) -> bool:
        """Whether retrying soon is pointless (the source is still retried, but rarely)."""
        return self in {SourceFault.AUTH, SourceFault.NOT_FOUND, SourceFault.PERMISSION, SourceFault.UNREADABLE}


class SourceError(PipelineError):
    """A camera source cannot be opened or read."""

    def __init__(self, fault: SourceFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ModelError(PipelineError):
    """A model, checkpoint or device cannot be used as configured."""


class SettingError(ModelError):
    """The model cannot work as configured, so trying again cannot help."""


class CheckpointError(SettingError):
    """The file with the weights is missing, may not be read, is damaged, or does not match the network."""


class AdmissionError(ModelError):
    """There is no room for another stream. The message states the memory needed. The open streams continue."""


class DeviceError(ModelError):
    """The device itself failed (for example with a sticky CUDA error), so the process must stop."""


class QueryError(PipelineError):
    """A picture cannot be located in a stream's memory. The message says why."""


class StateError(PipelineError):
    """A stream's memory cannot be saved, or a state file does not match the stream. The message says why.

    Attributes:
        message: the text without the differences.
        differences: the settings in which the file and the stream differ; empty if the error has another reason.
    """

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        self.message = message
        self.differences = tuple(differences)
        super().__init__(f"{message}: {'; '.join(map(str, differences))}" if differences else message)


class PublishError(PipelineError):
    """An endpoint or a key cannot be used as configured.

    Attributes:
        field: the field of `PublishConfig` that caused the error, such as `endpoints` or `curve.authorized_keys_dir`;
            None if no field did.
    """

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.field = field


class AccessError(PublishError):
    """Another user made a file of an endpoint, could publish in its place, or could change a key."""
