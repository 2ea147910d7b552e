// The openai SDK for Node as an agent. What it does is the task's metadata "mode".
import OpenAI from "openai";

import { add, PARAMETERS, run, TASK } from "./sdk_task.mjs";

const client = new OpenAI();
const FUNCTION = { name: "add", description: "Adds two integers.", parameters: PARAMETERS };
const CHAT_TOOL = { type: "function", function: FUNCTION };
const RESPONSES_TOOL = { type: "function", strict: true, ...FUNCTION };

/** A conversation until the model calls no tool. ask makes one call and returns a completion. */
async function chat(ask) {
  const messages = TASK.messages;
  const answers = [];
  for (;;) {
    const completion = await ask({ model: "model", messages, tools: [CHAT_TOOL] });
    answers.push(completion);
    const { message } = completion.choices[0];
    messages.push(message);
    if (!message.tool_calls?.length) return { answer: message.content, answers };
    for (const call of message.tool_calls) {
      const content = add(call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

/** The same over Responses. */
async function respond(ask) {
  const input = TASK.messages;
  const answers = [];
  for (;;) {
    const response = await ask({ model: "model", input, tools: [RESPONSES_TOOL] });
    answers.push(response);
    input.push(...response.output);
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) return { answer: response.output_text, answers };
    for (const call of calls) {
      const output = add(call.arguments);
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

await run({
  chat: () => chat((request) => client.chat.completions.create(request)),

  async chat_helper() {
    const done = [];
    const facts = await chat((request) => {
      const stream = client.chat.completions.stream(request);
      stream.on("tool_calls.function.arguments.done", (call) => done.push(call.arguments));
      return stream.finalChatCompletion();
    });
    return { ...facts, done };
  },

  // The SDK's own loop over tools.
  async chat_tools() {
    const tool = { ...FUNCTION, function: add, parse: JSON.parse };
    const tools = [{ type: "function", function: tool }];
    const runner = client.chat.completions.runTools({
      model: "model",
      messages: TASK.messages,
      tools,
    });
    return { answer: await runner.finalContent() };
  },

  responses: () => respond((request) => client.responses.create(request)),

  async responses_helper() {
    const events = [];
    const facts = await respond((request) => {
      const stream = client.responses.stream(request);
      stream.on("event", (event) => events.push(event.type));
      return stream.finalResponse();
    });
    return { ...facts, events };
  },
});
