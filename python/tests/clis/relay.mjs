// Runs a CLI whose side conversations (titles, summaries) would leave the Session with several
// contexts, and writes down the one to train: the last request that offers tools, and its answer.
//
// usage: relay.mjs RECORD COMMAND..., which finds the endpoint in $RELAY_URL
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer, request } from "node:http";

const [record, command, ...args] = process.argv.slice(2);
const engine = new URL(process.env.RELAX_BASE_URL);
let main; // the request's parsed body and its whole answer

const server = createServer((incoming, outgoing) => {
  const parts = [];
  incoming.on("data", (part) => parts.push(part)).on("end", () => {
    const body = Buffer.concat(parts);
    const onward = request({
      host: engine.hostname,
      port: engine.port,
      path: engine.pathname.replace(/\/$/, "") + incoming.url,
      method: incoming.method,
      headers: { ...incoming.headers, host: engine.host },
    });
    onward.on("error", () => outgoing.destroy());
    onward.on("response", (answer) => {
      const turn = { asked: body.length ? JSON.parse(body) : {}, answer: "" };
      if (turn.asked.tools?.length) main = turn;
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.setEncoding("utf8").on("data", (part) => (turn.answer += part));
      answer.pipe(outgoing);
    });
    onward.end(body);
  });
});

// said is the assistant message of a streamed answer that calls no tool.
function said(stream) {
  const message = { role: "assistant", content: "" };
  for (const [, data] of stream.matchAll(/^data: (\{.*)$/gm)) {
    const delta = JSON.parse(data).choices[0]?.delta ?? {};
    for (const key of ["content", "reasoning_content"]) {
      if (delta[key]) message[key] = (message[key] ?? "") + delta[key];
    }
  }
  return message;
}

server.listen(0, "127.0.0.1", () => {
  const env = { ...process.env, RELAY_URL: `http://127.0.0.1:${server.address().port}` };
  const cli = spawn(command, args, { env, stdio: "inherit" });
  cli.on("exit", (code) => {
    if (main) {
      const { messages, tools } = main.asked;
      writeFileSync(record, JSON.stringify({ messages: [...messages, said(main.answer)], tools }));
    }
    process.exit(code ?? 1);
  });
});
