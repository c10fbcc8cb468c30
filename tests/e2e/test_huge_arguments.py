"""Test huge names, queries and arguments: the run gets an error, and other runs are not delayed."""

from collections.abc import Iterator

import pytest
from tests.support import Connection, configure, connect, run_attack

# The code of a run, and part of its error message.
HUGE = {
    "tool": ("getattr(fs, 'z' * 7_900_000)()", "the tool name is too long"),
    "tool called by name": ("ot.call('z.' * 3_000_000)", "the tool name is too long"),
    "version": ("ot.call('ot.version', __version__='z' * 7_900_000)", "the tool name is too long"),
    "pack": ("ot.pack('z' * 7_900_000)", "the pack name is too long"),
    "snippet": ("ot.snippet('z' * 7_900_000)", "the snippet name is too long"),
    "query of help": ("ot.help('z ' * 3_900_000)", "query has 7800000 characters, the limit is 10000"),
    "query of search": ("ot.search('z ' * 3_900_000)", "query has 7800000 characters, the limit is 10000"),
    "pattern": ("ot.packs(pattern='z.' * 3_900_000)", "pattern has 7800000 characters, the limit is 10000"),
    "period": ("ot.stats(period='x' * 5_000_000)", "period has 5000000 characters, the limit is 10000"),
    "handle": ("ot.load(handle='x' * 7_000_000)", "handle has 7000000 characters, the limit is 10000"),
    "wrong type": ("json.parse(json=['x' * 7_000_000])", 'is not of type "string"'),
    "choice": ("ot.tools(info='x' * 7_000_000)", "info has 7000000 characters, the limit is 10000"),
    "JSON of many values": ("json.parse(json='[' + '[],' * 2_000_000 + '[]]')", "the text has more than"),
    "JSON of many numbers": ("json.parse(json='[' + '1,' * 3_900_000 + '1]')", "the text has more than"),
    "YAML of many values": ("yaml.parse(yaml='[' + '[],' * 1_000_000 + '[]]')", "too many values: the limit is 100"),
    "YAML of one line": ("yaml.parse(yaml='x: y: ' * 600_000)", "yaml:1"),
    "path": ("fs.read(path='../' * 2_000_000)", "Error"),
    "headers": (
        "http.get(url='http://x', headers={f'k{n}': 'v' for n in range(50_000)})", "Tool requires network permission"),
    "nested body": (
        "http.post(url='http://x', body=[[str(n)] * 300 for n in range(300)])", "Tool requires network permission"),
    "arguments": (
        "ot.call('fs.read', **{f'k{n}': 0 for n in range(58_000)})", "takes at most 1000 arguments, got 58000"),
    "arguments by position": ("ot.call('fs.read', *range(58_000))", "takes at most 1000 arguments, got 58000"),
    "name of an argument": ("ot.call('fs.read', **{'z' * 900_000: 0})", "... (900000 characters)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    configure(home, "agents: {default: {permissions: [read]}}")
    with connect(home) as client:
        client.run(
            "ot.search('disk')\nyaml.parse('a: 1')"
        )  # modules loaded at the first use delay other runs once
        yield client


@pytest.mark.parametrize("case", HUGE)
def test_a_huge_argument_is_an_error_and_does_not_delay_others(
    client: Connection, case: str
) -> None:
    code, reason = HUGE[case]
    text = run_attack(client, code)
    assert reason in text, text[:1000]
    assert len(text) < 5000
