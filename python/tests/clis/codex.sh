#!/usr/bin/env bash
# Codex over Responses.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export CODEX_HOME=$HOME/.codex RELAX_KEY=$RELAX_SESSION_ID
mkdir -p "$CODEX_HOME"
cat >"$CODEX_HOME/config.toml" <<EOF
model = "policy"
model_provider = "relax"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.relax]
name = "relax"
base_url = "$base/v1"
env_key = "RELAX_KEY"
wire_api = "responses"
EOF
bounded "$bin/codex" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$task"
outcome
