package chat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/relax-rollout/relax-rollout/relax/internal/jinja"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/hf"
)

// Load reads the chat format of a checkpoint directory (option hf_checkpoint) as transformers
// does:
//
//   - tokenizer.json, and added_tokens_decoder of tokenizer_config.json over it;
//   - the chat templates: chat_template.jinja with additional_chat_templates/, else
//     chat_template of tokenizer_config.json (a text or a list of named templates), else
//     chat_template.json. "default" is used, and "tool_use" for requests with tools;
//   - the named special tokens of tokenizer_config.json, else of special_tokens_map.json;
//   - eos_token of tokenizer_config.json and eos_token_id of generation_config.json, both
//     optional, as further ids that end a turn.
//
// Errors name the file, what was found and what is expected.
func Load(dir string, opts Options) (*Format, error) {
	return load(dir, opts, func(file string, o hf.Options) (tokenizer.Tokenizer, error) { return hf.Load(file, o) })
}

// A tokenizerLoader opens a tokenizer.json. Its errors name the file.
type tokenizerLoader func(file string, opts hf.Options) (tokenizer.Tokenizer, error)

// load is [Load] with the tokenizer library as an argument.
func load(dir string, opts Options, open tokenizerLoader) (*Format, error) {
	c, err := readCheckpoint(dir)
	if err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %w", err)
	}
	tok, err := open(filepath.Join(dir, tokenizerFile), hf.Options{Added: c.added, Control: c.isControl})
	if err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %w", err)
	}
	f, err := assemble(tok, c, opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hf_checkpoint %s: %w", dir, err), tok.Close())
	}
	return f, nil
}

// assemble builds the format once every file was read.
func assemble(tok tokenizer.Tokenizer, c *checkpoint, opts Options) (*Format, error) {
	if name := c.special("eos_token"); name != "" {
		id, ok := tok.TokenID(name)
		if !ok {
			return nil, fmt.Errorf("%s: eos_token %q is not a token of %s", configFile, name, tokenizerFile)
		}
		c.eos = append(c.eos, id)
	}
	return newFormat(tok, *c, opts)
}

// readCheckpoint reads all files of a checkpoint but the tokenizer's own.
func readCheckpoint(dir string) (*checkpoint, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	cfg, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	c := &checkpoint{specials: cfg.specials, extra: cfg.extra, added: cfg.added}
	if c.templates, err = readTemplates(dir, cfg); err != nil {
		return nil, err
	}
	if c.eos, err = readGenerationEOS(dir); err != nil {
		return nil, err
	}
	return c, nil
}

// checkDir refuses a directory that is not there or has no tokenizer.
func checkDir(dir string) error {
	const expected = "expected a checkpoint directory with " + tokenizerFile + ", " + configFile + " and a chat template"
	if dir == "" {
		return errors.New("the option is empty: " + expected)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("%w: %s", err, expected)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory: %s", dir, expected)
	}
	if _, err := os.Stat(filepath.Join(dir, tokenizerFile)); err != nil {
		return fmt.Errorf("%w: %s", err, expected)
	}
	return nil
}

// A checkpoint is what the files of a model say about its chat format.
type checkpoint struct {
	templates []source
	specials  []specialToken
	extra     []string // additional_special_tokens
	added     []tokenizer.AddedToken
	eos       []int32
}

// A specialToken is a token with a name, such as bos_token.
type specialToken struct{ name, text string }

func (c *checkpoint) special(name string) string {
	for _, s := range c.specials {
		if s.name == name {
			return s.text
		}
	}
	return ""
}

// named are the special tokens as templates find them.
func (c *checkpoint) named() []named {
	var out []named
	for _, s := range c.specials {
		out = append(out, named{s.name, jinja.String(s.text)})
	}
	if len(c.extra) > 0 {
		list := make([]jinja.Value, len(c.extra))
		for i, text := range c.extra {
			list[i] = jinja.String(text)
		}
		out = append(out, named{"additional_special_tokens", jinja.List(list)})
	}
	return out
}

// isControl is [isControl] with the checkpoint's templates.
func (c *checkpoint) isControl(t tokenizer.AddedToken) bool {
	texts := make([]string, len(c.templates))
	for i, s := range c.templates {
		texts[i] = s.text
	}
	return isControl(t, texts...)
}

func (c *checkpoint) controlTokens(added []tokenizer.AddedToken) []tokenizer.AddedToken {
	var out []tokenizer.AddedToken
	for _, t := range added {
		if c.isControl(t) {
			out = append(out, t)
		}
	}
	return out
}
