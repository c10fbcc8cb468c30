"""Public addresses and allowed hosts, in every notation."""

import ipaddress
import socket

import pytest
from hypothesis import given, strategies as st

from onetool.errors import ConfigError, NetworkError
from onetool.net import HostRules
from onetool.net.hosts import is_public, parse_target

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
ANY = HostRules(("*",), allow_private_addresses=True)
PUBLIC_ONLY = HostRules(("*",))
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.215.14",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001::1",
]
NOT_PUBLIC = [
    *(
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
    ),
    *(
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
    ),
    *(
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
    ),
    *("240.0.0.1", "255.255.255.255"),
    *(
        "::",
        "::1",
        "::7f00:1",
        "100::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ),
    *("2001:db8::1", "2001:2::1", "2001:10::1", "3fff::1", "5f00::1", "64:ff9b:1::1", "4000::1"),
    *("", "example.com", "1.2.3", "127.1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_an_internet_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_every_other_address_is_not_public(address: str) -> None:
    assert not is_public(address)


def build_embedding_addresses(inner: ipaddress.IPv4Address) -> list[str]:
    """Return IPv6 addresses that embed this IPv4 address."""
    number = int(inner)
    teredo = (
        (0x20010000 << 96) | (int(ipaddress.IPv4Address("8.8.8.8")) << 64) | (number ^ 0xFFFFFFFF)
    )
    forms = [
        (0xFFFF << 32) | number,
        (0x2002 << 112) | (number << 80),
        (0x0064FF9B << 96) | number,
        teredo,
        (0x20010000 << 96) | (number << 64) | (int(ipaddress.IPv4Address("8.8.8.8")) ^ 0xFFFFFFFF),
    ]
    return [str(ipaddress.IPv6Address(form)) for form in forms]


@given(st.ip_addresses(v=4))
def test_an_embedded_address_decides_whether_an_address_is_public(
    inner: ipaddress.IPv4Address,
) -> None:
    assert {is_public(form) for form in build_embedding_addresses(inner)} == {is_public(str(inner))}


UNWRAPPED = st.ip_addresses().filter(
    lambda address: address.version == 4 or not _is_embedding(address)
)


def _is_embedding(address: ipaddress.IPv6Address) -> bool:
    return any((address.ipv4_mapped, address.sixtofour, address.teredo, address in NAT64))


@pytest.mark.slow
@given(UNWRAPPED)
def test_an_address_that_python_considers_special_is_not_public(address: Address) -> None:
    special = (
        address.is_private or address.is_link_local or address.is_multicast or address.is_reserved
    )
    assert not (special and is_public(str(address)))


# --- notations ------------------------------------------------------------------------------------


def list_part_notations(number: int) -> st.SearchStrategy[str]:
    """Return the notations of a part of an address that `getaddrinfo` accepts: decimal, octal,
    hexadecimal.
    """
    return st.sampled_from(
        [
            str(number),
            f"0{number:o}",
            f"000{number:o}",
            f"0x{number:x}",
            f"0X{number:X}",
            f"0x00{number:x}",
        ]
    )


@st.composite
def draw_loopback_notation(draw: st.DrawFn) -> str:
    """Draw a notation of 127.x.y.z with one to four parts; the last part contains the remaining
    bytes.
    """
    tail = draw(st.integers(0, 0xFFFFFF))
    count = draw(st.integers(1, 4))
    number = (127 << 24) | tail
    parts = [(number >> (24 - 8 * position)) & 0xFF for position in range(count - 1)]
    parts.append(number & ((1 << (32 - 8 * (count - 1))) - 1))
    return ".".join(draw(list_part_notations(part)) for part in parts) + draw(
        st.sampled_from(["", "."])
    )


@pytest.mark.slow
@given(draw_loopback_notation(), st.booleans())
def test_no_notation_of_loopback_is_accepted(host: str, wide: bool) -> None:
    spelled = (
        host.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)}) if wide else host
    )
    with pytest.raises(NetworkError) as rejected:
        PUBLIC_ONLY.check(f"http://{spelled}/")
    assert rejected.value.reason in {"host_not_allowed", "address_not_allowed", "protocol"}


def test_the_system_reads_these_notations_as_loopback() -> None:
    for host in ("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "127.0.0.01"):
        found = socket.getaddrinfo(host, 80, socket.AF_INET, socket.SOCK_STREAM)
        assert {entry[4][0] for entry in found} == {"127.0.0.1"}


REFUSED = [
    *(
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://0/",
        "http://0x/",
    ),
    *(
        "http://127.0.0.01/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        "http://example.1/",
        "http://example.0x1./",
    ),
    *(
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://①②⑦.0.0.1/",
        "http://exa mple.com/",
        "http://exa%6dple.com/",
    ),
    *("http://user:pw@example.com/", "http://user@example.com/", "http://example.com\\@127.0.0.1/"),
    *(
        "http://example.com\\.evil.com/",
        "http:\\\\example.com/",
        "http:/example.com",
        "http://example.com\0/",
    ),
    *(
        "http://exa\tmple.com/",
        "http://example.com/\n",
        "http://exam\rple.com",
        "http://example.com%00/",
    ),
    *(
        "http:///path",
        "http://",
        "http://.",
        "http://./",
        "http://..",
        "http://a..b/",
        "http://.example.com/",
    ),
    *(
        "http://:80/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:-1/",
    ),
    *(
        "http://example.com:x/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[::1/",
        "http://::1/",
    ),
    *(
        "http://[::1]x/",
        "http://[v1.a]/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
    ),
    *(
        "//example.com/",
        "example.com",
        "",
        "javascript:x",
        "http://exam\u00adple\u200b.com/",
        "http://*/",
    ),
    *(
        "http://\ud800.com/",
        "http://example.com/\ud800",
        f"http://{'a' * 64}.com/",
        f"http://{'a.' * 200}com/",
    ),
    *(
        "http://-a.com/",
        "http://a-.com/",
        "http://a,b.com/",
        "http://a;b/",
        f"http://a/{'x' * 70000}",
    ),
]


@pytest.mark.parametrize("url", REFUSED, ids=range(len(REFUSED)))
def test_an_ambiguous_url_is_rejected(url: str) -> None:
    with pytest.raises(NetworkError):
        ANY.check(url)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://EXAMPLE.com", "example.com", 80),
        ("https://example.com./x", "example.com", 443),
        ("https://example.com:8443", "example.com", 8443),
        ("http://bücher.example/", "xn--bcher-kva.example", 80),
        ("http://BÜCHER.example/", "xn--bcher-kva.example", 80),
        ("http://xn--bcher-kva.example/", "xn--bcher-kva.example", 80),
        ("http://例え。jp/", "xn--r8jz45g.jp", 80),
        ("http://127.0.0.1./", "127.0.0.1", 80),
        ("http://[0:0::1]:81/", "::1", 81),
        ("http://[::FFFF:127.0.0.1]/", str(ipaddress.ip_address("::ffff:127.0.0.1")), 80),
        ("http://my_service/", "my_service", 80),
    ],
)
def test_a_host_is_normalized(url: str, host: str, port: int) -> None:
    target = parse_target(url)
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize(
    "host",
    ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "10.0.0.1."],
)
def test_an_address_in_a_url_is_checked_before_sending(host: str) -> None:
    with pytest.raises(NetworkError, match="allowPrivateAddresses: true") as rejected:
        PUBLIC_ONLY.check(f"http://{host}/")
    assert rejected.value.reason == "address_not_allowed"


def test_an_allowed_host_may_still_have_a_rejected_address() -> None:
    with pytest.raises(NetworkError, match="not public"):
        HostRules(("127.0.0.1",)).check("http://127.0.0.1/")
    HostRules(("127.0.0.1",), allow_private_addresses=True).check("http://127.0.0.1/")
    HostRules(("1.1.1.1",)).check("http://1.1.1.1/")


def test_a_rejection_never_shows_a_possible_password() -> None:
    for url in (
        "http://user:hunter2@example.com/",
        "http://user:hunter2/",
        "http://h:hunter2@/",
        "http://a/?k=hunter2\n",
    ):
        with pytest.raises(NetworkError) as rejected:
            ANY.check(url)
        assert "hunter2" not in rejected.value.message


# --- the allow-list -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "url", "admits"),
    [
        ("example.com", "http://example.com/", True),
        ("example.com", "https://EXAMPLE.com.:8443/", True),
        ("Example.COM.", "http://example.com/", True),
        ("example.com", "http://www.example.com/", False),
        ("example.com", "http://example.com.evil.com/", False),
        ("example.com", "http://notexample.com/", False),
        ("*.example.com", "http://a.example.com/", True),
        ("*.example.com", "http://a.b.example.com:81/", True),
        ("*.example.com", "http://example.com/", False),
        ("*.example.com", "http://evilexample.com/", False),
        ("*", "https://anything.example/", True),
        ("*", "https://1.1.1.1/", True),
        ("*:8080", "https://anything.example:8080/", True),
        ("*:8080", "https://anything.example/", False),
        ("example.com:443", "https://example.com/", True),
        ("example.com:80", "https://example.com/", False),
        ("example.com:80", "http://example.com/", True),
        ("*.example.com:8080", "http://a.example.com:8080/", True),
        ("*.example.com:8080", "http://a.example.com/", False),
        ("bücher.example", "http://xn--bcher-kva.example/", True),
        ("*.xn--bcher-kva.example", "http://a.bücher.example/", True),
        ("1.1.1.1", "http://1.1.1.1/", True),
        ("2606:4700::1111", "http://[2606:4700:0::1111]:81/", True),
        ("[2606:4700::1111]:80", "http://[2606:4700::1111]/", True),
        ("[2606:4700::1111]:81", "http://[2606:4700::1111]/", False),
    ],
)
def test_a_pattern_matches_its_hosts(pattern: str, url: str, admits: bool) -> None:
    rules = HostRules((pattern,))
    if admits:
        rules.check(url)
    else:
        with pytest.raises(NetworkError) as rejected:
            rules.check(url)
        assert rejected.value.reason == "host_not_allowed"


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*.",
        "*.*",
        "a.*.com",
        "**",
        "*a.com",
        "http://a.com",
        "a.com/x",
        "u@a.com",
        "*.1.2.3.4",
        "127.1",
        "a.com:0",
        "a b",
    ],
)
def test_an_invalid_pattern_is_a_config_error(pattern: str) -> None:
    with pytest.raises(ConfigError, match="allowedHosts"):
        HostRules((pattern,)).check("http://a.com/")


def test_an_empty_list_allows_nothing_and_the_error_names_the_setting() -> None:
    with pytest.raises(NetworkError) as rejected:
        HostRules().check("https://api.github.com/user")
    assert (
        rejected.value.message == "host api.github.com is not allowed. "
        "To allow it, add this to onetool.yaml: http: {allowedHosts: [api.github.com]}"
    )


def test_the_suggested_setting_is_yaml_and_keeps_allowed_hosts() -> None:
    import yaml

    rules = HostRules(("a.com", "*.b.com", "[2606::1]:80", "c.com:8080"))
    with pytest.raises(NetworkError) as rejected:
        rules.check("https://[2606::2]/")
    line = rejected.value.message.partition("onetool.yaml: ")[2]
    assert yaml.safe_load(line) == {"http": {"allowedHosts": [*rules.allowed_hosts, "[2606::2]"]}}
    HostRules((*rules.allowed_hosts, "[2606::2]")).check("https://[2606::2]/")


def test_a_port_that_is_not_allowed_is_named() -> None:
    with pytest.raises(NetworkError, match=r"host a\.com is not allowed on port 80\."):
        HostRules(("a.com:443",)).check("http://a.com/")


LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)


@pytest.mark.slow
@given(NAMES, NAMES)
def test_a_host_matches_itself_and_a_star_its_subdomains(host: str, other: str) -> None:
    def admits(pattern: str, name: str) -> bool:
        try:
            HostRules((pattern,)).check(f"https://{name}/")
        except NetworkError:
            return False
        return True

    assert admits(host, host)
    assert admits(host, other) == (host == other)
    assert not admits(f"*.{host}", host)
    assert admits(f"*.{host}", f"{other}.{host}")
    assert admits(f"*.{host}", other) == other.endswith(f".{host}")


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_host_is_either_allowed_or_rejected(host: str, rest: str) -> None:
    rules = HostRules(("example.com", "*.example.com"))
    for url in (
        host,
        f"http://{host}",
        f"http://{host}.example.com{rest}",
        f"http://example.com{host}/{rest}",
    ):
        try:
            rules.check(url)
        except NetworkError:
            continue
        name = parse_target(url).host
        assert name == "example.com" or name.endswith(".example.com")
