package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseCharge(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1500us": 1500 * time.Microsecond, "1.5ms": 1500 * time.Microsecond, "1µs": time.Microsecond, "1h": time.Hour,
	} {
		if d, err := ParseCharge(text); err != nil || d != want {
			t.Errorf("%s: %v, %v", text, d, err)
		}
	}
	for text, want := range map[string]string{
		"5": "give a unit, as in 5us", "1.5": "give a unit", "1e3": "give a unit", "0": "give a unit", "": "write a time",
		"NaN": "write a time", "Inf": "write a time", "5 us": "write a time", "5y": "write a time", "us": "write a time",
		"-5us": "more than 0", "0us": "more than 0", "1h0m0.000001s": "at most 1h0m0s", "2562047h": "at most",
		"99999999999h": "write a time", "100ns": "whole microseconds", "1.0001ms": "whole microseconds",
	} {
		if d, err := ParseCharge(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
}

func TestChargeRequest(t *testing.T) {
	many := ChargeRequest{Charges: make([]Charge, ChargesMax+1)}
	for i := range many.Charges {
		many.Charges[i] = Charge{Container: "a", Microseconds: 1}
	}
	for name, tt := range map[string]struct {
		r    ChargeRequest
		want string // of the error; or the container
	}{
		"nothing":   {ChargeRequest{}, "nothing is charged"},
		"both":      {ChargeRequest{Container: "a", Duration: "1us", Charges: []Charge{{Container: "a", Microseconds: 1}}}, "not both"},
		"no time":   {ChargeRequest{Container: "a"}, "write a time"},
		"no name":   {ChargeRequest{Duration: "1us"}, "a container is missing"},
		"many":      {many, "too many"},
		"zero":      {ChargeRequest{Charges: []Charge{{Container: "a"}}}, "more than 0"},
		"negative":  {ChargeRequest{Charges: []Charge{{Container: "a", Microseconds: -1}}}, "more than 0"},
		"long":      {ChargeRequest{Charges: []Charge{{Container: "a", Microseconds: 3600000001}}}, "at most 3600000000"},
		"overflow":  {ChargeRequest{Charges: []Charge{{Container: "a", Microseconds: math.MaxInt64}}}, "at most 3600000000"},
		"up":        {ChargeRequest{Container: "/a/../b", Duration: "1us"}, "without empty parts"},
		"empty":     {ChargeRequest{Container: "/a//b", Duration: "1us"}, "without empty parts"},
		"slash":     {ChargeRequest{Container: "a/b", Duration: "1us"}, "begins with /"},
		"newline":   {ChargeRequest{Container: "a\nb", Duration: "1us"}, "no name"},
		"long name": {ChargeRequest{Container: strings.Repeat("a", 5000), Duration: "1us"}, "longer"},
		"source":    {ChargeRequest{Container: "a", Duration: "1us", Source: "a b"}, "letters"},
		"sources":   {ChargeRequest{Container: "a", Duration: "1us", Source: strings.Repeat("a", 32)}, "letters"},
	} {
		if all, err := tt.r.All(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
	r := ChargeRequest{Container: "/docker/8a4f", Duration: "2ms"}
	want := []Charge{{Container: "/docker/8a4f", Source: SourceDefault, Microseconds: 2000}}
	if all, err := r.All(); err != nil || !cmp.Equal(all, want) {
		t.Errorf("%v, %v", all, err)
	}
	r = ChargeRequest{Charges: []Charge{{Container: "a", Source: "x", Microseconds: 1}, {Container: "b", Microseconds: 3600000000}}}
	want = []Charge{{Container: "a", Source: "x", Microseconds: 1}, {Container: "b", Source: SourceDefault, Microseconds: 3600000000}}
	if all, err := r.All(); err != nil || !cmp.Equal(all, want) {
		t.Errorf("%v, %v", all, err)
	}
	if r.Charges[1].Source != "" {
		t.Errorf("the request was changed: %v", r)
	}
}

func TestChargeHelper(t *testing.T) {
	for _, h := range []ChargeHelper{
		{Helper: HelperProcess{PID: 1}, To: "a"},
		{Helper: HelperProcess{Group: "/a"}, To: "/b", Source: "x", By: ByQuota},
		{Helper: HelperProcess{PID: 1}, Shared: true},
	} {
		if err := h.Check(); err != nil {
			t.Errorf("%+v: %v", h, err)
		}
	}
	for _, h := range []ChargeHelper{
		{To: "a"},
		{Helper: HelperProcess{PID: -1}, To: "a"},
		{Helper: HelperProcess{PID: -1, Group: "/a"}, To: "a"},
		{Helper: HelperProcess{PID: 1, Group: "/a"}, To: "a"},
		{Helper: HelperProcess{Group: "a"}, To: "a"},
		{Helper: HelperProcess{Group: "/../a"}, To: "a"},
		{Helper: HelperProcess{PID: 1}},
		{Helper: HelperProcess{PID: 1}, To: "a", By: ByMarks},
		{Helper: HelperProcess{PID: 1}, To: "a", Source: "/"},
		{Helper: HelperProcess{PID: 1}, To: "a", Shared: true},
		{Helper: HelperProcess{Group: "/a"}, Shared: true},
		{Helper: HelperProcess{PID: 1}, Shared: true, By: ByPlace},
		{Helper: HelperProcess{PID: 1}, Shared: true, Source: "a b"},
	} {
		if h.Check() == nil {
			t.Errorf("%+v is taken", h)
		}
	}
}

// FuzzCharge checks that what is taken of a request's bytes is within bounds.
func FuzzCharge(f *testing.F) {
	f.Add(`{"container":"a","duration":"1.5ms"}`)
	f.Add(`{"charges":[{"container":"/a/b","source":"x","microseconds":7}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		var r ChargeRequest
		if json.Unmarshal([]byte(body), &r) != nil {
			return
		}
		all, err := r.All()
		if err != nil {
			return
		}
		if len(all) == 0 || len(all) > ChargesMax {
			t.Errorf("%d charges", len(all))
		}
		for _, c := range all {
			if c.Duration() <= 0 || c.Duration() > ChargeMax || c.Container == "" || c.Source == "" || len(c.Source) > ChargeSourceMax {
				t.Errorf("%+v", c)
			}
			if strings.Contains("/"+c.Container+"/", "/../") || strings.Contains(c.Container, "\n") {
				t.Errorf("%q", c.Container)
			}
		}
	})
}
