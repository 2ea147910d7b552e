/*
 * signals.c: keeps the Go runtime's handlers of fault signals findable.
 *
 * Go turns a nil dereference into a recoverable panic only while its own SIGSEGV handler is
 * installed. faulthandler.enable() after load replaces it, and so does a faulthandler.disable()
 * that puts a handler from before load back; the next fault in Go then ends the process.
 *
 * The handlers are saved by Go's last initialiser, which runs after the runtime installed them.
 * Between the two the host may already have replaced one (dlopen has returned by then), so a
 * handler that does not lie in this library is not saved: the runtime installs the same handler
 * with the same flags for all its signals, and SIGURG's, which hosts leave alone, stands in.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>

#include "internal.h"

#define N_WATCHED 3
static const int watched[N_WATCHED] = {SIGSEGV, SIGBUS, SIGFPE};
static struct sigaction saved[N_WATCHED];
static int known[N_WATCHED];

static int in_this_library(const struct sigaction *act) {
  static const char here;
  Dl_info self, its;
  if (!dladdr(&here, &self) || !dladdr((void *)(uintptr_t)act->sa_sigaction, &its)) return 0;
  return self.dli_fbase == its.dli_fbase;
}

void relaxc_signals_save(void) {
  struct sigaction spare;
  int have_spare = sigaction(SIGURG, NULL, &spare) == 0 && in_this_library(&spare);
  for (int i = 0; i < N_WATCHED; i++) {
    known[i] = sigaction(watched[i], NULL, &saved[i]) == 0 && in_this_library(&saved[i]);
    if (known[i] || !have_spare) continue;
    saved[i] = spare;
    known[i] = 1;
  }
}

static int replaced(int i) {
  struct sigaction now;
  if (!known[i] || sigaction(watched[i], NULL, &now) != 0) return 0;
  return now.sa_sigaction != saved[i].sa_sigaction || !(now.sa_flags & SA_ONSTACK);
}

int32_t relax_signals_check(void) {
  if (!relaxc_loaded_wait()) return 0;
  for (int i = 0; i < N_WATCHED; i++)
    if (replaced(i)) return 1;
  return 0;
}

void relax_signals_restore(void) {
  if (!relaxc_loaded_wait()) return;
  for (int i = 0; i < N_WATCHED; i++)
    if (replaced(i)) sigaction(watched[i], &saved[i], NULL);
}
