/* check.h: assertions of the C tests. A failed one prints itself and ends the test. */
#ifndef RELAXC_CHECK_H
#define RELAXC_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (condition) break;                                                         \
    fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);       \
    _exit(1);                                                                     \
  } while (0)

#define CHECK_EQ(got, want)                                                               \
  do {                                                                                    \
    long long got_ = (long long)(got), want_ = (long long)(want);                         \
    if (got_ == want_) break;                                                             \
    fprintf(stderr, "%s:%d: %s is %lld, want %s = %lld\n", __FILE__, __LINE__, #got, got_, \
            #want, want_);                                                                \
    _exit(1);                                                                             \
  } while (0)

#define CHECK_HAS(text, part)                                                              \
  do {                                                                                     \
    if (strstr((text), (part)) != NULL) break;                                             \
    fprintf(stderr, "%s:%d: no \"%s\" in: %s\n", __FILE__, __LINE__, (part), (text));      \
    _exit(1);                                                                              \
  } while (0)

/* Runs body in a forked child, which may hang if the guard fails: 20 seconds are the limit. */
static void in_forked_child(void (*body)(void)) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    alarm(20);
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif /* RELAXC_CHECK_H */
