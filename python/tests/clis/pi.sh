#!/usr/bin/env bash
# pi over Chat Completions.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export PI_OFFLINE=1 PI_SKIP_VERSION_CHECK=1 PI_TELEMETRY=0
mkdir -p "$HOME/.pi/agent"
cat >"$HOME/.pi/agent/models.json" <<EOF
{"providers": {"relax": {
  "baseUrl": "$base/v1", "apiKey": "$RELAX_SESSION_ID", "api": "openai-completions",
  "models": [{"id": "policy"}]
}}}
EOF
bounded "$bin/pi" --provider relax --model policy -p "$task"
outcome
