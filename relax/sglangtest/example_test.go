package sglangtest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

func Example() {
	policy, err := sglangtest.ParsePolicy([]byte(`{
	  "classes": [{
	    "name": "sum",
	    "match": {"last_regex": "(?P<a>\\d+)\\+(?P<b>\\d+)"},
	    "candidates": [{"text": "${a+b}", "weight": 20}, {"text": "${a+b+1}"}]
	  }],
	  "default": [{"text": "What?"}]
	}`))
	if err != nil {
		panic(err)
	}
	server, err := sglangtest.New(sglangtest.Config{Policy: policy, Seed: 1})
	if err != nil {
		panic(err)
	}
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	body := `{"text": "<|im_start|>user\n40+2<|im_end|>\n<|im_start|>assistant\n", "rid": "one"}`
	resp, err := client.Post(server.URL()+"/generate", "application/json", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	var answer struct {
		Text      string  `json:"text"`
		OutputIDs []int32 `json:"output_ids"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		panic(err)
	}
	fmt.Println(answer.Text, answer.OutputIDs)
	// Output: 42 [52 50 258]
}
