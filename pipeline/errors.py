"""The pipeline's own errors: third-party errors are translated to these once, at the file that owns the library.

PipelineError
├── SourceError     a camera source cannot be opened or read; `fault` says what sort of failure it is
├── ModelError      a model, checkpoint or device cannot be used as configured
│   ├── AdmissionError  there is no room for one stream more: the others go on
│   └── DeviceError     the device itself failed: the process must not go on with it
├── StateError      a stream's memory cannot be written to its file, or the file does not fit the stream
└── PublishError    an endpoint cannot be bound or used
"""

from enum import StrEnum


class PipelineError(Exception):
    """Base class of this package's errors. The message says what, where and what to do; it never holds a secret."""


class SourceFault(StrEnum):
    """Why a source failed, in the words that status messages and logs use."""

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
    """A live stream went on in another size or pixel format: it is opened again, which is no failure of the source."""

    @property
    def permanent(self) -> bool:
        """Whether trying again soon cannot help (the source is still tried again, but rarely)."""
        return self in {SourceFault.AUTH, SourceFault.NOT_FOUND, SourceFault.PERMISSION, SourceFault.UNREADABLE}


class SourceError(PipelineError):
    """A camera source cannot be opened or read."""

    def __init__(self, fault: SourceFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ModelError(PipelineError):
    """A model, checkpoint or device cannot be used as configured."""


class AdmissionError(ModelError):
    """There is no room for one stream more; the message has the sum. The streams that are open go on."""


class DeviceError(ModelError):
    """The device itself failed (a sticky CUDA error, a lost device): the process must stop."""


class StateError(PipelineError):
    """A stream's memory cannot be written, or what a file holds is not for this stream; the message says why."""


class PublishError(PipelineError):
    """An endpoint or a key cannot be used as configured.

    Attributes:
        field: the field of `PublishConfig` that is at fault, such as `endpoints` or `curve.authorized_keys_dir`; None
            where no field is.
    """

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.field = field
