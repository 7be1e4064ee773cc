package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The examples of docs/API.md work as they are, one after the other.
func TestAgentAPIExamples(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	w := newWorld(t)
	charged := testkit.NewGroups(t)
	n := startAgent(t, w, "[kubernetes]", "grants = true")
	doc, err := os.ReadFile("../../docs/API.md")
	if err != nil {
		t.Fatal(err)
	}
	var traces []*server
	examples := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		text := strings.NewReplacer("/run/tsugiki/agent.sock", n.socket(), "/kubepods/web-1", charged.Name).Replace(block[1])
		for _, example := range regexp.MustCompile(`(?m)^curl `).Split(text, -1)[1:] {
			examples++
			c := command(t, w.h, "sh", "-c", "exec curl --fail-with-body "+strings.TrimSpace(example))
			if strings.Contains(example, "/trace") {
				c.Args = append(c.Args[:2], c.Args[2]+" -v")
				traces = append(traces, start(t, c)) // it ends with the container
				waitOutput(t, traces[0], "200 OK")
				continue
			}
			succeed(t, c)
		}
	}
	if examples < 9 || len(traces) != 1 {
		t.Fatalf("found %d examples, %d of them traces", examples, len(traces))
	}
	<-traces[0].ended
	if !traces[0].ProcessState.Success() {
		t.Errorf("%v: %s", traces[0].ProcessState, traces[0].output)
	}
}
