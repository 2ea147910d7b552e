// What the agents on Node's SDKs share: the task, the tool, and the outcome.
import { readFileSync, writeFileSync } from "node:fs";

export const TASK = JSON.parse(readFileSync(process.env.RELAX_INPUT_JSON, "utf8"));

export const PARAMETERS = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};

/** What the tool answers to arguments, a JSON text or an object. */
export function add(given) {
  const { a, b } = typeof given === "string" ? JSON.parse(given) : given;
  return String(a + b);
}

/** Runs the conversation the task names, and writes its outcome. */
export async function run(modes) {
  const facts = await modes[TASK.metadata.mode]();
  const output = { reward: 1, metadata: facts };
  writeFileSync(process.env.RELAX_OUTPUT_JSON, JSON.stringify(output));
}
