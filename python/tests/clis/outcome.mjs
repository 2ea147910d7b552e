// Writes the Session's outcome: its metadata say which files the CLI left in WORK and what it
// said. With RECORD it is the outcome of the conversation that relay.mjs wrote there.
//
// usage: outcome.mjs WORK SAID [RECORD]
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [work, said, record] = process.argv.slice(2);
const files = {};
for (const entry of readdirSync(work, { withFileTypes: true })) {
  if (entry.isFile()) files[entry.name] = readFileSync(join(work, entry.name), "utf8");
}
const outcome = { reward: 1, metadata: { work, files, said: readFileSync(said, "utf8") } };
if (record) Object.assign(outcome, { name: "main" }, JSON.parse(readFileSync(record)));
writeFileSync(process.env.RELAX_OUTPUT_JSON, JSON.stringify(outcome));
