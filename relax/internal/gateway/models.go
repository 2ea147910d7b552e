package gateway

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// health says that the server runs. It needs no credential and names no session.
func (g *Gateway) health(ctx *fasthttp.RequestCtx, h *head) {
	out := map[string]any{"ok": true, "active_requests": g.turns.Load()}
	if g.cfg.Health != nil {
		for name, n := range maps.All(g.cfg.Health()) {
			out[name] = n
		}
	}
	answerJSON(ctx, h, out)
}

// A modelCard is one entry of the model list. The first four fields are what OpenAI's SDKs
// read, the others what Anthropic's do; neither minds the other's.
type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int    `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	// CreatedAt is the epoch, which stands for a date nobody knows.
	CreatedAt string `json:"created_at"`
	Lifecycle string `json:"lifecycle"`
}

func (g *Gateway) card() modelCard {
	return modelCard{
		ID: g.cfg.Model, Object: "model", OwnedBy: "relax",
		Type: "model", DisplayName: g.cfg.Model, CreatedAt: "1970-01-01T00:00:00Z", Lifecycle: "active",
	}
}

// A modelList is the list as all clients read it: OpenAI's SDKs object and data, Anthropic's data
// and the cursors.
type modelList struct {
	Object  string      `json:"object"`
	Data    []modelCard `json:"data"`
	HasMore bool        `json:"has_more"`
	FirstID *string     `json:"first_id"`
	LastID  *string     `json:"last_id"`
	// Models is the list Codex reads. It is empty because its cards prescribe prompts and tools;
	// for a model without one Codex uses its own defaults.
	Models []struct{} `json:"models"`
}

func (g *Gateway) models(ctx *fasthttp.RequestCtx, h *head) {
	list := modelList{Object: "list", Data: []modelCard{}, Models: []struct{}{}}
	if g.cfg.Model != "" {
		list.Data = append(list.Data, g.card())
		list.FirstID, list.LastID = &g.cfg.Model, &g.cfg.Model
	}
	answerJSON(ctx, h, list)
}

func (g *Gateway) model(ctx *fasthttp.RequestCtx, h *head) {
	path := strings.TrimRight(string(ctx.Path()), "/")
	_, id, _ := strings.Cut(path, "/models/")
	if g.cfg.Model == "" || id != g.cfg.Model {
		fail(ctx, h.dialect, notFound("no such model; GET %s/v1/models lists what there is", prefix))
		return
	}
	answerJSON(ctx, h, g.card())
}

func answerJSON(ctx *fasthttp.RequestCtx, h *head, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(ctx, h.dialect, wire.Internal("the answer could not be written"))
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}
