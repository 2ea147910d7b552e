package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/hf"
)

// The files of a checkpoint directory that matter here.
const (
	tokenizerFile   = "tokenizer.json"
	configFile      = "tokenizer_config.json"
	jinjaFile       = "chat_template.jinja"
	legacyJSONFile  = "chat_template.json"
	generationFile  = "generation_config.json"
	defaultTemplate = "default"
	toolUseTemplate = "tool_use"
)

// Load reads the chat format of a checkpoint directory (option hf_checkpoint):
//
//   - tokenizer.json;
//   - the chat template: chat_template.jinja, else chat_template of tokenizer_config.json (a
//     text or a list of named templates), else chat_template.json;
//   - eos_token of tokenizer_config.json and eos_token_id of generation_config.json, both
//     optional, as further ids that end a turn.
//
// Only templates that can be rendered exactly are taken, see the package comment. Errors
// name the file, what was found and what is expected.
func Load(dir string, opts Options) (*Format, error) {
	return load(dir, opts, func(file string) (tokenizer.Tokenizer, error) { return hf.Load(file) })
}

// A tokenizerLoader opens a tokenizer.json. Its errors name the file.
type tokenizerLoader func(file string) (tokenizer.Tokenizer, error)

// load is [Load] with the tokenizer library as an argument.
func load(dir string, opts Options, open tokenizerLoader) (*Format, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	cfg, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	s, err := chooseStyle(dir, cfg)
	if err != nil {
		return nil, err
	}
	eos, err := readGenerationEOS(dir)
	if err != nil {
		return nil, err
	}
	tok, err := open(filepath.Join(dir, tokenizerFile))
	if err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %w", err)
	}
	f, err := assemble(tok, s, cfg, eos, opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hf_checkpoint %s: %w", dir, err), tok.Close())
	}
	return f, nil
}

// assemble builds the format once every file was read.
func assemble(tok tokenizer.Tokenizer, s style, cfg *tokenizerConfig, eos []int32, opts Options) (*Format, error) {
	if cfg.eos != "" {
		id, ok := tok.TokenID(cfg.eos)
		if !ok {
			return nil, fmt.Errorf("%s: eos_token %q is not a token of %s", configFile, cfg.eos, tokenizerFile)
		}
		eos = append(eos, id)
	}
	return newFormat(tok, s, eos, opts)
}

// checkDir refuses a directory that is not there or has no tokenizer.
func checkDir(dir string) error {
	const expected = "expected a checkpoint directory with " + tokenizerFile + ", " + configFile + " and a chat template"
	if dir == "" {
		return errors.New("hf_checkpoint is empty: " + expected)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("hf_checkpoint: %w: %s", err, expected)
	}
	if !info.IsDir() {
		return fmt.Errorf("hf_checkpoint: %s is not a directory: %s", dir, expected)
	}
	if _, err := os.Stat(filepath.Join(dir, tokenizerFile)); err != nil {
		return fmt.Errorf("hf_checkpoint: %w: %s", err, expected)
	}
	return nil
}

// A tokenizerConfig is what tokenizer_config.json says about the chat format.
type tokenizerConfig struct {
	// templates by name; a single template is "default".
	templates map[string]string
	eos       string
}

// readConfig reads tokenizer_config.json. A missing file is an empty one: the template may
// lie in a file of its own.
func readConfig(dir string) (*tokenizerConfig, error) {
	path := filepath.Join(dir, configFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &tokenizerConfig{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %w", err)
	}
	var file struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
		EOSToken     json.RawMessage `json:"eos_token"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %s: %w", path, err)
	}
	cfg := &tokenizerConfig{}
	if cfg.templates, err = readTemplates(file.ChatTemplate); err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %s: chat_template: %w", path, err)
	}
	if cfg.eos, err = readToken(file.EOSToken); err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %s: eos_token: %w", path, err)
	}
	return cfg, nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

// readTemplates reads a template or a list of named ones.
func readTemplates(raw json.RawMessage) (map[string]string, error) {
	if absent(raw) {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{defaultTemplate: one}, nil
	}
	var named []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return nil, errors.New("expected a text or a list of {name, template}")
	}
	templates := make(map[string]string, len(named))
	for _, n := range named {
		templates[n.Name] = n.Template
	}
	return templates, nil
}

// readToken reads a token given as its text or as {"content": text}.
func readToken(raw json.RawMessage) (string, error) {
	if absent(raw) {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var token struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(raw, &token); err != nil {
		return "", errors.New(`expected a text or {"content": text}`)
	}
	return token.Content, nil
}

// chooseStyle finds the template the way Hugging Face does: chat_template.jinja, then
// tokenizer_config.json; then chat_template.json, as the reference does.
func chooseStyle(dir string, cfg *tokenizerConfig) (style, error) {
	path := filepath.Join(dir, jinjaFile)
	raw, err := os.ReadFile(path)
	if err == nil {
		return checkpointStyle(string(raw), path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("hf_checkpoint: %w", err)
	}
	path = filepath.Join(dir, configFile)
	templates := cfg.templates
	if len(templates) == 0 {
		path = filepath.Join(dir, legacyJSONFile)
		if templates, err = readLegacy(path); err != nil {
			return nil, err
		}
	}
	if len(templates) == 0 {
		return nil, fmt.Errorf("hf_checkpoint: %s has no chat template: expected %s or chat_template in %s",
			dir, jinjaFile, configFile)
	}
	return namedStyle(templates, path)
}

// readOptional reads a JSON file and reports whether it was there and could be read.
func readOptional(path string, into any) (bool, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("hf_checkpoint: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return false, fmt.Errorf("hf_checkpoint: %s: %w", path, err)
	}
	return true, nil
}

// readLegacy reads chat_template.json, nil if there is none.
func readLegacy(path string) (map[string]string, error) {
	var file struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if found, err := readOptional(path, &file); !found {
		return nil, err
	}
	templates, err := readTemplates(file.ChatTemplate)
	if err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %s: chat_template: %w", path, err)
	}
	return templates, nil
}

// namedStyle picks among named templates. Hugging Face takes "tool_use" when there are tools
// and "default" when not; both must be the same style, because a Session may do either.
func namedStyle(templates map[string]string, path string) (style, error) {
	plain, ok := templates[defaultTemplate]
	if !ok {
		names := make([]string, 0, len(templates))
		for name := range templates {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("hf_checkpoint: %s: chat_template has no template named %q: found %s",
			path, defaultTemplate, strings.Join(names, ", "))
	}
	s, err := checkpointStyle(plain, path)
	if err != nil {
		return nil, err
	}
	tools, ok := templates[toolUseTemplate]
	if !ok {
		return s, nil
	}
	other, err := checkpointStyle(tools, path+" ("+toolUseTemplate+")")
	if err != nil {
		return nil, err
	}
	if other != s {
		return nil, fmt.Errorf("hf_checkpoint: %s: the chat templates %q and %q are of different families: keep one",
			path, defaultTemplate, toolUseTemplate)
	}
	return s, nil
}

func checkpointStyle(template, source string) (style, error) {
	s, err := detectStyle(template, source)
	if err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %w", err)
	}
	return s, nil
}

// readGenerationEOS reads eos_token_id of generation_config.json: one id, a list, or nothing.
func readGenerationEOS(dir string) ([]int32, error) {
	path := filepath.Join(dir, generationFile)
	var file struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if found, err := readOptional(path, &file); !found {
		return nil, err
	}
	if absent(file.EOS) {
		return nil, nil
	}
	var ids []int32
	var one int32
	if json.Unmarshal(file.EOS, &one) == nil {
		ids = []int32{one}
	} else if err := json.Unmarshal(file.EOS, &ids); err != nil {
		return nil, fmt.Errorf("hf_checkpoint: %s: eos_token_id: expected a token id or a list of them", path)
	}
	for _, id := range ids {
		if id < 0 {
			return nil, fmt.Errorf("hf_checkpoint: %s: eos_token_id: %d is no token id", path, id)
		}
	}
	return ids, nil
}
