#!/usr/bin/env bash
# Claude Code over Messages.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export ANTHROPIC_BASE_URL=$RELAX_BASE_URL ANTHROPIC_AUTH_TOKEN=$RELAX_SESSION_ID ANTHROPIC_MODEL=policy
export IS_SANDBOX=1 DISABLE_TELEMETRY=1 DISABLE_AUTOUPDATER=1 DISABLE_ERROR_REPORTING=1
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
bounded "$bin/claude" -p "$task" --dangerously-skip-permissions
outcome
