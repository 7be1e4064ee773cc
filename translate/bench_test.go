package translate

import (
	"runtime"
	"testing"
	"time"
)

const many = 100_000

func full(b *testing.B) *Table {
	b.Helper()
	table := newTable(b, Options{})
	for n := range uint32(many) {
		mustMap(b, table, remote(n), time.Hour)
	}
	return table
}

// BenchmarkMemory measures the memory of each of 100,000 mappings.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		table := full(b)
		runtime.GC()
		runtime.ReadMemStats(&after)
		// The array has room for the whole pool; the kernel gives pages to what is used of it.
		unused := (len(table.slots) - many) * slotSize
		b.ReportMetric(float64(int(after.HeapAlloc-before.HeapAlloc)-unused)/many, "B/mapping")
		runtime.KeepAlive(table)
	}
}

func BenchmarkV6(b *testing.B) {
	table := full(b)
	n := uint32(0)
	for b.Loop() {
		n = (n*1664525 + 1013904223) % many
		table.V6(table.at(n + 1))
	}
}

func BenchmarkV4(b *testing.B) {
	table := full(b)
	n := uint32(0)
	for b.Loop() {
		n = (n*1664525 + 1013904223) % many
		table.V4(remote(n))
	}
}

// BenchmarkReclaim measures a new mapping in a full pool.
func BenchmarkReclaim(b *testing.B) {
	table, c := small(b, 15)
	for n := range uint32(1<<17 - 2) {
		mustMap(b, table, remote(n), 0)
	}
	c.pass(2 * Grace)
	for n := uint32(1 << 17); b.Loop(); n++ {
		c.pass(time.Millisecond)
		mustMap(b, table, remote(n), 0)
	}
}
