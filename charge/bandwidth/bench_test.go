package bandwidth

import (
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// BenchmarkUsage measures one reading of the usage with many groups.
func BenchmarkUsage(b *testing.B) {
	var groups []*Group
	for range 100 {
		g, err := Open(testkit.NewGroups(b).Name)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { g.Close() })
		groups = append(groups, g)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := groups[i%len(groups)].Usage(); err != nil {
			b.Fatal(err)
		}
	}
}
