"""Types of settings values with their checks, and the base of all sections.

An error message completes a sentence that begins with the key.
"""

import re
from ipaddress import ip_network
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from onetool.util.context import Effect, Permission, permissions as permissions_of
from onetool.util.running_servers import is_loopback
from onetool.util.store_url import FILES, SCHEMES
from onetool.util.time_format import parse_time

QUEUE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
HOST_NAME = re.compile(r"(?:[a-z0-9-]{1,63}\.)*[a-z0-9-]{1,63}", re.ASCII | re.IGNORECASE)
ORIGIN = re.compile(r"https?://[^\s/?#@\\]+", re.IGNORECASE)
Loc = tuple[str | int, ...]


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic collects ValueErrors only
    return value


def _parse_permissions(value: Any) -> frozenset[Permission]:
    try:
        return permissions_of(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a list of permissions ({', '.join(Permission)})") from None


def _check_url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return value


def _check_queue(value: str) -> str:
    if value and not QUEUE_NAME.fullmatch(value):
        raise ValueError("must be a name of lower-case letters, digits, - and _, such as gpu")
    return value


def _check_store(value: str) -> str:
    if value in {"", FILES}:
        return ""
    if not value.startswith(SCHEMES):
        raise ValueError("must be `files`, or a URL such as postgresql://user@host/database")
    return value


def _check_host_pattern(value: str) -> str:
    name = value.removeprefix("*.")
    if (
        not name
        or set(name) & set("/@?# ")
        or not name.isprintable()
        or ("*" in name and name != "*")
    ):
        raise ValueError("must be a host such as *.example.com or a.example.com:8080, not a URL")
    return value


def _check_origin(value: str) -> str:
    if not ORIGIN.fullmatch(value):
        raise ValueError("must be an origin such as https://api.example.com, without a path")
    return value


def _check_host_name(value: str) -> str:
    if not HOST_NAME.fullmatch(value):
        raise ValueError(
            "must be a host name such as tools.example.com, without scheme, port or path"
        )
    if value.lower() in {"localhost", "127.0.0.1"}:
        raise ValueError("is a loopback name, which needs no token; use the host name of the proxy")
    return value.lower()


def _check_network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError:
        raise ValueError("must be an IP address or a network such as 10.0.0.0/8") from None


def _check_time(value: str) -> str:
    try:
        parse_time(value)
    except ValueError:
        raise ValueError("must be a time such as 2027-01-31T12:00:00Z") from None
    return value


def _check_issuer(value: str) -> str:
    host = urlsplit(_check_url(value)).hostname or ""
    if value.startswith("http://") and not is_loopback(host):
        raise ValueError(
            "must start with https://; plain http is for issuers on loopback addresses only"
        )
    if not host or set(value) & set("?#@ \t\n"):
        raise ValueError(
            "must be a URL without user name, query and fragment, such as https://id.example.com"
        )
    return value


def to_upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_reject_bool), Field(gt=0)]
CountOrZero = Annotated[int, BeforeValidator(_reject_bool), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(_reject_bool), Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, BeforeValidator(_reject_bool), Field(ge=0, allow_inf_nan=False)]
Cost = SecondsOrZero
Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Name = Annotated[str, Field(min_length=1)]
Names = tuple[Name, ...]
Permissions = Annotated[frozenset[Permission], BeforeValidator(_parse_permissions)]
Effects = Annotated[frozenset[Effect], BeforeValidator(_as_list)]
Labels = Annotated[frozenset[Literal["private", "untrusted"]], BeforeValidator(_as_list)]
Url = Annotated[str, AfterValidator(_check_url)]
QueueName = Annotated[str, AfterValidator(_check_queue)]
StoreUrl = Annotated[str, AfterValidator(_check_store), Field(repr=False)]
Host = Annotated[str, AfterValidator(_check_host_pattern)]
IssuerUrl = Annotated[str, AfterValidator(_check_issuer)]
Timestamp = Annotated[str, AfterValidator(_check_time)]
NamesOrName = Annotated[Names, BeforeValidator(_as_list), Field(min_length=1)]
HostName = Annotated[str, AfterValidator(_check_host_name)]
Network = Annotated[str, AfterValidator(_check_network)]
Origin = Annotated[str, AfterValidator(_check_origin)]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(to_upper)
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    nullable_keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the type of each key, by its name in the file."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Treat a key without a value, such as `servers:` with all its entries commented out, as a
        missing key.
        """
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        removable = cls.kinds().keys() - cls.nullable_keys
        return {
            key: value for key, value in data.items() if value is not None or key not in removable
        }


class CamelSection(Section):
    model_config = ConfigDict(alias_generator=to_camel)
