// Tells clients who they are, and asks such servers, with node:
//
//   node net.js serve PORT      HTTP, on all addresses
//   node net.js cluster PORT    likewise, accepted by two worker processes
//   node net.js fetch URL...    by an agent that keeps connections
"use strict";
const cluster = require("node:cluster");
const http = require("node:http");

const requests = 5; // for each URL

function serve(port) {
  http.createServer((req, res) => res.end(req.socket.remoteAddress + "\n")).listen(port);
}

function get(url, agent) {
  return new Promise((resolve, reject) => {
    const req = http.get(url, { agent, timeout: 60000 }, (res) => {
      let body = "";
      res.on("data", (chunk) => (body += chunk));
      res.on("end", () => resolve({ body, reused: req.reusedSocket }));
    });
    req.on("timeout", () => req.destroy(new Error("timeout")));
    req.on("error", reject);
  });
}

async function fetchAll(urls) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  for (const url of urls) {
    let reused = 0;
    let first;
    for (let i = 0; i < requests; i++) {
      const answer = await get(url, agent);
      first ??= answer.body;
      if (answer.body !== first) throw new Error(`${url}: ${answer.body}, at first ${first}`);
      if (answer.reused) reused++;
    }
    if (reused < requests - 1) throw new Error(`${url}: ${reused} of ${requests} requests on a kept connection`);
    process.stdout.write(first);
  }
  agent.destroy();
}

const [what, ...args] = process.argv.slice(2);
if (what === "fetch") {
  fetchAll(args).catch((err) => {
    console.error(err);
    process.exitCode = 1;
  });
} else if (what === "cluster" && cluster.isPrimary) {
  cluster.fork();
  cluster.fork();
  process.on("SIGTERM", () => process.exit(0));
} else {
  serve(Number(args[0]));
}
