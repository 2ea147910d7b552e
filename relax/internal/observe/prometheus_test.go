package observe

import (
	"math"
	"testing"
)

func TestPage(t *testing.T) {
	var p Page
	p.Family("a_total", Counter, "line\none \\ two")
	p.Sample(1, "reason", "he said \"no\"\n\\ \xff", "kind", "")
	p.Sample(math.NaN())
	p.Sample(math.Inf(1))
	p.Sample(math.Inf(-1))
	p.Single("b", Gauge, "b", 1e21)
	want := `# HELP a_total line\none \\ two
# TYPE a_total counter
a_total{reason="he said \"no\"\n\\ ` + "\uFFFD" + `",kind=""} 1
a_total NaN
a_total +Inf
a_total -Inf
# HELP b b
# TYPE b gauge
b 1e+21
`
	if got := string(p.Text()); got != want {
		t.Errorf("page\n%s\nwant\n%s", got, want)
	}
}
