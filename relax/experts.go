package relax

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// An expertShape is the shape of the backend's reports on routed experts
// (use_rollout_routing_replay). The zero value: they are not asked for.
type expertShape struct{ layers, topK int }

// bytes is what one position takes.
func (e expertShape) bytes() int { return 4 * e.layers * e.topK }

// openExperts finds the shape in the options or the checkpoint.
func (c *core) openExperts() error {
	if !c.cfg.UseRolloutRoutingReplay {
		return nil
	}
	shape := expertShape{c.cfg.MoENumLayers, c.cfg.MoERouterTopK}
	if path := c.cfg.HFCheckpoint; path != "" && (shape.layers == 0 || shape.topK == 0) {
		found, err := readExpertShape(filepath.Join(path, "config.json"))
		if err != nil {
			return &OptionError{Option: "use_rollout_routing_replay", Problem: "the checkpoint does not tell the shape; set moe_num_layers and moe_router_topk", Err: err}
		}
		setDefault(&shape.layers, found.layers)
		setDefault(&shape.topK, found.topK)
	}
	for _, o := range []struct {
		name, field string
		value       int
	}{
		{"moe_num_layers", "num_hidden_layers", shape.layers}, {"moe_router_topk", "num_experts_per_tok", shape.topK},
	} {
		if o.value <= 0 {
			return &OptionError{Option: o.name, Problem: fmt.Sprintf(
				"is needed by use_rollout_routing_replay: expected a positive number, and the checkpoint's config.json has no %s", o.field)}
		}
	}
	c.experts = shape
	return nil
}

// readExpertShape reads a checkpoint's config.json. What it does not say is 0. Models with several
// parts describe the one that writes under text_config.
func readExpertShape(path string) (expertShape, error) {
	type layout struct {
		Layers    int `json:"num_hidden_layers"`
		PerTok    int `json:"num_experts_per_tok"`
		PerToken  int `json:"num_experts_per_token"`
		Activated int `json:"experts_per_token"`
		TopK      int `json:"moe_topk"`
	}
	var config struct {
		layout
		Text layout `json:"text_config"`
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return expertShape{}, err
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return expertShape{}, fmt.Errorf("%s: %w", path, err)
	}
	var s expertShape
	for _, l := range []layout{config.layout, config.Text} {
		setDefault(&s.layers, l.Layers)
		for _, k := range []int{l.PerTok, l.PerToken, l.Activated, l.TopK} {
			setDefault(&s.topK, k)
		}
	}
	return s, nil
}

// routes says whether the turn's routed experts are asked for: those of training are.
func (t *turn) routes() bool {
	return t.session.core.experts != expertShape{} && t.session.group.origin == nil
}

// routedEnd is how many positions of the conversation have their experts.
func (t *turn) routedEnd() int {
	if n := len(t.experts); n > 0 {
		return t.experts[n-1].End
	}
	return t.node.RoutedEnd()
}

// takeExperts keeps an attempt's routed experts, whose tokens were added: of the positions that were
// asked for, up to the last token, which no model has read yet. A backend that reports less is asked
// for the rest by the next attempt or turn. One that was stopped late, or whose tokens were cut at
// the budget, may report more: that is cut as well. What does not fit is left for the export to
// refuse: the turn itself is good.
func (t *turn) takeExperts(r *sglang.Result) {
	if len(r.RoutedExperts) == 0 || !t.routes() {
		return
	}
	width, start := t.session.core.experts.bytes(), t.routedEnd()
	piece := forest.Experts{Start: start, End: t.node.Len() + len(t.ids) - 1, Base64: r.RoutedExperts}
	size, err := batch.DecodedLen(piece.Base64)
	want := (piece.End - start) * width
	switch late := r.Finish.Type == sglang.FinishAbort || len(t.ids) >= t.budget; {
	case err != nil || size%width != 0:
	case size < want:
		piece.End = start + size/width
	case size > want && late:
		piece.Base64 = cutBase64(piece.Base64, want)
	}
	t.experts = append(t.experts, piece)
}

// cutBase64 is the text of the first size bytes. A text that does not decode stays one.
func cutBase64(text []byte, size int) []byte {
	whole := size / 3
	out := append([]byte(nil), text[:4*whole]...)
	if rest := size % 3; rest > 0 {
		last, err := base64.StdEncoding.DecodeString(string(text[4*whole : 4*whole+4]))
		if err != nil || len(last) < rest {
			return text
		}
		out = base64.StdEncoding.AppendEncode(out, last[:rest])
	}
	return out
}

// fit refuses contexts whose routed experts do not cover what was sampled (reference cases S11).
func (s *session) fit(exports []*export) ([]*export, error) {
	shape := s.core.experts
	if shape == (expertShape{}) || s.group.origin != nil {
		return exports, nil
	}
	for _, e := range exports {
		if err := shape.fits(&e.lineage); err != nil {
			return nil, fmt.Errorf("context %q cannot be trained: routed experts: %w", e.name, err)
		}
	}
	return exports, nil
}

func (e expertShape) fits(l *forest.Lineage) error {
	for _, piece := range l.Experts {
		size, err := batch.DecodedLen(piece.Base64)
		if err != nil {
			return fmt.Errorf("positions %d to %d: %w", piece.Start, piece.End, err)
		}
		if want := (piece.End - piece.Start) * e.bytes(); size != want {
			return fmt.Errorf("expected %d bytes for positions %d to %d (%d layers x top %d x 4 bytes), found %d; "+
				"moe_num_layers and moe_router_topk must be the served model's", want, piece.Start, piece.End, e.layers, e.topK, size)
		}
	}
	want, found := 0, 0
	for _, t := range l.TurnTable {
		if t.End > t.Start {
			want = t.End - 1
		}
	}
	if n := len(l.Experts); n > 0 {
		found = l.Experts[n-1].End
	}
	if found < want {
		return fmt.Errorf("expected those of %d positions, all tokens but the last one sampled, found %d; "+
			"does SGLang run with --enable-return-routed-experts, and is it reached without a router that drops the wish?", want, found)
	}
	return nil
}

// experts are what the batch needs of a context's routed experts, nil if they were not asked for.
func (s *session) experts(l *forest.Lineage) *batch.Experts {
	shape := s.core.experts
	if shape == (expertShape{}) || s.group.origin != nil {
		return nil
	}
	out := &batch.Experts{Layers: shape.layers, TopK: shape.topK, Pieces: make([]batch.ExpertPiece, len(l.Experts))}
	for i, piece := range l.Experts {
		out.Pieces[i] = batch.ExpertPiece{Start: piece.Start, Base64: piece.Base64}
	}
	return out
}
