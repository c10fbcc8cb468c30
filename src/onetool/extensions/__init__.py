"""Extension packs: a user's plain files, read without running them, and called in workers with environments of uv.

`packs.Extensions` is the way in. `source` reads a file, `environments` makes what its header asks for, `worker` is one
process, `pack` keeps the process of a pack. What happens inside of a worker is `onetool_child.worker`.
"""
