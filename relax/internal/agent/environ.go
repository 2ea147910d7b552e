//go:build linux

package agent

import (
	"maps"
	"slices"
	"strings"
)

// reserved is the prefix of the names the process contract owns.
const reserved = "RELAX_"

// The contract's names.
const (
	EnvInput   = "RELAX_INPUT_JSON"
	EnvOutput  = "RELAX_OUTPUT_JSON"
	EnvIODir   = "RELAX_SESSION_IO_DIR"
	EnvBaseURL = "RELAX_BASE_URL"
	EnvSession = "RELAX_SESSION_ID"
	EnvMode    = "RELAX_ROLLOUT_MODE"
	EnvGroup   = "RELAX_GROUP_ID"
)

// baseEnvironment is what all agents share: the inherited environment, if it is wanted, below
// agent_env. RELAX_ variables of an outer rollout are not passed on, since an agent could take
// another Session's id for its own.
func baseEnvironment(cfg Config) ([]string, error) {
	const option = "agent_env"
	for name, value := range cfg.Env {
		switch {
		case name == "":
			return nil, &OptionError{Option: option, Problem: "has an empty name"}
		case strings.HasPrefix(name, reserved):
			return nil, &OptionError{Option: option, Problem: "sets " + name + "; names starting with " + reserved + " are reserved, choose another one"}
		case strings.ContainsAny(name, "=\x00"):
			return nil, &OptionError{Option: option, Problem: "has the name " + shorten(name, 64) + "; a name may not contain = or NUL"}
		case strings.ContainsRune(value, 0):
			return nil, &OptionError{Option: option, Problem: "has a NUL byte in the value of " + name}
		}
	}
	var env []string
	if cfg.Inherit {
		env = inheritable(cfg.Environ, cfg.Env)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		env = append(env, name+"="+cfg.Env[name])
	}
	return env, nil
}

func inheritable(environ []string, over map[string]string) []string {
	out := make([]string, 0, len(environ)+len(over))
	for _, entry := range environ {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.HasPrefix(name, reserved) || strings.ContainsRune(entry, 0) {
			continue
		}
		if _, set := over[name]; !set {
			out = append(out, entry)
		}
	}
	return out
}

// environment is one agent's complete environment.
func (l *Launcher) environment(spec Spec, dir ioDir) []string {
	env := make([]string, 0, len(l.baseEnv)+7)
	env = append(env, l.baseEnv...)
	return append(env,
		EnvInput+"="+dir.input(),
		EnvOutput+"="+dir.output(),
		EnvIODir+"="+dir.path,
		EnvBaseURL+"="+spec.BaseURL,
		EnvSession+"="+spec.SessionID,
		EnvMode+"="+spec.Mode,
		EnvGroup+"="+spec.GroupID,
	)
}

func shorten(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 { // do not cut a rune
		n--
	}
	return s[:n] + "…"
}
