// The @anthropic-ai/sdk package as an agent. What it does is the task's metadata "mode".
import Anthropic from "@anthropic-ai/sdk";

import { add, PARAMETERS, run, TASK } from "./sdk_task.mjs";

const client = new Anthropic();
const TOOL = { name: "add", description: "Adds two integers.", input_schema: PARAMETERS };

/** A conversation until the model uses no tool. ask makes one call and returns a message. */
async function converse(ask) {
  const messages = TASK.messages;
  const answers = [];
  for (;;) {
    const message = await ask({ model: "model", max_tokens: 500, messages, tools: [TOOL] });
    answers.push(message);
    messages.push({ role: "assistant", content: message.content });
    if (message.stop_reason !== "tool_use") {
      const all = answers.map((answer) => answer.content);
      return {
        answer: message.content.at(-1).text,
        answers,
        blocks: all.map((blocks) => blocks.map((block) => block.type)),
        thoughts: all.flat().flatMap((block) => block.thinking ?? []),
      };
    }
    const uses = message.content.filter((block) => block.type === "tool_use");
    messages.push({
      role: "user",
      content: uses.map(({ id, input }) => ({
        type: "tool_result",
        tool_use_id: id,
        content: add(input),
      })),
    });
  }
}

await run({
  messages: () => converse((request) => client.messages.create(request)),
  messages_helper: () => converse((request) => client.messages.stream(request).finalMessage()),

  // The SDK's own loop over tools.
  async tool_runner() {
    const tool = { ...TOOL, run: add };
    const request = { model: "model", max_tokens: 500, messages: TASK.messages, tools: [tool] };
    const message = await client.beta.messages.toolRunner(request);
    return { answer: message.content.at(-1).text };
  },
});
