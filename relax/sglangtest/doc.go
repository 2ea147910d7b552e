// Package sglangtest is a stand-in for an SGLang server, as net/http/httptest is one for a
// web server: it listens on a loopback port, speaks SGLang's HTTP interface, and answers
// from a small document (a [Policy]) instead of a neural network. Tests, benchmarks and the
// demo use it; a Go program may too.
//
// What may enter: a tokenizer, a policy, HTTP requests in SGLang's shapes. What it never
// does: know the rollout engine, open files, or reach out to a network of its own accord
// (a [Router] calls the workers it was given).
//
// Its model is exact. A policy gives candidate replies with logits; the candidates' token
// sequences form a trie whose nodes carry probability mass, and the log probability of a
// token is log(mass below / mass here). So the probabilities of all replies add up to one,
// a test can compute every number it should see ([Model.Distribution],
// [Model.TokenLogprobs]), and a trainer that changes the logits ([Server.SetWeights]) sees
// its policy change. Sampling is a pure function of Config.Seed, the request's sampling_seed
// (or else its rid) and the position, so a run can be repeated.
//
// # What is like SGLang
//
// /generate with one prompt: unary and streamed (cumulative chunks), logprob triples, stop
// tokens and strings, length and abort finishes, context-length refusals, prefix-cache
// counts; abort by rid prefix; the three pause modes; weight versions; loads; sessions;
// flush. The finer points were taken from the SGLang sources of August 2026: an abort of a
// running request takes one more token; an abort of a waiting one answers with fewer fields;
// an abort of a retracted one loses the tokens after the last multiple of 50 when not
// streaming; a new request blocks, and cannot be aborted, while the server is paused; an
// unknown sampling parameter is a plain 500.
//
// # Hazards
//
// A [Fault] spoils single requests, also their aborts. [Server.Freeze] makes a server hang as a
// stopped process does, [Server.Close] makes it die (another one may be started at its address),
// [Server.AbortAll] and [Server.Pause] are a weight update that nobody announced, and a
// [Router] can be told to distrust its workers, to call them prefill and decode, and to be old.
//
// # What is not
//
// Batches, n > 1, grammars, logit_bias, stop_regex, prompt logprobs, top logprobs, hidden
// states, LoRA and session_params are refused with a 400 that says so. The penalties are
// checked and have no effect. skip_special_tokens knows only the control tokens of the chat
// format and the EOS ids. A client that has gone is noticed after Config.DisconnectCheck
// instead of 4 seconds.
//
// The routes under /simulator are this package's own: /simulator/policy and
// /simulator/weights read (GET) and replace (PUT, POST) what the model says,
// /simulator/distribution answers what it would say, /simulator/faults replaces the fault
// rules. No SGLang server has them.
package sglangtest
