"""The words in which the sandbox says no. They are the same whether or not there is anything at the path."""

import json

from ot.context import ToolContext
from ot.errors import SandboxDenied
from ot.files.asked import Asked
from ot.files.rules import Refusal, allowed_paths

_REASONS = {
    Refusal.DENIED: "A denied pattern covers it.",
    Refusal.HIDDEN: "OneTool keeps it for itself.",
    Refusal.PROTECTED: "Tools never write what OneTool loads or executes; a person may.",
}


def denied(asked: Asked, refusal: Refusal, context: ToolContext, advice: str = "") -> SandboxDenied:
    reason = _REASONS.get(refusal) or _how_to_allow(asked, refusal, context)
    return SandboxDenied(f"File access denied by sandbox: {asked.given}. {reason}{advice}", path=asked.given)


def _how_to_allow(asked: Asked, refusal: Refusal, context: ToolContext) -> str:
    kind = "It may be read, not written. To allow that" if refusal is Refusal.READ_ONLY else "To allow it"
    paths = [*allowed_paths(context.sandbox or {}), asked.plain]
    listed = ", ".join(json.dumps(path, ensure_ascii=False) for path in paths)
    return (
        f"{kind}, add this to onetool.yaml: agents: {{{context.agent_id}: {{sandbox: {{allowed_paths: [{listed}]}}}}}}"
    )
