package testkit

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

const checkedHeader = `#include "more.h"
#define NUMBER 5
#define NEGATIVE (-1)
#define WORD "five"
struct s { uint32_t first; uint32_t two_words; uint64_t third; };
`

// Each difference between a header and Go is found, and nothing else is.
func TestCheckCFindsDifferences(t *testing.T) {
	dir := t.TempDir()
	header := filepath.Join(dir, "h.h")
	for name, text := range map[string]string{"h.h": checkedHeader, "more.h": "#define MORE 6\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type same struct {
		First    uint32
		TwoWords int32
		Number   uint64 `c:"third"`
	}
	type swapped struct {
		TwoWords uint32
		First    uint32
		Third    uint64
	}
	type short struct{ First, TwoWords uint32 }
	type narrow struct {
		First    uint32
		TwoWords [2]byte
		_        [2]byte
		Third    uint64
	}
	equal := map[string]any{"NUMBER": uint32(5), "NEGATIVE": -1, "WORD": "five", "MORE": 6, "struct s": same{}}
	check := func(want map[string]any) int {
		r := &recorder{TB: t}
		CheckC(r, header, want)
		if r.fatals > 0 {
			t.Errorf("CheckC of %v could not compare", want)
		}
		return r.errors
	}
	if n := check(equal); n != 0 {
		t.Errorf("%d differences of equal ones", n)
	}
	for _, different := range []map[string]any{
		{"NUMBER": 6},
		{"NEGATIVE": 1},
		{"WORD": "fives"},
		{"WORD": "fivf"},
		{"MORE": 7},
		{"MISSING": 1},
		{"struct s": swapped{}},
		{"struct s": short{}},
		{"struct s": narrow{}},
		{"struct other": same{}},
	} {
		want := maps.Clone(equal)
		maps.Copy(want, different)
		if n := check(want); n != 1 {
			t.Errorf("%v is found %d times, want once", different, n)
		}
	}
	r := &recorder{TB: t}
	CheckC(r, filepath.Join(dir, "missing.h"), equal)
	if r.fatals+r.errors == 0 {
		t.Error("a header that is not there is not missed")
	}
}
