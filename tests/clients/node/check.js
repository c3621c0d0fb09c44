// The frame of the Node suite: groups of checks, their report and their exit status.
'use strict';

const assert = require('node:assert');
const path = require('node:path');

const env = process.env;
const settings = {
  host: env.MILLRACE_TEST_HOST || '127.0.0.1',
  port: Number(env.MILLRACE_TEST_PORT),
  user: env.MILLRACE_TEST_USER,
  password: env.MILLRACE_TEST_PASSWORD || '',
  db: env.MILLRACE_TEST_DB,
  mysql: env.MILLRACE_TEST_FAMILY === 'mysql',
  tls: env.MILLRACE_TEST_TLS === '1',
  socket: env.MILLRACE_TEST_SOCKET || undefined,
};

class Skip extends Error {}
const groups = [];
const group = (name, run) => groups.push({ name, run });

function shorten(text) {
  const line = String(text).replace(/\s+/g, ' ');
  return line.length > 400 ? `${line.slice(0, 380)}…` : line;
}

// The innermost line of our own code on an error's stack.
function where(error) {
  const line = String(error.stack).split('\n').find((l) => l.includes('main.js:'));
  return line ? path.basename(line.replace(/^.*?([^/]+main\.js:\d+).*$/, '$1')).replace(/^\(/, '') : '?';
}

async function runAll() {
  let passed = 0;
  let failed = 0;
  let skipped = 0;
  for (const { name, run } of groups) {
    if (env.MILLRACE_TEST_ONLY && !name.includes(env.MILLRACE_TEST_ONLY)) continue;
    const begun = Date.now();
    try {
      await run();
      passed += 1;
      console.log(`ok   ${name} (${((Date.now() - begun) / 1000).toFixed(2)} s)`);
    } catch (error) {
      if (error instanceof Skip) {
        skipped += 1;
        console.log(`skip ${name}: ${error.message}`);
      } else {
        failed += 1;
        console.log(`FAIL ${name}: ${where(error)}: ${shorten(error.message)}`);
      }
    }
  }
  console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ''}`);
  return failed || !passed ? 1 : 0;
}

const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

// For reads on another session than the one that wrote: it may lag, but not for ever.
async function eventually(what, condition) {
  for (const end = Date.now() + 10000; Date.now() < end; await sleep(50)) {
    if (await condition()) return;
  }
  assert.fail(`${what}: not within 10 s`);
}

module.exports = { assert, settings, group, runAll, Skip, sleep, eventually };
