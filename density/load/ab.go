package load

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// AB is ApacheBench, the client of the study (Debian package apache2-utils).
const AB = "ab"

// ABCommand returns the command that has ApacheBench make requests one after the other, each on a
// new connection, for the start page of a server (ADDR:PORT). It needs a shell, and a folder for
// temporary files.
func ABCommand(requests int, server string) []string {
	const script = `file=$(mktemp) && trap 'rm "$file"' EXIT && ab -q -n "$1" -e "$file" "http://$2/" && cat "$file"`
	return []string{"sh", "-c", script, AB, strconv.Itoa(requests), server}
}

// ParseAB parses what ABCommand prints. ApacheBench tells percentiles of the requests' times alone,
// from 0 to 100: Took has as many values as there were requests, and these percentiles, in
// ascending order.
func ParseAB(out []byte) (WebResult, error) {
	foreign := func(why string) (WebResult, error) {
		return WebResult{}, fmt.Errorf("%w or of ab: %s: %.200q", ErrForeign, why, out)
	}
	numbers := map[string]float64{}
	var percentiles []float64
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := lines.Text()
		if name, text, found := strings.Cut(line, ":"); found {
			fields := strings.Fields(text)
			if len(fields) > 0 {
				if n, err := strconv.ParseFloat(fields[0], 64); err == nil {
					numbers[name] = n
				}
			}
			continue
		}
		percent, text, found := strings.Cut(line, ",")
		if !found || percent != strconv.Itoa(len(percentiles)) {
			continue
		}
		ms, err := strconv.ParseFloat(text, 64)
		if err != nil || ms <= 0 {
			return foreign(fmt.Sprintf("percentile %s is %q", percent, text))
		}
		percentiles = append(percentiles, ms)
	}
	complete, rate := int(numbers["Complete requests"]), numbers["Requests per second"]
	failed := int(numbers["Failed requests"] + numbers["Non-2xx responses"])
	if complete <= 0 || complete > maxRequests || rate <= 0 || len(percentiles) != 101 {
		return foreign(fmt.Sprintf("%d requests, %v in a second, %d percentiles", complete, rate, len(percentiles)))
	}
	if failed < 0 || failed > complete {
		return foreign(fmt.Sprintf("%d of %d requests failed", failed, complete))
	}
	r := WebResult{Failed: failed, Seconds: float64(complete) / rate}
	for i := range complete - failed {
		r.Took = append(r.Took, percentiles[100*i/max(1, complete-failed-1)])
	}
	return r, nil
}

// maxRequests is more than any figure makes.
const maxRequests = 1 << 24
