"""Search for tools, packs, snippets and aliases by name, by a misspelled name, or by purpose.

The search works on documents; `search_documents` creates them from tools. `catalog.Search` is
imported with the first query, which hashes the documents, loads SQLite and builds the index.
"""
