"""Which keys of a result name a part of it, and which are data themselves: ids, addresses, dates, paths, secrets.

When in doubt a key is data: a hint that says less does no harm, one that tells a customer's address does. Only the key
is looked at here; what its neighbours give away is the business of `ot.stats.shapes`.
"""

import re
from functools import lru_cache

LONGEST_KEY = 40
# Words with a space or a dash between them, three at most, and perhaps a unit: `@type`, `Content-Type`, `Price (EUR)`.
# Dots, colons and slashes stand in hosts, files, tags and paths more often than in names.
NAME = re.compile(r"[@#$]?[^\W\d]\w*(?:[ -]\w+){0,2}(?: ?(?:%|\([^\W\d_]{1,5}\)))?")
NUMBERED = re.compile(r"\d{4}|[ _-]\d{3}")
HEXADECIMAL = re.compile(r"(?=.*\d)[0-9a-fA-F-]{8,}")
# How services begin the secrets they hand out.
SECRET = re.compile(
    r"(?:[prs]k|gh[oprsu]|github_pat|glpat|hf|npm|pypi|shpat|whsec|xox[a-z])[_-](?:\w+[_-])*[A-Za-z\d]{12}"
    r"|(?:AKIA|ASIA)[A-Z\d]{8}|AIza|eyJ"
)
RUN = re.compile(r"[^\W_]+")
DIGITS = re.compile(r"\d+")
WORD = re.compile(r"[A-Z]?[a-z]{3,}")
SHORTEST_CODE, SHORTEST_TOKEN, LONGEST_WORD = 8, 12, 24


@lru_cache(maxsize=1024)  # the rows of a table have the same keys over and over
def is_data(key: object) -> bool:
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not NAME.fullmatch(key):
        return True
    if NUMBERED.search(key) or HEXADECIMAL.fullmatch(key) or SECRET.match(key):
        return True
    return any(map(_is_made_up, RUN.findall(key)))


def _is_made_up(run: str) -> bool:
    """Whether letters and digits stand together as no person would write them: `dQw4w9WgXcQ`."""
    if HEXADECIMAL.fullmatch(run) or (len(run) >= SHORTEST_CODE and len(DIGITS.findall(run)) > 1):
        return True
    if len(run) < SHORTEST_TOKEN:
        return False
    if run.islower() or run.isupper():
        return len(run) > LONGEST_WORD or not run.isalpha()
    return 2 * sum(map(len, WORD.findall(run))) < len(run)
