#!/bin/sh
# Builds and runs the C tests of capi.
#
#   capi/ctest/run.sh librelax_rollout.so [relax-agent-init]
#
# Without the supervisor binary the consumer test, which starts agents, does not run, and says so.
set -eu

if [ $# -lt 1 ]; then
  echo "usage: $0 librelax_rollout.so [relax-agent-init]" >&2
  exit 2
fi
so=$(realpath "$1")
supervisor=${2:+$(realpath "$2")}
here=$(cd "$(dirname "$0")" && pwd)
include=$here/../../include
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

CC=${CC:-cc}
CXX=${CXX:-c++}
warn="-Wall -Wextra -Werror -I$include"

echo "== header as C99 and C++17"
$CC -std=c99 -pedantic $warn -c "$here/header_c99.c" -o "$work/c99.o"
$CXX -std=c++17 -pedantic $warn -c "$here/header_cpp17.cpp" -o "$work/cpp17.o"

echo "== exported symbols"
nm -D --defined-only "$so" | awk '{print $NF}' | sed 's/@.*//' | sort >"$work/exported"
grep -oE '\brelax_[a-z_]+\(' "$include/relax_rollout.h" | tr -d '(' | sort -u >"$work/declared"
diff "$work/declared" "$work/exported" || {
  echo "the library must export exactly what the header declares" >&2
  exit 1
}

pure="arena.c batch.c dlpack.c error.c bytes.c fork.c info.c"
sources=$(for f in $pure; do printf '%s ' "$here/../$f"; done)
# sanitized NAME FLAGS: arena_test under a sanitizer, where the compiler has it.
sanitized() {
  echo "== arena_test, $1"
  if ! echo 'int main(void){return 0;}' | $CC $2 -x c - -o "$work/has" 2>/dev/null; then
    echo "   SKIPPED: $CC has no $2"
    return
  fi
  $CC -std=gnu11 -D_GNU_SOURCE -g -O1 $warn $2 "$here/arena_test.c" $sources -lpthread -o "$work/arena_$1"
  # -R: the thread sanitizer does not start at some randomised addresses.
  TSAN_OPTIONS=die_after_fork=0 timeout 120 setarch -R "$work/arena_$1"
}
sanitized plain -O2
sanitized address "-fsanitize=address,undefined -fno-sanitize-recover=all"
sanitized thread -fsanitize=thread

echo "== probe"
$CC -std=gnu11 -D_GNU_SOURCE -g -O1 $warn "$here/probe.c" -ldl -o "$work/probe"
timeout 60 "$work/probe" "$so"
for _ in 1 2 3 4 5 6 7 8 9 10; do
  timeout 20 "$work/probe" "$so" early-handler
done

echo "== consumer"
$CC -std=gnu11 -D_GNU_SOURCE -g -O1 $warn "$here/consumer.c" "$so" "-Wl,-rpath,$(dirname "$so")" -o "$work/consumer"
if [ -z "$supervisor" ]; then
  echo "   SKIPPED: no relax-agent-init given"
  exit 0
fi
for mode in story eval reopen unpolled; do
  timeout 120 "$work/consumer" $mode "$supervisor"
done
for mode in panic nil-panic; do
  RELAX_TEST_PANIC=1 timeout 120 "$work/consumer" $mode "$supervisor" 2>"$work/stderr" || {
    cat "$work/stderr" >&2
    exit 1
  }
  grep -q "relax: panic in relax_submit" "$work/stderr" || {
    echo "the whole stack must be on fd 2 once" >&2
    exit 1
  }
done
