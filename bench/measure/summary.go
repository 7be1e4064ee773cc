// Package measure turns repeated measurements of several modes into ratios,
// summaries, tables and JSON.
//
// It owns the statistics and the format of every bench's results. It measures
// nothing itself and needs no privileges.
package measure

import (
	"math"
	"slices"
)

// Summary describes repeated measurements of one thing. On noisy machines the
// median is the figure, the rest says how far to trust it.
type Summary struct {
	Median float64 `json:"median"`
	Q1     float64 `json:"q1"`
	Q3     float64 `json:"q3"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// IQR is the distance between the quartiles.
func (s Summary) IQR() float64 { return s.Q3 - s.Q1 }

// Summarize summarizes values; of none, all is zero.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Summary{
		Median: quantile(sorted, 0.5),
		Q1:     quantile(sorted, 0.25),
		Q3:     quantile(sorted, 0.75),
		Min:    sorted[0],
		Max:    sorted[len(sorted)-1],
	}
}

// quantile interpolates between the two values around the rank, as R's default
// (type 7) and NumPy's do.
func quantile(sorted []float64, q float64) float64 {
	rank := q * float64(len(sorted)-1)
	low := int(math.Floor(rank))
	high := int(math.Ceil(rank))
	part := rank - float64(low)
	return sorted[low]*(1-part) + sorted[high]*part
}

// Ratios divides values by the base measured in the same round, which takes
// out what changes slowly on the machine. Rounds without a usable base have no
// ratio.
func Ratios(values, base []float64) []float64 {
	ratios := make([]float64, 0, len(values))
	for i := range min(len(values), len(base)) {
		if base[i] > 0 {
			ratios = append(ratios, values[i]/base[i])
		}
	}
	return ratios
}
