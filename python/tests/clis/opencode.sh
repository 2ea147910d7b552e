#!/usr/bin/env bash
# opencode over Chat Completions. It asks for a title of the conversation first, in another one, so
# the main conversation is exported by name.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1
cat >opencode.json <<EOF
{
  "model": "relax/policy", "autoupdate": false, "share": "disabled",
  "provider": {"relax": {
    "npm": "@ai-sdk/openai-compatible", "name": "relax",
    "options": {"baseURL": "{env:RELAY_URL}/v1", "apiKey": "$RELAX_SESSION_ID"},
    "models": {"policy": {"name": "policy"}}
  }}
}
EOF
record=$RELAX_SESSION_IO_DIR/record.json
bounded node "$here/relay.mjs" "$record" "$bin/opencode" run "$task"
outcome "$record"
