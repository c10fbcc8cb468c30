"""Finding tools, packs, snippets and aliases by name, by a misspelt name, or by what they are for.

One search serves every door. It knows documents only: who makes them of tools, and who shows what is found, stands
above. To import this, or to hold a `Search`, loads nothing that costs time.
"""

from ot.search.documents import Document, Hit
from ot.search.engine import Search

__all__ = ["Document", "Hit", "Search"]
