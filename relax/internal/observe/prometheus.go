package observe

import (
	"math"
	"strconv"
	"strings"
)

// Kinds of a Prometheus family.
const (
	Gauge   = "gauge"
	Counter = "counter"
)

// PrometheusType is the content type of a [Page].
const PrometheusType = "text/plain; version=0.0.4; charset=utf-8"

// A Page is Prometheus text (exposition format 0.0.4) in the making. The zero Page is empty.
type Page struct {
	text   []byte
	family string
}

// Family begins a family of samples. Each may be begun once.
func (p *Page) Family(name, kind, help string) {
	p.family = name
	p.text = append(p.text, "# HELP "+name+" "+helpEscapes.Replace(help)+"\n# TYPE "+name+" "+kind+"\n"...)
}

// Sample adds a sample to the family: its value and its labels, names and values in turn. No two
// may have the same labels.
func (p *Page) Sample(value float64, labels ...string) {
	p.text = append(p.text, p.family...)
	for i := 0; i+1 < len(labels); i += 2 {
		mark := byte(',')
		if i == 0 {
			mark = '{'
		}
		text := labelEscapes.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD"))
		p.text = append(append(p.text, mark), labels[i]+`="`+text+`"`...)
	}
	if len(labels) > 1 {
		p.text = append(p.text, '}')
	}
	p.text = append(append(append(p.text, ' '), sampleValue(value)...), '\n')
}

// Single is a family of one sample without labels.
func (p *Page) Single(name, kind, help string, value float64) {
	p.Family(name, kind, help)
	p.Sample(value)
}

// Text is the page.
func (p *Page) Text() []byte { return p.text }

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func sampleValue(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
