"""Placeholders in each part of a request: accepted and rejected templates, and escaping of values."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from onetool.errors import ArgumentError, ToolError
from onetool.net.client import Request
from onetool.net.hosts import parse_target
from onetool.sources.http.definition import HttpImpl
from onetool.sources.http.placeholders import Placeholder, Values, parse

HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(
        [
            "..", ".", "", "/", "../../admin", "%2e%2e", "%2f", "?", "#", "&a=b", "=", "a b", "@evil.test", "\\",
            "//evil.test",
            "\r\nX-Evil: 1", "\0", "${secret:KEY}", "${other}", "$${x}", '"',
            '","admin":true,"x":"', "\\", '\\"', "]", "}", "null",
            "\u2028", "\ufdd0", ";x", "a\tb", "é", "日本", "\U0001d4b3", "\ufeff", "\x85", "\x7f",
        ]
    ),
)  # fmt: skip
SCALARS = st.one_of(
    HOSTILE, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
DATA = st.recursive(
    st.one_of(st.none(), SCALARS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(HOSTILE, inner, max_size=4)
    ),
    max_leaves=8,
)
JOINED = {"a": "pipes", "b": "ssv", "c": "tsv"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SECRETS = {"KEY": "k-3y/ä", "PAIR": "bob:p:w", "LINES": "one\ntwo"}


def build_impl(**fields: Any) -> HttpImpl:
    return HttpImpl.model_validate(
        {"method": "GET", "urlTemplate": "https://api.test/v1", **fields}
    )


def fill(definition: HttpImpl, required: tuple[str, ...] = (), **args: Any) -> Request:
    return definition.request.fill(Values(args, frozenset(required), SECRETS.get))


def get_rejection(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        build_impl(**fields)
    return str(caught.value)


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def load_body(request: Request) -> Any:
    assert request.content is not None
    return json.loads(request.content)


# --- placeholders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain $ {x} $x", ("plain $ {x} $x",)),
        ("${a}", (Placeholder("a"),)),
        ("x${a.b-c[0][12].d}y", ("x", Placeholder("a", ("b-c", 0, 12, "d")), "y")),
        ("${secret:A_1}", (Placeholder("A_1", kind="secret"),)),
        ("${secret}", (Placeholder("secret"),)),
        ("$${a}", ("${a}",)),
        ("$$${a}", ("$", Placeholder("a"))),
        ("$$$${a}", ("$${a}",)),
        ("${a}${b}", (Placeholder("a"), Placeholder("b"))),
        ("${größe}", (Placeholder("größe"),)),
        ("${csv:a.b[0]}", (Placeholder("a", ("b", 0), kind="csv"),)),
        (
            "${pipes:a}${ssv:b}${tsv:c}",
            tuple(Placeholder(name, kind=by) for name, by in JOINED.items()),
        ),
        ("${csv}", (Placeholder("csv"),)),
    ],
)
def test_a_template_is_parsed(text: str, parts: tuple[Any, ...]) -> None:
    assert parse(text) == parts


@pytest.mark.parametrize(
    "text",
    ["${", "${}", "${a", "${ a }", "${a.}", "${a[]}", "${a[x]}", "${a[-1]}", "${.a}", "${secret:}", "${secret:a b}",
     "${a b}", "${a|b}", "${${a}}", "${env:HOME}", "${a\n}", "${a[1234567890]}", "${csv:}", "${csv:secret:KEY}",
     "${secret:csv:a}", "${csv:pipes:a}", "${CSV:a}"],
)  # fmt: skip
def test_an_invalid_placeholder_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected \$\{name\}"):
        parse(text)


@given(st.lists(st.sampled_from(["a", "$", "${", "}", "{", "x", "${x}"]), max_size=12).map("".join))
def test_doubled_dollars_escape_any_text(text: str) -> None:
    escaped = text
    for run in range(12, 0, -1):  # every run of dollars before a brace, longest first
        escaped = escaped.replace("$" * run + "{", "\0" * 2 * run + "{")
    assert "".join(map(str, parse(escaped.replace("\0", "$")))) == text


def test_a_placeholder_is_formatted_as_written() -> None:
    for text in ("${a.b[0].c}", "${secret:KEY}", "${a}", "${csv:a}", "${pipes:a.b[0]}"):
        assert str(parse(text)[0]) == text


def test_many_dollars_are_parsed_quickly() -> None:
    assert parse("$" * 1_000_000) == ("$" * 1_000_000,)


def test_the_definition_names_its_arguments_and_secrets() -> None:
    definition = build_impl(
        urlTemplate="https://api.test/${a.id}?b=${b}",
        query={"c": "${c}"},
        headers={"X": "${d} ${secret:ONE}"},
        body={"deep": [{"e": "x ${e}"}, "$${not}"]},
        auth={"type": "bearer", "value": "${secret:TWO}"},
        method="POST",
    )
    assert definition.arguments == {"a", "b", "c", "d", "e"}
    assert definition.required_secrets == {"ONE", "TWO"}


# --- the URL --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("ftp://api.test/", "must start with http:// or https://"),
        ("//api.test/", "must start with"),
        ("${scheme}://api.test/", "must start with"),
        ("https:/api.test", "must start with"),
        (" https://api.test", "must start with"),
        ("https://${host}/", "in the host"),
        ("https://api.${x}.test/", "in the host"),
        ("https://api.test:${port}/", "in the host"),
        ("https://api.test${path}", "in the host"),
        ("https://$${x}.test/", "in the host"),
        ("https://${secret:KEY}@api.test/", "in the host"),
        ("https://user:pw@api.test/", "use auth"),
        ("https://", "has no valid host"),
        ("https:///x", "has no valid host"),
        ("https://api.test:x/", "has no valid host"),
        ("https://api.test:99999/", "has no valid host"),
        ("https://api test/", "has no valid host"),
        ("https://api.test\\${x}/", "backslash"),
        ("https://api.test/a b", "space"),
        ("https://api.test/\n", "control character"),
        ("https://api.test/100%", "write %25"),
        ("https://api.test/%2${x}", "write %25"),
        ("https://api.test/#${x}", "never sent"),
        ("https://api.test/../x", ". or .. segment"),
        ("https://api.test/%2e%2E/x", ". or .. segment"),
        ("https://api.test/${a/b}", "invalid placeholder"),
        ("https://api.test/?${x}=1", "name of a parameter"),
        ("https://api.test/?a=1&${x}", "name of a parameter"),
    ],
)
def test_an_invalid_url_template_is_rejected(template: str, message: str) -> None:
    assert message in get_rejection(urlTemplate=template)


@pytest.mark.parametrize(
    "template",
    ["http://api.test", "https://api.test:8443/a/", "https://[::1]:80/x", "https://api.test?a", "https://bücher.test/ä",
     "https://api.test/a%20b;v=1/:x@y?q=a+b&q=c%26d", "https://api.test//double"],
)  # fmt: skip
def test_a_url_without_placeholders_is_sent_as_written(template: str) -> None:
    sent, meant = parse_target(fill(build_impl(urlTemplate=template)).url), parse_target(template)
    assert sent == meant


@given(SCALARS, SCALARS, SCALARS)
def test_no_value_changes_the_rest_of_the_url(one: Any, two: Any, three: Any) -> None:
    definition = build_impl(
        urlTemplate="https://api.test/v1/${one}/x-${two}.json?fix=1&three=${three}",
        query={"four": "<${one}>"},
    )
    try:
        url = fill(definition, one=one, two=two, three=three).url
    except ArgumentError:
        assert one in {"", ".", ".."}
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "api.test", "")
    assert [unquote(part) for part in parts.path.split("/")] == [
        "",
        "v1",
        as_text(one),
        f"x-{as_text(two)}.json",
    ]
    pairs = [("fix", "1"), ("three", as_text(three)), ("four", f"<{as_text(one)}>")]
    assert parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) == pairs
    target = parse_target(url)  # as it is sent
    assert (target.origin, target.path) == (
        "https://api.test",
        url.removeprefix("https://api.test"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("template", ["${a}", "${a}${b}", ".${a}", "${a}.", "%2e${a}", "$${${a}"])
@given(a=st.text(".%2eE/", max_size=3), b=st.text(".%2e", max_size=3))
def test_no_segment_becomes_empty_or_dots(template: str, a: str, b: str) -> None:
    definition = build_impl(urlTemplate=f"https://api.test/x/{template}/y")
    try:
        url = fill(definition, a=a, b=b).url
    except ArgumentError:
        return
    first, middle, last = urlsplit(url).path.lstrip("/").split("/")
    assert (first, last) == ("x", "y")
    assert unquote(middle) not in {"", ".", ".."}
    assert parse_target(url).path == urlsplit(url).path


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_value_cannot_leave_its_segment(value: str) -> None:
    with pytest.raises(ArgumentError, match=r"\$\{id\} would make a path segment empty"):
        fill(build_impl(urlTemplate="https://api.test/users/${id}/keys"), id=value)


def test_a_value_in_the_path_is_required_even_if_the_argument_is_optional() -> None:
    with pytest.raises(ArgumentError, match="argument id is required"):
        fill(build_impl(urlTemplate="https://api.test/${id}"))
    with pytest.raises(ArgumentError, match="argument user is required"):
        fill(build_impl(urlTemplate="https://api.test/${user.id}"), user={"name": "x"})


@pytest.mark.parametrize("value", [["a"], {"a": 1}, [], {}])
def test_lists_and_objects_are_rejected_in_paths_and_headers(value: Any) -> None:
    for definition in (
        build_impl(urlTemplate="https://api.test/${x}"),
        build_impl(headers={"X": "${x}"}),
        build_impl(query={"q": "a ${x}"}),
    ):
        with pytest.raises(ArgumentError, match=r"\$\{x\} is (a list|an object)"):
            fill(definition, x=value)


def test_an_unpaired_surrogate_is_rejected_in_text() -> None:
    for definition in (
        build_impl(urlTemplate="https://api.test/${x}"),
        build_impl(headers={"X": "${x}"}),
        build_impl(query={"q": "${x}"}),
        build_impl(body="hi ${x}", method="POST"),
    ):
        with pytest.raises(ArgumentError, match="surrogate"):
            fill(definition, x="\ud800")


# --- the query ------------------------------------------------------------------------------------


def test_lists_repeat_a_parameter_and_missing_values_remove_it() -> None:
    definition = build_impl(
        query={
            "tag": "${tags}",
            "q": "x ${q}",
            "on": "${on}",
            "limit": 5,
            "all": True,
            "lit": "a&b",
        }
    )
    url = fill(definition, tags=["a&b", None, 2, False], on=True).url
    assert urlsplit(url).query == "tag=a%26b&tag=2&tag=false&on=true&limit=5&all=true&lit=a%26b"
    assert urlsplit(fill(definition, tags=[], q=None).url).query == "limit=5&all=true&lit=a%26b"


def test_a_required_value_that_is_missing_is_an_error() -> None:
    for definition in (
        build_impl(query={"q": "${q}"}),
        build_impl(headers={"X": "${q}"}),
        build_impl(body={"q": "${q}"}, method="POST"),
    ):
        with pytest.raises(ArgumentError, match="argument q is required"):
            fill(definition, required=("q",))


def test_a_parameter_is_set_only_once() -> None:
    assert "query parameter a is set twice" in get_rejection(
        urlTemplate="https://api.test?%61=1", query={"a": "2"}
    )
    key = {"type": "apiKey", "in": "query", "name": "a", "value": "${secret:KEY}"}
    assert "query parameter a is set twice" in get_rejection(query={"a": "2"}, auth=key)
    assert urlsplit(fill(build_impl(urlTemplate="https://api.test?a=1&a=2")).url).query == "a=1&a=2"


def test_a_name_cannot_contain_a_placeholder() -> None:
    assert "name of a parameter" in get_rejection(query={"${x}": "1"})
    assert urlsplit(fill(build_impl(query={"a&b=$${x}": "1"})).url).query == "a%26b%3D%24%7Bx%7D=1"


# --- joined lists ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "query"), [("csv", "a%26b,2,true"), ("pipes", "a%26b%7C2%7Ctrue"), ("ssv", "a%26b%202%20true"),
                      ("tsv", "a%26b%092%09true")]
)  # fmt: skip
def test_a_list_is_joined(by: str, query: str) -> None:
    definition = build_impl(
        urlTemplate=f"https://api.test/x-${{{by}:ids}}", query={"ids": f"${{{by}:ids}}"}
    )
    assert (
        fill(definition, ids=["a&b", None, 2, True]).url
        == f"https://api.test/x-{query}?ids={query}"
    )
    assert parse_target(fill(definition, ids=("one",)).url).path == "/x-one?ids=one"


@given(st.lists(SCALARS, min_size=1, max_size=4), SCALARS)
def test_no_item_becomes_two_and_no_list_changes_the_rest_of_the_url(
    items: list[Any], other: Any
) -> None:
    definition = build_impl(
        urlTemplate="https://api.test/v1/x-${csv:ids}/y?fix=1&ids=${csv:ids}&o=${o}"
    )
    parts = urlsplit(fill(definition, ids=items, o=other).url)
    _, version, joined, last = parts.path.split("/")
    assert (parts.netloc, version, last, parts.fragment) == ("api.test", "v1", "y", "")
    assert [unquote(item) for item in joined.removeprefix("x-").split(",")] == [
        as_text(item) for item in items
    ]
    fix, ids, o = parts.query.split("&")
    assert (fix, unquote(o)) == ("fix=1", f"o={as_text(other)}")
    assert ids == f"ids={joined.removeprefix('x-')}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "separator"), [("csv", ","), ("pipes", "|"), ("ssv", " "), ("tsv", "\t")]
)
@given(items=st.lists(SCALARS, min_size=1, max_size=4), mixed=st.booleans())
def test_an_item_that_contains_the_separator_is_rejected(
    by: str, separator: str, items: list[Any], mixed: bool
) -> None:
    items = [*items, f"a{separator}b"] if mixed else items
    is_clear = not any(separator in as_text(item) for item in items)
    placeholder = f"${{{by}:x}}"
    places = [
        build_impl(method="POST", body=placeholder),
        build_impl(method="POST", body=f"<{placeholder}>"),
    ]
    places += [build_impl(query={"x": placeholder})] if by != "csv" else []
    for definition in places:
        if is_clear:
            sent = fill(definition, x=items)
            assert len(
                (sent.content or unquote(sent.url).encode()).split(separator.encode())
            ) == len(items)
        else:
            with pytest.raises(ArgumentError, match="contains the separator"):
                fill(definition, x=items)


def test_a_joined_list_is_one_string_in_headers_and_bodies() -> None:
    assert fill(build_impl(headers={"X": "v=${csv:x}"}), x=["a", 1]).headers == [("X", "v=a,1")]
    assert load_body(fill(build_impl(method="POST", body={"x": "${pipes:x}", "y": ["${csv:no}"]}), x=["a", '"'])) == {
        "x": 'a|"', "y": []
    }  # fmt: skip
    definition = build_impl(method="POST", body='{"x": ${csv:x}, "y": "<${csv:x}>"}')
    assert load_body(fill(definition, x=['"', "b"])) == {"x": '",b', "y": '<",b>'}
    with pytest.raises(
        ArgumentError, match=r"\$\{csv:x\} has an item that contains the separator ','"
    ):
        fill(build_impl(headers={"X": "${csv:x}"}), x=["a,b"])
    with pytest.raises(ArgumentError, match=r"\$\{csv:x\} contains '\\n'"):
        fill(build_impl(headers={"X": "${csv:x}"}), x=["a\nb"])
    with pytest.raises(
        ArgumentError, match="contains ',', which is not allowed in the header Cookie"
    ):
        fill(build_impl(headers={"Cookie": "a=${csv:x}"}), x=["a", "b"])


def test_an_empty_list_is_a_missing_value() -> None:
    definition = build_impl(query={"x": "${csv:x}", "y": "a ${csv:x}"}, headers={"X": "${csv:x}"})
    for nothing in ([], [None], None):
        assert fill(definition, x=nothing) == Request("GET", "https://api.test/v1", [])
        with pytest.raises(ArgumentError, match="argument x is required"):
            fill(definition, required=("x",), x=nothing)
        with pytest.raises(ArgumentError, match="argument x is required"):
            fill(build_impl(urlTemplate="https://api.test/${csv:x}"), x=nothing)
    assert urlsplit(fill(build_impl(query={"x": "${csv:x}"}), x=[""]).url).query == "x="


def test_one_value_is_a_list_of_one() -> None:
    assert urlsplit(fill(build_impl(query={"x": "${csv:x}"}), x="a,b").url).query == "x=a%2Cb"
    assert urlsplit(fill(build_impl(query={"x": "${csv:x.ids}"}), x={"ids": 7}).url).query == "x=7"


@pytest.mark.parametrize("value", [{"a": 1}, [["a"]], [{"a": 1}], ["a", []]])
def test_only_scalars_are_joined(value: Any) -> None:
    for definition in (
        build_impl(query={"x": "${csv:x}"}),
        build_impl(urlTemplate="https://api.test/${csv:x}"),
    ):
        with pytest.raises(ArgumentError, match=r"\$\{csv:x\} is (a list|an object)"):
            fill(definition, x=value)


@pytest.mark.parametrize("items", [["."], [".."], ["%2e"], [""]])
def test_a_joined_list_cannot_leave_its_segment(items: list[str]) -> None:
    definition = build_impl(urlTemplate="https://api.test/users/${csv:x}/keys")
    try:
        assert fill(definition, x=items).url == "https://api.test/users/%252e/keys"
    except ArgumentError:
        assert items != ["%2e"]


# --- objects --------------------------------------------------------------------------------------


def test_an_object_is_sent_as_one_parameter_per_key() -> None:
    value = {
        "a": "x&y",
        "n": 1,
        "no": None,
        "tags": ["1", None, "2"],
        "in": {"b c": True, "deep": {"d": 2}},
        "e": {},
    }
    wanted = [
        ("m[a]", "x&y"),
        ("m[n]", "1"),
        ("m[tags]", "1"),
        ("m[tags]", "2"),
        ("m[in][b c]", "true"),
    ]
    wanted += [("m[in][deep][d]", "2")]
    form = fill(build_impl(method="POST", body="m=${m}", headers=FORM), m=value).content or b""
    query = urlsplit(fill(build_impl(query={"m": "${m}"}), m=value).url).query
    assert (
        parse_qsl(query, strict_parsing=True)
        == parse_qsl(form.decode(), strict_parsing=True)
        == wanted
    )
    assert query.startswith("m%5Ba%5D=x%26y&")
    assert fill(build_impl(query={"m": "${m}"}), m={}).url == "https://api.test/v1"


@given(DATA, SCALARS)
def test_no_object_changes_the_other_parameters(data: Any, other: Any) -> None:
    definition = build_impl(query={"first": "1", "a b": "${data}", "last": "${other}"})
    try:
        url = fill(definition, data={"key": data}, other=other).url
    except ArgumentError:
        assert isinstance(data, dict | list)
        return
    parts = urlsplit(url)
    assert (parts.netloc, parts.path, parts.fragment) == ("api.test", "/v1", "")
    first, *own, last = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
    assert (first, last) == (("first", "1"), ("last", as_text(other)))
    assert all(
        name.startswith("a b[key]") and name.count("[") == name.count("]") for name, _ in own
    )
    leaves = list(list_leaves(data))
    assert [value for _, value in own] == [as_text(leaf) for _, leaf in leaves]
    assert [name for name, _ in own] == [
        f"a b[key]{''.join(f'[{key}]' for key in keys)}" for keys, _ in leaves
    ]


def list_leaves(
    data: Any, keys: tuple[str, ...] = (), *, is_indexed: bool = False
) -> Iterator[tuple[tuple[str, ...], Any]]:
    is_indexed = is_indexed or (
        isinstance(data, list) and any(isinstance(item, dict | list) for item in data)
    )
    if isinstance(data, dict) or (isinstance(data, list) and is_indexed):
        for key, item in (
            enumerate(item for item in data if item is not None)
            if isinstance(data, list)
            else data.items()
        ):
            yield from list_leaves(item, (*keys, str(key)), is_indexed=is_indexed)
    else:
        yield from (
            (keys, item)
            for item in (data if isinstance(data, list) else [data])
            if item is not None
        )


@pytest.mark.parametrize("key", ["", "a][b", "[", "]", "a[]", "\0", "\ud800"])
def test_a_key_cannot_leave_its_brackets(key: str) -> None:
    for value in ({key: 1}, {"a": {key: 1}}):
        with pytest.raises(ArgumentError, match=r"\$\{m\} (has|contains)"):
            fill(build_impl(query={"m": "${m}"}), m=value)


@pytest.mark.parametrize("other", ["m[role]", "M[role]", "m[x][y]", "m.role", "m[]"])
def test_an_object_cannot_set_another_parameter_of_the_template(other: str) -> None:
    in_query = build_impl(query={other: "user", "m": "${m}"})
    assert parse_qsl(urlsplit(fill(in_query, m="x").url).query) == [(other, "user"), ("m", "x")]
    for definition in (
        in_query,
        build_impl(method="POST", body=f"m=${{m}}&{other}=user", headers=FORM),
    ):
        with pytest.raises(ArgumentError, match="conflicts with the parameter"):
            fill(definition, m={"role": "admin"})


def test_an_object_cannot_share_its_name_or_be_a_credential() -> None:
    with pytest.raises(ArgumentError, match="conflicts with the parameter m"):
        fill(build_impl(urlTemplate="https://api.test?m=1&m=${m}"), m={"a": 1})
    with pytest.raises(ArgumentError, match="is an object"):
        fill(
            build_impl(auth={"type": "apiKey", "in": "query", "name": "k", "value": "${k}"}),
            k={"a": 1},
        )
    with pytest.raises(ArgumentError, match="conflicts with the parameter m"):
        fill(build_impl(urlTemplate="https://api.test?m=1&m=${m}"), m=[{"a": 1}])


def test_a_list_of_objects_has_indexes() -> None:
    items = [
        {"price": "p_1", "tax_rates": ["t_1", "t_2"]},
        None,
        {"price": "p_2", "parts": [{"n": 1}]},
    ]
    wanted = [
        ("items[0][price]", "p_1"),
        ("items[0][tax_rates][0]", "t_1"),
        ("items[0][tax_rates][1]", "t_2"),
        ("items[1][price]", "p_2"),
        ("items[1][parts][0][n]", "1"),
    ]
    for body in ("items=${items}", {"items": "${items}"}):
        form = fill(build_impl(method="POST", body=body, headers=FORM), items=items).content or b""
        assert parse_qsl(form.decode(), strict_parsing=True) == wanted


@pytest.mark.slow
def test_a_deeply_nested_object_is_an_error() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ArgumentError, match="more than 8 levels"):
        fill(build_impl(query={"m": "${m}"}), m=deep)


def test_a_long_key_is_not_repeated_without_limit() -> None:
    key = "k" * 500_000
    for value, message in (
        ({key: [1] * 500_000}, "characters"),
        ({key: {"a": {}, "b": {}}}, "very long keys"),
    ):
        with pytest.raises(ArgumentError, match=message):
            fill(build_impl(method="POST", body="m=${m}", headers=FORM), m=value)
    assert fill(
        build_impl(method="POST", body="m=${m}", headers=FORM), m={"k": "v" * 1_000_000}
    ).content


# --- headers --------------------------------------------------------------------------------------


@given(SCALARS, SCALARS)
def test_no_value_changes_the_other_headers(one: Any, two: Any) -> None:
    definition = build_impl(headers={"X-One": "<${one}>", "X-Two": "${two}", "X-Fixed": "f"})
    try:
        headers = fill(definition, one=one, two=two).headers
    except ArgumentError:
        assert any(
            char in as_text(one) + as_text(two)
            for char in map(chr, [*range(9), *range(10, 32), 127])
        )
        return
    assert headers == [
        ("X-One", f"<{as_text(one)}>"),
        ("X-Two", as_text(two).strip(" \t")),
        ("X-Fixed", "f"),
    ]


@pytest.mark.parametrize("char", [*map(chr, [*range(9), *range(10, 32), 127]), "\ud800"])
def test_control_characters_are_rejected_in_every_header(char: str) -> None:
    for definition in (
        build_impl(headers={"X": "a ${x}"}),
        build_impl(auth={"type": "bearer", "value": "${x}"}),
        build_impl(auth={"type": "apiKey", "in": "header", "name": "X-Key", "value": "${x}"}),
    ):
        with pytest.raises(ArgumentError, match=r"\$\{x\} (has|contains)"):
            fill(definition, x=f"a{char}b")


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "Connection", "Proxy-Authorization"]
)
def test_reserved_headers_cannot_be_set(name: str) -> None:
    assert "cannot be set" in get_rejection(headers={name: "x"})


@pytest.mark.parametrize(
    "headers",
    [
        {"a b": "x"},
        {"": "x"},
        {"a:": "x"},
        {"${x}": "y"},
        {"X": "a\nb"},
        {"X": "1", "x": "2"},
        {"ä": "x"},
    ],
)
def test_invalid_headers_are_rejected(headers: dict[str, str]) -> None:
    assert "headers" in get_rejection(headers=headers)


def test_a_value_cannot_add_a_cookie() -> None:
    definition = build_impl(headers={"Cookie": "session=${session}; theme=dark"})
    assert fill(definition, session="abc").headers == [("Cookie", "session=abc; theme=dark")]
    with pytest.raises(ArgumentError, match="contains ';'"):
        fill(definition, session="abc; admin=1")


def test_content_type_cannot_contain_a_placeholder() -> None:
    assert "Content-Type" in get_rejection(headers={"content-type": "${type}"})


# --- authentication -------------------------------------------------------------------------------


def test_credentials_are_sent_in_their_location_and_marked() -> None:
    bearer = fill(build_impl(auth={"type": "bearer", "value": "${secret:KEY}"}))
    assert bearer.headers == [("Authorization", "Bearer k-3y/ä")]
    assert bearer.credentials == {"authorization"}
    header = fill(
        build_impl(
            auth={"type": "apiKey", "in": "header", "name": "X-Key", "value": "${secret:KEY}"}
        )
    )
    assert header.headers == [("X-Key", "k-3y/ä")]
    assert header.credentials == {"x-key"}
    query = fill(
        build_impl(
            auth={"type": "apiKey", "in": "query", "name": "a key", "value": "${secret:KEY}"}
        )
    )
    assert urlsplit(query.url).query == "a%20key=k-3y%2F%C3%A4"
    assert query.secret_query == {"a key"}


def test_secrets_outside_of_auth_are_marked_too() -> None:
    definition = fill(
        build_impl(
            headers={"X-Token": "t ${secret:KEY}", "X-Plain": "p"},
            query={"k": "${secret:KEY}", "p": "1"},
        )
    )
    assert definition.credentials == {"x-token"}
    assert definition.secret_query == {"k"}


@pytest.mark.parametrize(
    ("value", "args", "token"),
    [
        ("bob:pw", {}, "Ym9iOnB3"),
        ("bob:a:b", {}, "Ym9iOmE6Yg=="),
        ("${secret:PAIR}", {}, "Ym9iOnA6dw=="),
        ("${user}:${secret:PAIR}", {"user": "al"}, "YWw6Ym9iOnA6dw=="),
    ],
)
def test_basic_authentication_is_encoded(value: str, args: dict[str, Any], token: str) -> None:
    definition = fill(build_impl(auth={"type": "basic", "value": value}), **args)
    assert definition.headers == [("Authorization", f"Basic {token}")]


def test_a_user_name_cannot_contain_a_colon() -> None:
    with pytest.raises(ArgumentError, match="cannot contain a colon"):
        fill(build_impl(auth={"type": "basic", "value": "${user}:${secret:KEY}"}), user="root:mine")
    with pytest.raises(ToolError, match="must be user:password"):
        fill(build_impl(auth={"type": "basic", "value": "${secret:KEY}"}))


def test_a_request_without_its_credentials_is_not_built() -> None:
    for auth in (
        {"type": "bearer", "value": "${token}"},
        {"type": "basic", "value": "bob:${token}"},
        {"type": "apiKey", "in": "header", "name": "X", "value": "${token}"},
        {"type": "apiKey", "in": "query", "name": "x", "value": "${token}"},
    ):
        with pytest.raises(ArgumentError, match="argument token is required"):
            fill(build_impl(auth=auth))


def test_a_secret_that_is_not_set_is_named() -> None:
    with pytest.raises(ToolError, match="secret NONE is not set"):
        fill(build_impl(query={"k": "${secret:NONE}"}))


def test_an_invalid_secret_is_not_shown() -> None:
    with pytest.raises(ToolError) as caught:
        fill(build_impl(auth={"type": "bearer", "value": "${secret:LINES}"}))
    assert caught.type is ToolError  # the arguments of the caller are valid
    assert "secret:LINES" in str(caught.value)
    assert "one" not in str(caught.value)


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "apiKey", "value": "x"},
        {"type": "apiKey", "in": "header", "value": "x"},
        {"type": "apiKey", "in": "cookie", "name": "x", "value": "x"},
        {"type": "apiKey", "in": "header", "name": "Host", "value": "x"},
        {"type": "bearer"},
        {"type": "bearer", "value": ""},
        {"type": "bearer", "value": "x", "name": "X"},
        {"type": "basic", "value": "no colon"},
        {"type": "digest", "value": "x"},
        {"type": "bearer", "value": "${"},
    ],
)
def test_incomplete_authentication_is_rejected(auth: dict[str, str]) -> None:
    assert "auth" in get_rejection(auth=auth)


def test_authorization_is_set_only_once() -> None:
    auth = {"type": "bearer", "value": "x"}
    assert "header authorization is set twice" in get_rejection(
        headers={"authorization": "y"}, auth=auth
    )


def test_the_error_of_a_rejected_definition_does_not_show_its_values() -> None:
    assert "hunter2" not in get_rejection(auth={"type": "basic", "value": "hunter2"})
    assert "hunter2" not in get_rejection(auth={"type": "hmac", "value": "hunter2"})


def test_a_definition_does_not_show_its_secrets() -> None:
    definition = build_impl(
        auth={"type": "bearer", "value": "hunter2"},
        headers={"X-Key": "hunter3"},
        body={"k": "hunter4"},
    )
    assert "hunter" not in repr(definition)


# --- bodies ---------------------------------------------------------------------------------------


def test_data_keeps_its_types_and_drops_missing_values() -> None:
    body = {
        "whole": "${x}",
        "text": "x is ${x}",
        "list": ["${x}", "${no}", "y"],
        "no": "${no}",
        "half": "a ${no}",
        "deep": {"no": "${no.way[0]}", "n": 1, "null": None},
        "null": "${null}",
        "literal": "$${x}",
    }
    definition = build_impl(method="POST", body=body)
    sent = fill(definition, x=[1, {"a": None}], null=None)
    assert load_body(sent) == {
        "whole": [1, {"a": None}],
        "text": 'x is [1,{"a":null}]',
        "list": [[1, {"a": None}], "y"],
        "deep": {"n": 1, "null": None},
        "null": None,
        "literal": "${x}",
    }
    assert sent.headers == [("Content-Type", "application/json")]


@given(DATA, SCALARS)
def test_no_value_changes_the_rest_of_the_json(data: Any, text: Any) -> None:
    body = {
        "whole": "${data}",
        "text": "<${text}>",
        "items": ["${data}", {"k": "${data}"}],
        "fixed": "f",
    }
    sent = load_body(fill(build_impl(method="POST", body=body), data=data, text=text))
    assert sent == {
        "whole": data,
        "text": f"<{as_text(text)}>",
        "items": [data, {"k": data}],
        "fixed": "f",
    }


@given(DATA, SCALARS)
def test_no_value_changes_a_json_string_template(data: Any, text: Any) -> None:
    body = '{"a": ${data}, "b\\"": "\\\\<${text}>\\n", "c": [${data}, 1]}'
    for headers in (
        {"Content-Type": "application/json; charset=utf-8"},
        {"content-type": "application/hal+json"},
        {},
    ):
        sent = load_body(
            fill(build_impl(method="POST", body=body, headers=headers), data=data, text=text)
        )
        assert sent == {"a": data, 'b"': f"\\<{as_text(text)}>\n", "c": [data, 1]}


@given(SCALARS, SCALARS)
def test_no_value_changes_a_form(one: Any, two: Any) -> None:
    definition = build_impl(method="POST", body="a=${one}&fix=1+1&b=x${two}", headers=FORM)
    sent = fill(definition, one=one, two=two).content
    assert sent is not None
    pairs = [("a", as_text(one)), ("fix", "1 1"), ("b", f"x{as_text(two)}")]
    assert parse_qsl(sent.decode(), keep_blank_values=True, strict_parsing=True) == pairs


def test_a_form_is_encoded_like_a_query() -> None:
    definition = build_impl(method="POST", body="tag=${tags}&q=${q}", headers=FORM)
    assert fill(definition, tags=["a", "b"]).content == b"tag=a&tag=b"
    assert "name of a parameter" in get_rejection(method="POST", body="${k}=1", headers=FORM)


def test_a_value_in_xml_is_escaped() -> None:
    definition = build_impl(
        method="POST", body='<a b="${x}">${x}</a>', headers={"Content-Type": "application/soap+xml"}
    )
    assert (
        fill(definition, x="\"'<&>").content
        == b'<a b="&quot;&apos;&lt;&amp;&gt;">&quot;&apos;&lt;&amp;&gt;</a>'
    )


@pytest.mark.parametrize(
    ("kind", "value", "content"),
    [
        ("application/xml", '<a b="1">&amp;</a>', b'<a b="1">&amp;</a>'),
        ("text/plain; charset=utf-8", "<é>", "<é>".encode()),
        ("application/x-ndjson", '{"a": 1}\n[]\n', b'{"a": 1}\n[]\n'),
        ("application/geo+json-seq", "\x1e{}\n", b"\x1e{}\n"),
        ("application/json", "<a>", b'"<a>"'),
        ("application/vnd.api+json", {"a": ["&"]}, b'{"a":["&"]}'),
        ("application/json", None, b"null"),
        ("", "x", b"x"),
        ("", 5, b"5"),
    ],
)
def test_a_body_that_is_a_single_placeholder_is_sent_as_it_is(
    kind: str, value: Any, content: bytes
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    sent = fill(build_impl(method="POST", body="${x}", headers=headers), x=value)
    assert sent.content == content
    assert sent.headers == list(headers.items())


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/xml", "application/x-ndjson"]
)
def test_a_single_placeholder_without_value_sends_no_body(kind: str) -> None:
    definition = build_impl(
        method="POST", body="${x}", headers={"content-type": kind, "X-Other": "1"}
    )
    assert fill(definition) == Request("POST", "https://api.test/v1", [("X-Other", "1")])
    assert (
        fill(
            build_impl(method="POST", body="${x.y[0]}", headers={"Content-Type": kind}), x={}
        ).content
        is None
    )
    with pytest.raises(ArgumentError, match="argument x is required"):
        fill(definition, required=("x",))


def test_a_value_inside_a_body_is_escaped() -> None:
    for body in ("${x}\n", "${x}${x}"):
        definition = build_impl(
            method="POST", body=body, headers={"Content-Type": "application/xml"}
        )
        assert b"<" not in (fill(definition, x="<a>").content or b"")
    form = build_impl(method="POST", body="${x}", headers=FORM)
    assert fill(form, x={"a&b": ["<", ">"]}).content == b"a%26b=%3C&a%26b=%3E"
    with pytest.raises(ArgumentError, match="expected the fields of the form"):
        fill(form, x="a=b")
    parts = {"Content-Type": "multipart/form-data; boundary=x"}
    assert "multipart bodies" in get_rejection(method="POST", body="${x}", headers=parts)


def test_a_text_body_is_sent_as_it_is() -> None:
    definition = build_impl(
        method="POST",
        body="Hello ${name}, $${x} {\u00e4}\n",
        headers={"Content-Type": "text/plain"},
    )
    assert fill(definition, name='"é"\n').content == 'Hello "é"\n, ${x} {ä}\n'.encode()
    assert fill(definition).content == "Hello , ${x} {ä}\n".encode()
    assert fill(build_impl(method="POST", body='{"not json')).content == b'{"not json'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"${k}": 1}', "in a key"),
        ("{${k}: 1}", "in a key"),
        ('{"a": 1${x}}', "is not valid JSON"),
        ('{"a": ${x}${y}}', "is not valid JSON"),
        ('{"a": "\\${x}"}', "is not valid JSON"),
        ('{"a": "\\u${x}0041"}', "is not valid JSON"),
        ('{"a": ${x}', "is not valid JSON"),
        ("${x} tail", "is not valid JSON"),
    ],
)
def test_a_template_that_cannot_become_json_is_rejected(body: str, message: str) -> None:
    assert message in get_rejection(
        method="POST", body=body, headers={"Content-Type": "application/json"}
    )


def test_json_lines_are_supported() -> None:
    definition = build_impl(
        method="POST",
        body='{"a": "${x}"}\n${y}\n',
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert fill(definition, x='"', y=[1]).content == b'{"a": "\\""}\n[1]\n'
    assert fill(definition).content == b'{"a": ""}\nnull\n'


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        ({"${k}": 1}, {}, "in a key"),
        ({"a": 1}, {"Content-Type": "text/plain"}, "is sent as JSON"),
        ("--x\r\n${a}", {"Content-Type": "multipart/form-data; boundary=x"}, "multipart bodies"),
        ({"a": "${"}, {}, "invalid placeholder"),
        ("half \ud800", {}, "surrogate"),
        ({"half": ["\ud800"]}, {}, "surrogate"),
    ],
)
def test_unsupported_bodies_are_rejected(body: Any, headers: dict[str, str], message: str) -> None:
    assert message in get_rejection(method="POST", body=body, headers=headers)


def test_a_deeply_nested_body_is_an_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in get_rejection(method="POST", body={"a": deep})
    with pytest.raises(ArgumentError, match="nested too deeply"):
        fill(build_impl(method="POST", body={"a": "${x}"}), x=deep)


def test_values_that_orjson_rejects_are_serialized() -> None:
    definition = build_impl(method="POST", body={"a": "${x}"})
    for value in (10**30, "\ud800", [1e400]):
        if value == [1e400]:
            assert load_body(fill(definition, x=value)) == {"a": [None]}
        else:
            assert load_body(fill(definition, x=value)) == {"a": value}


# --- other fields of the definition ---------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "CONNECT"},
        {"method": "TRACE"},
        {"method": ""},
        {"unknown": 1},
        {"timeoutMs": 0},
        {"timeoutMs": "5"},
        {"timeoutMs": True},
        {"timeout_ms": 5},
        {"retries": -1},
        {"retries": 1000},
        {"retryNonIdempotent": "yes"},
        {"successCodes": []},
        {"successCodes": [99]},
        {"successCodes": ["2xx"]},
        {"successCodes": ["299-200"]},
        {"successCodes": [True]},
        {"errorMode": "ignore"},
        {"response": {"mode": "xml"}},
        {"response": {"selector": "a["}},
        {"response": {"selector": "(" * 10_000}},
        {"response": {"selector": "a", "mode": "text"}},
        {"response": {"selectors": "a"}},
        {"maxCallsPerMinute": 0},
        {"maxRequestBytes": 1.5},
        {"maxResponseBytes": -1},
        {"query": {"a": ["b"]}},
        {"query": ["a"]},
        {"headers": {"a": None}},
    ],
)
def test_an_invalid_definition_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        build_impl(**fields)


def test_only_method_and_url_are_required() -> None:
    definition = HttpImpl.model_validate({"method": "get", "urlTemplate": "https://api.test"})
    assert fill(definition) == Request("GET", "https://api.test/", [])
    assert [status for status in range(100, 600) if definition.is_success(status)] == list(
        range(200, 300)
    )
    assert build_impl(successCodes=[200, "404-405"]).is_success(405)
    with pytest.raises(ValidationError):
        HttpImpl.model_validate({"method": "GET"})
