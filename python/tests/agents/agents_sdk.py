"""An agent of the openai-agents SDK with a function tool; the task's metadata names the API."""

import asyncio

from agents import Agent, Runner, function_tool, set_default_openai_api
from sdk_task import METADATA, TASK, finish


@function_tool
def add(a: int, b: int) -> int:
    """Adds two integers."""
    return a + b


agent = Agent(name="Calculator", instructions="You add.", model="model", tools=[add])


async def chat():
    set_default_openai_api("chat_completions")
    result = await Runner.run(agent, TASK["messages"])
    finish(result.final_output, items=[item.type for item in result.new_items])


async def responses_stream():
    set_default_openai_api("responses")
    result = Runner.run_streamed(agent, TASK["messages"])
    async for _ in result.stream_events():
        pass
    finish(result.final_output, items=[item.type for item in result.new_items])


asyncio.run(globals()[METADATA["mode"]]())
