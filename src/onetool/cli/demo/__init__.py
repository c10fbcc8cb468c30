"""Run a short demonstration with real runs and tools, and print the responses that a model would see.

The demonstration uses a temporary directory, which is removed at the end.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from onetool.app import OneTool
from onetool.cli.demo import environment, output
from onetool.cli.demo.steps import HANDLE, STEPS, Step, StepResult
from onetool.cli.signals import SignalHandler
from onetool.cli.terminal import Progress
from onetool.core.render import render
from onetool.runner.answer import Answer
from onetool.runner.run_output import RunOutput

if TYPE_CHECKING:
    from onetool.stats.summary import StatsSummary

STOPPED = 128  # plus the signal number, as in shells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the complete results as JSON")


def main(options: argparse.Namespace) -> int:
    with SignalHandler() as signals:
        try:
            with environment.create_environment() as built:
                return asyncio.run(_play(built, signals, as_json=options.json))
        except asyncio.CancelledError:
            return STOPPED + signals.signal


async def _play(built: environment.DemoEnvironment, signals: SignalHandler, *, as_json: bool) -> int:
    async with built.app() as app:
        with signals.cancellable():
            return await _demonstrate(app, built, is_shown=not as_json)


async def _demonstrate(app: OneTool, built: environment.DemoEnvironment, *, is_shown: bool) -> int:
    if is_shown:
        output.print_title()
    with Progress("starting an MCP server and a web server"):
        await asyncio.to_thread(built.import_api, app)
        await app.discover()
    steps: list[StepResult] = []
    for place, step in enumerate(STEPS, 1):
        code = step.code.replace("{handle}", _handle(steps))
        if is_shown:
            output.print_code(place, step, code)
        steps.append(await _run_step(app, step, code))
        if is_shown:
            output.print_response(steps[-1])
    summary, isolation = await _summarize_savings(app), (await app.health())["isolation"]
    if is_shown:
        output.print_savings(summary, ", ".join(f"{key} {value}" for key, value in isolation.items()))
    else:
        print(render(_to_json(steps, summary, isolation), "json"))
    return _status(steps)


async def _run_step(app: OneTool, step: Step, code: str) -> StepResult:
    run_output = RunOutput()
    started = time.perf_counter()
    with Progress(step.meanwhile) as progress:
        run_output.channel.listener = progress.on_event
        answer = await _answer(app, code, run_output)
    ms = round((time.perf_counter() - started) * 1000)
    calls = [name for name, _ in run_output.calls]
    return StepResult(step.title, code, answer.text, answer.is_error, ms, calls, step.problem(answer))


async def _answer(app: OneTool, code: str, run_output: RunOutput) -> Answer:
    """Run the code with a timeout, so that an unresponsive network does not block the demonstration."""
    try:
        async with asyncio.timeout(environment.TIMEOUT_SECONDS):
            return await app.run(code, output=run_output)
    except TimeoutError:
        return Answer((f"no response within {environment.TIMEOUT_SECONDS} s",), is_error=True)


def _handle(steps: list[StepResult]) -> str:
    """Return the handle of the last large result."""
    found = [match[1] for seen in steps if (match := HANDLE.search(seen.answer))]
    return found[-1] if found else ""


async def _summarize_savings(app: OneTool) -> "StatsSummary":
    """Return the statistics of these runs, within a session so that tool definitions are counted too."""
    from onetool.stats.summary import summarize
    from onetool.transports.mcp.mcp_server import OneToolServer

    with closing(OneToolServer(app)) as server:
        await app.begin_session(server.own_tokens)
    await asyncio.to_thread(app.stores.recorder.flush)
    trip = app.settings.stats.round_trip_ms
    return await asyncio.to_thread(partial(summarize, app.stores.statistics, round_trip_ms=trip))


def _to_json(steps: list[StepResult], summary: "StatsSummary", isolation: Mapping[str, Any]) -> dict[str, Any]:
    saved = {"context_saved": summary["context_saved"], "time_saved_ms": summary["time_saved_ms"], **summary["savings"]}
    counted = {"calls": summary["total_calls"], "runs": summary["runs"]["total"]}
    return {"steps": list(map(asdict, steps)), "saved": {**counted, **saved}, "isolation": isolation}


def _status(steps: list[StepResult]) -> int:
    """Return the exit status. A missing feature of the machine is reported but is not a failure."""
    output.report_skipped(steps)
    return int(any(seen.problem and not step.needs for step, seen in zip(STEPS, steps, strict=True)))
