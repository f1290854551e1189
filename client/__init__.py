"""The client library: subscribers, typed records and the message layout. Needs neither torch nor OpenCV."""

from .connection import CurveKeys
from .gaps import Gap, GapKind
from .locator import Locator
from .query import QueryError
from .record import EndRecord, FeaturesRecord, HelloRecord, Record, StatusRecord, Tensors
from .subscriber import AsyncSubscriber, Subscriber
from .wire import SCHEMA, Kind, WireError

__all__ = [
    "SCHEMA",
    "AsyncSubscriber",
    "CurveKeys",
    "EndRecord",
    "FeaturesRecord",
    "Gap",
    "GapKind",
    "HelloRecord",
    "Kind",
    "Locator",
    "QueryError",
    "Record",
    "StatusRecord",
    "Subscriber",
    "Tensors",
    "WireError",
]
