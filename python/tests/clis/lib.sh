# What the launch scripts share: a home and a work tree of the Session's own, the task, and the
# outcome. Sourced; $CLIS is where the CLIs are installed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$CLIS/node_modules/.bin
base=${RELAX_BASE_URL%/}

export HOME=$RELAX_SESSION_IO_DIR/home TMPDIR=$RELAX_SESSION_IO_DIR/tmp LANG=C.UTF-8 NO_COLOR=1
# What a CLI would still fetch from elsewhere fails at once, with or without a network.
export HTTPS_PROXY=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
work=$RELAX_SESSION_IO_DIR/work
said=$RELAX_SESSION_IO_DIR/said
mkdir -p "$HOME" "$TMPDIR" "$work"
cd "$work"
task=$(node -p 'JSON.parse(require("fs").readFileSync(process.env.RELAX_INPUT_JSON)).messages[0].content')

# bounded COMMAND...: runs it without input, for at most two minutes; what it says goes to $said.
bounded() {
  timeout --kill-after=2 120 "$@" </dev/null >"$said"
}

# outcome [RECORD]: writes the Session's outcome, for the test to judge; see outcome.mjs.
outcome() {
  node "$here/outcome.mjs" "$work" "$said" "$@"
}
