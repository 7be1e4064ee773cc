package vm

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Place{
		"/run/v":        {device, "/run/v", 3},
		"v":             {device, "v", 3},
		"hybrid:/run/v": {hybrid, "/run/v", 0},
		"42":            {context, "", 42},
	} {
		got, err := Parse(text, 0)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v as %s, %v", text, got, got, err)
		}
	}
	if got, err := Parse("v", 7); err != nil || got.cid != 7 {
		t.Errorf("context id: %+v, %v", got, err)
	}
	for _, bad := range []struct {
		text string
		cid  uint64
	}{{"", 0}, {"hybrid:", 0}, {"0", 0}, {"2", 0}, {"4294967295", 0}, {"42", 7}, {"hybrid:/run/v", 7}, {"v", 2}, {"hybrid:/" + strings.Repeat("v", 100), 0}} {
		if got, err := Parse(bad.text, bad.cid); !errors.Is(err, ErrPlace) {
			t.Errorf("%s: %+v, %v", bad.text, got, err)
		}
	}
}
