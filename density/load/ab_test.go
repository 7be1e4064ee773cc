package load

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ApacheBench asks a server, and what it prints is understood.
func TestAB(t *testing.T) {
	const requests = 250
	for path, want := range map[string]int{"all": 0, "none": requests} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			if path == "none" {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = w.Write([]byte("page"))
		}))
		command := ABCommand(requests, strings.TrimPrefix(server.URL, "http://"))
		out, err := exec.Command(command[0], command[1:]...).Output()
		server.Close()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseAB(out)
		if err != nil || got.Failed != want || len(got.Took) != requests-want || asked != requests || got.Seconds <= 0 {
			t.Errorf("%s: %d requests, %d failed, %d times, %v s, %v", path, asked, got.Failed, len(got.Took), got.Seconds, err)
		}
		if !slices.IsSorted(got.Took) {
			t.Errorf("%s: %v", path, got.Took)
		}
	}
	command := ABCommand(1, "127.0.0.1:1")
	if out, err := exec.Command(command[0], command[1:]...).Output(); err == nil {
		t.Errorf("nobody listens, and ab prints %s", out)
	}
}

// abPrints is the least that ApacheBench prints of two requests.
func abPrints() string {
	var b strings.Builder
	b.WriteString("Complete requests:      2\nFailed requests:        0\nRequests per second:    4.00 [#/sec] (mean)\nPercentage served,Time in ms\n")
	for i := range 101 {
		ms := "1.000"
		if i > 50 {
			ms = "3.000"
		}
		b.WriteString(strings.Join([]string{strconv.Itoa(i), ms}, ",") + "\n")
	}
	return b.String()
}

func TestParseAB(t *testing.T) {
	got, err := ParseAB([]byte(abPrints()))
	if err != nil || got.Seconds != 0.5 || !slices.Equal(got.Took, []float64{1, 3}) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, change := range map[string][2]string{
		"no requests":      {"Complete requests:      2", "Complete requests:      0"},
		"too many":         {"Complete requests:      2", "Complete requests:      1e12"},
		"no rate":          {"4.00 [", "0.00 ["},
		"more fail":        {"Failed requests:        0", "Failed requests:        3"},
		"percentile is 0":  {"\n7,1.000", "\n7,0"},
		"no number":        {"\n7,1.000", "\n7,x"},
		"one is missing":   {"\n7,1.000", ""},
		"not a percentage": {"\n0,1.000", "\n-1,1.000"},
	} {
		text := strings.Replace(abPrints(), change[0], change[1], 1)
		if got, err := ParseAB([]byte(text)); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
