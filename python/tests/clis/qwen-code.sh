#!/usr/bin/env bash
# Qwen Code over Chat Completions. Its memory sub-agents are off: they would be conversations
# beside the main one.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

unset HTTPS_PROXY https_proxy # it would use them for the engine, too, whatever NO_PROXY says
export OPENAI_BASE_URL=$base/v1 OPENAI_API_KEY=$RELAX_SESSION_ID OPENAI_MODEL=policy
export QWEN_CODE_NO_RELAUNCH=1
mkdir -p "$HOME/.qwen"
cat >"$HOME/.qwen/settings.json" <<EOF
{
  "general": {"enableAutoUpdate": false},
  "memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false}
}
EOF
bounded "$bin/qwen" --auth-type openai -y -p "$task"
outcome
