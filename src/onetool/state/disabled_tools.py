"""Names in the list that `onetool.state.kinds` stores: disabled tools and packs."""

EVERYTHING = "*"  # not a valid name of a tool or pack
OWNER_MARK = "owner:"  # before the name or ID of what an owner disabled; not a part of a valid name
