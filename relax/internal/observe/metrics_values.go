package observe

import "slices"

// column is one number of each Session.
func column(samples []RowStat, of func(*RowStat) float64) []float64 {
	out := make([]float64, len(samples))
	for i := range samples {
		out[i] = of(&samples[i])
	}
	return out
}

func sumOf(samples []RowStat, of func(*RowStat) float64) float64 { return sum(column(samples, of)) }

// spread writes mean, median, max and min of values, of which there is at least one.
func (m metrics) spread(name string, values []float64) {
	m.meanMaxMin(name, values)
	m[name+"/median"] = quantile(sortedCopy(values), .5)
}

func (m metrics) meanMaxMin(name string, values []float64) {
	m.meanMax(name, values)
	m[name+"/min"] = slices.Min(values)
}

func (m metrics) meanMax(name string, values []float64) {
	m[name+"/mean"], m[name+"/max"] = mean(values), slices.Max(values)
}

// quantile interpolates linearly between sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

func sortedCopy(values []float64) []float64 { return slices.Sorted(slices.Values(values)) }

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}

func mean(values []float64) float64 { return sum(values) / float64(len(values)) }

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
