//go:build linux

package agent

import (
	"maps"
	"net/url"
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
func baseEnvironment(cfg Config) (baseEnv, error) {
	const option = "agent_env"
	for name, value := range cfg.Env {
		switch {
		case name == "":
			return baseEnv{}, &OptionError{Option: option, Problem: "has an empty name"}
		case strings.HasPrefix(name, reserved):
			return baseEnv{}, &OptionError{Option: option, Problem: "sets " + name + "; names starting with " + reserved + " are reserved, choose another one"}
		case strings.ContainsAny(name, "=\x00"):
			return baseEnv{}, &OptionError{Option: option, Problem: "has the name " + shorten(name, 64) + "; a name may not contain = or NUL"}
		case strings.ContainsRune(value, 0):
			return baseEnv{}, &OptionError{Option: option, Problem: "has a NUL byte in the value of " + name}
		}
	}
	var env []string
	if cfg.Inherit {
		env = inheritable(cfg.Environ, cfg.Env)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		env = append(env, name+"="+cfg.Env[name])
	}
	return withDirectAccess(env, cfg.Env), nil
}

// A baseEnv is what all agents share.
type baseEnv struct {
	entries []string
	// direct says that a proxy is set, which would swallow requests to the model endpoint: its
	// host is then added to what noProxy holds, the values of directNames.
	direct  bool
	noProxy [len(directNames)]string
}

// Clients read the one or the other.
var directNames = [...]string{"no_proxy", "NO_PROXY"}

// withDirectAccess finds out whether the model endpoint's host must be kept from a proxy. Who
// sets no_proxy in agent_env decides that himself.
func withDirectAccess(env []string, own map[string]string) baseEnv {
	base := baseEnv{entries: env}
	for _, name := range directNames {
		if _, set := own[name]; set {
			return base
		}
	}
	base.direct = slices.ContainsFunc(env, func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		return value != "" && slices.Contains([]string{"http_proxy", "https_proxy", "all_proxy"}, strings.ToLower(name))
	})
	if !base.direct {
		return base
	}
	base.entries = slices.DeleteFunc(env, func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		i := slices.Index(directNames[:], name)
		if i >= 0 {
			base.noProxy[i] = value
		}
		return i >= 0
	})
	return base
}

// directEntries are the variables that keep the host of baseURL from a proxy.
func (b *baseEnv) directEntries(baseURL string) []string {
	u, err := url.Parse(baseURL)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	var out []string
	for i, name := range directNames {
		value := b.noProxy[i]
		if value == "" {
			value = b.noProxy[1-i]
		}
		hosts := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
		if !slices.Contains(hosts, u.Hostname()) && !slices.Contains(hosts, "*") {
			hosts = append(hosts, u.Hostname())
		}
		out = append(out, name+"="+strings.Join(hosts, ","))
	}
	return out
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
	env := make([]string, 0, len(l.env.entries)+9)
	env = append(env, l.env.entries...)
	if l.env.direct {
		env = append(env, l.env.directEntries(spec.BaseURL)...)
	}
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
