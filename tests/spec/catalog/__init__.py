"""Every promise of the five specifications, by id. A test says what it keeps: `@pytest.mark.spec("<id>", …)`.

Ids are `<document>.<requirement>.<scenario>`. In documents 1 to 3 the scenario is its heading in kebab case;
the rules of documents 4 and 5 have names of ours. `test_catalog.py` holds promises and tests together.
"""

from . import bundles, ot_pack, run_tool, tool_execution, toolbus
from .promise import Promise

__all__ = ["LISTED", "PROMISES", "Promise"]

LISTED: tuple[Promise, ...] = (
    *ot_pack.PROMISES,
    *run_tool.PROMISES,
    *tool_execution.PROMISES,
    *bundles.PROMISES,
    *toolbus.PROMISES,
)
PROMISES: dict[str, Promise] = {promise.id: promise for promise in LISTED}
