package main

/*
extern char **environ;

static const char *relaxc_environ_at(int i) { return environ == 0 ? 0 : environ[i]; }
*/
import "C"

// hostEnviron is the host program's environment as it is now. os.Environ in a library is the
// one the process was started with, without what the host set since: CUDA_VISIBLE_DEVICES or a
// virtual environment's PATH would be missing in agents. The host must not change its
// environment while an engine opens, as for every C function that reads it.
func hostEnviron() []string {
	out := []string{} // not nil: an empty environment is not the default
	for i := C.int(0); ; i++ {
		entry := C.relaxc_environ_at(i)
		if entry == nil {
			return out
		}
		out = append(out, C.GoString(entry))
	}
}
