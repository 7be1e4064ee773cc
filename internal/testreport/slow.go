package main

import (
	"cmp"
	"slices"
	"strings"
)

// share is the part of its parent's time from which a subtest is listed by
// itself.
const share = 0.1

// timed is a test and its time.
type timed struct {
	pkg, name string
	seconds   float64
	split     int // subtests that are listed by themselves, whose time is not in seconds
}

// slowest lists the n slowest tests, the slowest first.
//
// A test's time has the times of its subtests in it, so a test and its slow
// subtest would fill two rows with one fact. Each second is therefore listed
// once. A subtest that takes at least a tenth of its parent's time has a row of
// its own, and that time is taken from the parent. The time of small subtests
// stays with the parent: a table of a hundred cases is one row.
//
// The time of a parallel subtest is not in its parent's, which can be shorter
// than the subtest. Then the parent keeps nothing.
func slowest(tests []timed, n int) []timed {
	children := map[string][]timed{} // by package and parent's name
	for _, t := range tests {
		parent := ""
		if i := strings.LastIndexByte(t.name, '/'); i >= 0 {
			parent = t.name[:i]
		}
		children[t.pkg+" "+parent] = append(children[t.pkg+" "+parent], t)
	}
	var rows []timed
	var list func(t timed)
	list = func(t timed) {
		whole := t.seconds
		for _, c := range children[t.pkg+" "+t.name] {
			if c.seconds > 0 && c.seconds >= share*whole {
				t.seconds -= c.seconds
				t.split++
				list(c)
			}
		}
		if t.seconds > 0 {
			rows = append(rows, t)
		}
	}
	for _, t := range tests {
		if !strings.Contains(t.name, "/") {
			list(t)
		}
	}
	slices.SortStableFunc(rows, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	return rows[:min(n, len(rows))]
}
