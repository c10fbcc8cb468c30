"""The requirements of the five specifications, by id.

Tests refer to them: `@pytest.mark.spec("<id>", …)`.

Ids are `<document>.<requirement>.<scenario>`. In documents 1 to 3 the scenario is its heading in
kebab case; documents 4 and 5 have no headings, so the names are ours. `test_catalog.py` checks that
each requirement has a test.
"""

from . import bundles, ot_pack, run_tool, tool_execution, toolbus
from .requirement import Requirement

__all__ = ["LISTED", "REQUIREMENTS", "Requirement"]

LISTED: tuple[Requirement, ...] = (
    *ot_pack.REQUIREMENTS,
    *run_tool.REQUIREMENTS,
    *tool_execution.REQUIREMENTS,
    *bundles.REQUIREMENTS,
    *toolbus.REQUIREMENTS,
)
REQUIREMENTS: dict[str, Requirement] = {requirement.id: requirement for requirement in LISTED}
