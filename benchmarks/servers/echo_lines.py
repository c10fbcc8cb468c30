"""The baseline of a call to a worker: a plain Python process that answers every JSON line with a
JSON line.
"""

import json
import sys

for line in sys.stdin:
    asked = json.loads(line)
    answer = {
        "jsonrpc": "2.0",
        "id": asked["id"],
        "result": {"value": asked["params"]["args"]["text"]},
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
