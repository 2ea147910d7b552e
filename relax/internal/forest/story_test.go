package forest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories do into testdata/forest instead of checking it")

// stories lie at the repository's root.
const stories = "../../../testdata/forest"

// fewestStories is how many there must be: a glob that finds nothing proves nothing.
const fewestStories = 60

// TestStories runs the scripts of testdata/forest. A script begins with a remark that says what
// happens and why it is right. Then come blocks: a command line, its input lines, "----", and
// what it prints up to a blank line. Further remarks may stand between blocks. The cases of the
// specifications that a story shows stand in a line "# Cases H1, 3a-2."; TestCasesHaveTests
// collects them.
//
//	request NAME     a Chat request body: match and attach. Options: messages or responses (a body
//	                 of that dialect), tolerant (match by that policy)
//	match NAME       the same, match only; "attach NAME" follows later
//	reply NAME       an assistant message (JSON, or bare text): commit. Options: ids=x other ids
//	                 for the same text, truncated, version=N or N@i,M@j, aborts=N, rollout=N,
//	                 empty (no token and no text), silent (only the end token), unparsed (flagged)
//	defaults         a JSON object: the configuration's chat_template_kwargs
//	undelivered #N   the answer of response N reached nobody ("delivered #N": it did after all)
//	tree             the dump
//	tokens #N        the tokens sent to the model after node N
//	row #N           the training row of node N, sampled tokens in [brackets]
//	rows each #N #M  the rows of several nodes; tokens that another row trains stand in (brackets)
//	                 (rows first #N #M: each sampled token is trained in one row)
//	implicit         the implicit export of implicit_export: unique
//	main             that of implicit_export: main
//	record           an explicit record {messages, tools, chat_template_kwargs} (record tolerant)
//	account #N ...   the fate of all sampled tokens when these nodes are exported
func TestStories(t *testing.T) {
	for _, file := range storyFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) { runStory(t, file, name) })
	}
}

func storyFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(stories, "*.txt"))
	if err != nil || len(files) < fewestStories {
		t.Fatalf("found %d stories in %s, want %d or more; %v", len(files), stories, fewestStories, err)
	}
	return files
}

// blocks are the parts of a script.
func blocks(t *testing.T, file string) []string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, block := range strings.Split(strings.TrimRight(string(raw), "\n"), "\n\n") {
		out = append(out, strings.Trim(block, "\n"))
	}
	return out
}

func runStory(t *testing.T, file, name string) {
	s := newStory(name)
	var out strings.Builder
	for _, block := range blocks(t, file) {
		if strings.HasPrefix(block, "#") {
			fmt.Fprintf(&out, "%s\n\n", block)
			continue
		}
		input, want, _ := strings.Cut(block, "\n----")
		want = strings.TrimPrefix(want, "\n")
		command, body, _ := strings.Cut(input, "\n")
		got := strings.TrimRight(s.run(command, body), "\n")
		if got != want && !*rewrite {
			t.Errorf("%s\n%s\n got: %s\nwant: %s", name, command, got, want)
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n\n", input, got)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStoriesTellAll: a story begins by saying why, and shows what was asked, the tree, and what can
// be exported: rows with their masks, unless there is nothing to train.
func TestStoriesTellAll(t *testing.T) {
	for _, file := range storyFiles(t) {
		used := map[string]bool{}
		all := blocks(t, file)
		rows, nothing := false, false
		for _, block := range all {
			command, _, _ := strings.Cut(block, "\n")
			used[strings.Fields(command)[0]] = true
			rows = rows || rowShown.MatchString(block)
			nothing = nothing || strings.Contains(block, "the session committed no response")
		}
		name := filepath.Base(file)
		if !strings.HasPrefix(all[0], "# ") {
			t.Errorf("%s does not begin with a remark", name)
		}
		if !rows && !nothing {
			t.Errorf("%s shows no row with its sampled tokens", name)
		}
		for what, commands := range map[string][]string{
			"a request": {"request", "match"},
			"the tree":  {"tree"},
			"an export": {"implicit", "main", "record", "rows"},
		} {
			if !slices.ContainsFunc(commands, func(c string) bool { return used[c] }) {
				t.Errorf("%s does not show %s: use one of %s", name, what, strings.Join(commands, ", "))
			}
		}
	}
}

// rowShown finds a row that trains something.
var rowShown = regexp.MustCompile(`prompt \d+ of \d+ tokens[^\n]*\n[^\n]*\[`)
