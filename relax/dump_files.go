package relax

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// The options that ask for files.
const (
	optionTraces  = "trace_dir"
	optionDebug   = "save_debug_rollout_data"
	optionResults = "rollout_result_dir"
)

// rolloutMark is where save_debug_rollout_data has the step.
const rolloutMark = "{rollout_id}"

// dumpFiles are the names of traces and dumps; "" for what is not written.
type dumpFiles struct {
	traces  string // directory
	debug   string // name with rolloutMark
	results string // directory
}

// A dumpDir is a directory that an option needs.
type dumpDir struct{ option, path string }

func (f *dumpFiles) directories() []dumpDir {
	var out []dumpDir
	if f.traces != "" {
		out = append(out, dumpDir{optionTraces, f.traces})
	}
	if f.debug != "" {
		out = append(out, dumpDir{optionDebug, filepath.Dir(f.debug)})
	}
	if f.results != "" {
		out = append(out, dumpDir{optionResults, filepath.Join(f.results, modeTrain)}, dumpDir{optionResults, filepath.Join(f.results, modeEval)})
	}
	return out
}

// check refuses a name for dumps whose files would overwrite each other, or that nobody writes.
func (f *dumpFiles) check() error {
	if f.debug == "" {
		return nil
	}
	problem := ""
	switch {
	case !strings.Contains(filepath.Base(f.debug), rolloutMark) || strings.Contains(filepath.Dir(f.debug), rolloutMark):
		problem = "expected " + rolloutMark + " in the file's name, and not in its directory's"
	case !f.parquet() && !strings.HasSuffix(f.debug, ".jsonl"):
		problem = "expected a name in .jsonl, or in .parquet under Python"
	default:
		return nil
	}
	return &OptionError{Option: optionDebug, Problem: fmt.Sprintf("%s, found %q", problem, f.debug)}
}

func (f *dumpFiles) parquet() bool { return strings.HasSuffix(f.debug, ".parquet") }

// stepName is <id>, of an Eval eval_<id>; "none" outside steps.
func stepName(rollout *int64, mode string) string {
	step := "none"
	if rollout != nil {
		step = strconv.FormatInt(*rollout, 10)
	}
	if mode == modeEval {
		return "eval_" + step
	}
	return step
}

// traceFile is rollout_<id>.jsonl, of an Eval eval_<id>.jsonl.
func (f *dumpFiles) traceFile(step string) string {
	if !strings.HasPrefix(step, "eval_") {
		step = "rollout_" + step
	}
	return filepath.Join(f.traces, step+".jsonl")
}

// rowFile has the rows of a step, "" if the engine does not write them.
func (f *dumpFiles) rowFile(step string) string {
	if f.debug == "" || f.parquet() {
		return ""
	}
	return strings.ReplaceAll(f.debug, rolloutMark, step)
}

// sessionFile has the traces of a step's dump: the same file, or one beside the host's Parquet.
func (f *dumpFiles) sessionFile(step string) string {
	if f.parquet() {
		return strings.ReplaceAll(f.debug, rolloutMark, step) + ".traces.jsonl"
	}
	return f.rowFile(step)
}

// debugFiles are the files of a step's dump.
func (f *dumpFiles) debugFiles(step string) []string {
	if path := f.sessionFile(step); path != "" {
		return []string{path}
	}
	return nil
}

// resultFile is {train,eval}/<id>.jsonl, "" for none.
func (f *dumpFiles) resultFile(rollout int64, mode string) string {
	if f.results == "" {
		return ""
	}
	return filepath.Join(f.results, mode, strconv.FormatInt(rollout, 10)+".jsonl")
}

// storyFile is where the traces of a step's Sessions are, "" if they are not written.
func (t *tracer) storyFile(rollout int64, mode string) string {
	switch step := stepName(&rollout, mode); {
	case t == nil:
		return ""
	case t.files.traces != "":
		return t.files.traceFile(step)
	default:
		return t.files.sessionFile(step)
	}
}
