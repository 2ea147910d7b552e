package chat

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// The files of a checkpoint directory that matter here.
const (
	tokenizerFile   = "tokenizer.json"
	configFile      = "tokenizer_config.json"
	specialsFile    = "special_tokens_map.json"
	jinjaFile       = "chat_template.jinja"
	jinjaDir        = "additional_chat_templates"
	legacyJSONFile  = "chat_template.json"
	generationFile  = "generation_config.json"
	defaultTemplate = "default"
	toolUseTemplate = "tool_use"
)

// specialNames are the special tokens that transformers hands to templates by name.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// A tokenizerConfig is what tokenizer_config.json says about the chat format.
type tokenizerConfig struct {
	templates []source
	specials  []specialToken
	extra     []string
	added     []tokenizer.AddedToken
}

// readConfig reads tokenizer_config.json. A missing file is an empty one: the template may
// lie in a file of its own.
func readConfig(dir string) (*tokenizerConfig, error) {
	path := filepath.Join(dir, configFile)
	file := map[string]json.RawMessage{}
	if _, err := readOptional(path, &file); err != nil {
		return nil, err
	}
	fallback := map[string]json.RawMessage{}
	if _, err := readOptional(filepath.Join(dir, specialsFile), &fallback); err != nil {
		return nil, err
	}
	cfg := &tokenizerConfig{}
	for _, name := range append(slices.Clone(specialNames), modelTokens(file["extra_special_tokens"])...) {
		raw, where := file[name], path
		if absent(raw) {
			raw, where = fallback[name], filepath.Join(dir, specialsFile)
		}
		text, err := readToken(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", where, name, err)
		}
		if text != "" {
			cfg.specials = append(cfg.specials, specialToken{name, text})
		}
	}
	var err error
	if cfg.templates, err = parseTemplates(file["chat_template"], path); err != nil {
		return nil, fmt.Errorf("%s: chat_template: %w", path, err)
	}
	if cfg.extra, err = readTokens(file["additional_special_tokens"]); err != nil {
		return nil, fmt.Errorf("%s: additional_special_tokens: %w", path, err)
	}
	if cfg.added, err = readAdded(file["added_tokens_decoder"]); err != nil {
		return nil, fmt.Errorf("%s: added_tokens_decoder: %w", path, err)
	}
	return cfg, nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

// modelTokens are the names of a model's own special tokens, such as image_token.
func modelTokens(raw json.RawMessage) []string {
	var names map[string]json.RawMessage
	if absent(raw) || json.Unmarshal(raw, &names) != nil {
		return nil // a list names no token
	}
	out := make([]string, 0, len(names))
	for name := range names {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// parseTemplates reads a template or a list of named ones.
func parseTemplates(raw json.RawMessage, file string) ([]source, error) {
	if absent(raw) {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []source{{defaultTemplate, file, one}}, nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New("expected a text or a list of {name, template}")
	}
	out := make([]source, len(list))
	for i, n := range list {
		out[i] = source{n.Name, file + " (" + n.Name + ")", n.Template}
	}
	return out, nil
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

func readTokens(raw json.RawMessage) ([]string, error) {
	if absent(raw) {
		return nil, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New("expected a list of tokens")
	}
	out := make([]string, len(list))
	for i, item := range list {
		text, err := readToken(item)
		if err != nil {
			return nil, fmt.Errorf("token %d: %w", i, err)
		}
		out[i] = text
	}
	return out, nil
}

// readAdded reads {"id": {"content", "special", "lstrip", "rstrip", "single_word", "normalized"}}.
func readAdded(raw json.RawMessage) ([]tokenizer.AddedToken, error) {
	if absent(raw) {
		return nil, nil
	}
	var byID map[string]struct {
		Content    string `json:"content"`
		Special    bool   `json:"special"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
	}
	if err := json.Unmarshal(raw, &byID); err != nil {
		return nil, errors.New("expected an object of token ids")
	}
	out := make([]tokenizer.AddedToken, 0, len(byID))
	for key, t := range byID {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no token id", key)
		}
		out = append(out, tokenizer.AddedToken{ID: int32(id), Content: t.Content, Special: t.Special,
			SingleWord: t.SingleWord, LStrip: t.LStrip, RStrip: t.RStrip, Normalized: t.Normalized})
	}
	slices.SortFunc(out, func(a, b tokenizer.AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// readTemplates finds the templates the way transformers does, then in chat_template.json, as
// the reference does. Of several only "default" and "tool_use" can be asked for.
func readTemplates(dir string, cfg *tokenizerConfig) ([]source, error) {
	found, err := readJinja(dir)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		found = cfg.templates
	}
	if len(found) == 0 {
		if found, err = readLegacy(filepath.Join(dir, legacyJSONFile)); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no chat template: expected %s or chat_template in %s", dir, jinjaFile, configFile)
	}
	return usable(found)
}

// usable keeps the templates that requests can get and insists on a default.
func usable(found []source) ([]source, error) {
	var out []source
	var names []string
	for _, s := range found {
		names = append(names, s.name)
		if s.name == defaultTemplate || s.name == toolUseTemplate {
			out = append(out, s)
		}
	}
	if !slices.Contains(names, defaultTemplate) {
		slices.Sort(names)
		return nil, fmt.Errorf("%s: no chat template is named %q: found %s",
			found[0].file, defaultTemplate, strings.Join(names, ", "))
	}
	return out, nil
}

// readJinja reads chat_template.jinja and additional_chat_templates/NAME.jinja.
func readJinja(dir string) ([]source, error) {
	path := filepath.Join(dir, jinjaFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := []source{{defaultTemplate, path, string(raw)}}
	more, err := filepath.Glob(filepath.Join(dir, jinjaDir, "*.jinja"))
	if err != nil {
		return nil, err
	}
	for _, path := range more {
		if raw, err = os.ReadFile(path); err != nil {
			return nil, err
		}
		out = append(out, source{strings.TrimSuffix(filepath.Base(path), ".jinja"), path, string(raw)})
	}
	return out, nil
}

// readLegacy reads chat_template.json, nil if there is none.
func readLegacy(path string) ([]source, error) {
	var file struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if found, err := readOptional(path, &file); !found {
		return nil, err
	}
	out, err := parseTemplates(file.ChatTemplate, path)
	if err != nil {
		return nil, fmt.Errorf("%s: chat_template: %w", path, err)
	}
	return out, nil
}

// readOptional reads a JSON file and reports whether it was there and could be read.
func readOptional(path string, into any) (bool, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
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
		return nil, fmt.Errorf("%s: eos_token_id: expected a token id or a list of them", path)
	}
	for _, id := range ids {
		if id < 0 {
			return nil, fmt.Errorf("%s: eos_token_id: %d is no token id", path, id)
		}
	}
	return ids, nil
}
