package bandwidth

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkUsage is what a look at one of many groups costs.
func BenchmarkUsage(b *testing.B) {
	var groups []*Group
	for i := range 100 {
		name := fmt.Sprintf("tsugiki-test-%d-%d", os.Getpid(), i)
		for _, h := range []string{"cpu", "cpuacct"} {
			dir := filepath.Join("/sys/fs/cgroup", h, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = os.Remove(dir) })
		}
		g, err := Open("/" + name)
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
