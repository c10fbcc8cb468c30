"""The JSON that a request brings. What is wrong with it is said at its turn: when somebody looks into it.

Other errors come before that of a body, so `Sent.data` never raises: a body that is none is a mapping that raises
whatever one asks of it. Strict where JSON leaves things open: no name twice, no NaN, no number that is not one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NoReturn, Self

from starlette.requests import Request

from onetool.bundles.model import MOST_LEVELS
from onetool.faces.http.errors import ApiError

MEDIA_TYPE: Final = "application/json"
MOST_DIGITS: Final = 300


@dataclass(frozen=True, slots=True)
class Sent:
    """A body as it came."""

    media_type: str
    encoding: str
    content: bytes

    @classmethod
    async def with_request(cls, request: Request) -> Self:
        headers = request.headers
        return cls(headers.get("content-type", ""), headers.get("content-encoding", ""), await request.body())

    def data(self) -> Mapping[str, Any]:
        """Takes its time where there is much of it: not on the event loop."""
        try:
            _check_media_type(self)
            data = _parsed(self.content)
            if isinstance(data, dict):
                return data
            raise _invalid("the body must be a JSON object")
        except ApiError as error:
            return _Wrong(error)


class _Wrong(Mapping[str, Any]):
    def __init__(self, error: ApiError) -> None:
        self._error = error

    def _raise(self, *_: object) -> NoReturn:
        raise self._error

    __getitem__ = __iter__ = __len__ = _raise


def _check_media_type(sent: Sent) -> None:
    kind, _, parameters = sent.media_type.partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() != MEDIA_TYPE or charset not in {"", "charset=utf-8"}:
        what = f"not as {sent.media_type!a}" if sent.media_type else "and this one does not say what it is"
        message = f"a body is sent as JSON, {what}; send the header Content-Type: {MEDIA_TYPE}"
        raise ApiError("unsupported_media_type", message)
    if sent.encoding.strip().lower() not in {"", "identity"}:
        message = f"a body is sent as it is, not as {sent.encoding!a}; leave the header Content-Encoding out"
        raise ApiError("unsupported_media_type", message)


def _parsed(content: bytes) -> Any:
    try:
        text = content.decode()
        return json.loads(
            text, object_pairs_hook=_members, parse_constant=_constant, parse_int=_integer, parse_float=_number
        )
    except UnicodeDecodeError:
        raise _invalid("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _invalid(f"the body is no JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise _invalid(f"the body has more than {MOST_LEVELS} levels of objects and lists inside each other") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _invalid(f"the body has {twice!a} twice in one object")
    return members


def _constant(word: str) -> NoReturn:
    raise _invalid(f"the body has {word}, which JSON does not know; write null, or a number")


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _invalid(f"the body has a number of {len(digits)} digits, and {MOST_DIGITS} are the most")
    return int(digits)


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise _invalid(f"the body has the number {text[:40]}, which is too large")
    return number


def _invalid(message: str) -> ApiError:
    return ApiError("invalid", message)
