package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
)

// chargeAnswers is an agent that has the answers of docs/API.md, and knows web-1.
type chargeAnswers struct {
	mu    sync.Mutex
	asked []string    // METHOD PATH BODY; guarded by mu
	next  api.Charges // guarded by mu
}

func (a *chargeAnswers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+string(body)))
	var answer any
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/charge":
		answer = a.next
		at, _ := time.Parse(time.RFC3339Nano, a.next.Time)
		a.next.Time = at.Add(10 * time.Second).Format(time.RFC3339Nano)
		a.next.Containers = slices.Clone(a.next.Containers)
		for i := range a.next.Containers {
			a.next.Containers[i].OwnUS += 5e6
		}
	case "POST /v1/charge/helpers":
		w.WriteHeader(http.StatusCreated)
		answer = api.ChargeAttached{ID: "h7", By: api.ByQuota, Reason: "the group has tasks"}
	case "POST /v1/charge":
		if !strings.Contains(string(body), "web-1") {
			w.WriteHeader(http.StatusNotFound)
			answer = api.Failure{Error: "no such container", Unknown: []string{"x"}}
			break
		}
		fallthrough
	default:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// charged is what such an agent shows: one container that is charged in each way, and
// one without a quota.
func charged() api.Charges {
	limit := api.ChargeLimit{QuotaUS: 50000, PeriodUS: 100000}
	lower := api.ChargeLimit{QuotaUS: 12500, PeriodUS: 100000}
	none := api.ChargeLimit{QuotaUS: -1, PeriodUS: 100000}
	return api.Charges{
		Time: "2026-01-02T03:04:15.5Z",
		Containers: []api.Charged{{
			Container: "/quiet", Group: "/quiet", Version: "v2", Mode: "account only: no quota", Since: "2026-01-02T03:04:05.5Z", Before: none, After: none,
		}, {
			Container: "web-1", ID: "8a4f1c", Group: "/docker/8a4f1c", Version: "v1", Mode: "quota", Since: "2026-01-02T03:04:05.5Z", Before: limit, After: lower,
			OwnUS: 1e6, Borrowed: []api.Borrowed{{Source: "dockerd", US: 3e6, By: api.ByMarks}, {Source: "logger", US: 1e6, By: api.ByPlace}},
			DebtUS: 1500, ForgivenUS: 2e6, Held: api.ChargeHeld{Now: true, TotalUS: 1234567, Count: 3},
			Throttled: api.ChargeThrottled{Periods: 100, Throttled: 25}, Pressure: &api.ChargePressure{Some10: 12.34},
		}},
		Helpers: []api.ChargeAttached{{ID: "h7", Container: "web-1", Source: "proxy", Helper: api.HelperProcess{PID: 4711}, By: api.ByQuota, Reason: "the group has tasks"}},
		Shared:  []api.ChargeShared{{PID: 99, Comm: "docker\x1bd", US: 4e6, UnownedUS: 1e6}},
	}
}

// TestChargeCommand runs tsugiki charge with an agent that says what a real one may.
func TestChargeCommand(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	a := &chargeAnswers{next: charged()}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: a}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })

	const header = "CONTAINER   QUOTA                           OWN     BORROWED                       DEBT    FORGIVEN   HELD         THROTTLED   PRESSURE\n"
	for _, tt := range []struct {
		args   string
		status int
		out    string // of standard output, or of error, all of it
		asked  string // the last
	}{
		{"add web-1 1.5ms", 0, "", `POST /v1/charge {"container":"web-1","duration":"1.5ms"}`},
		{"add web-1 20us --source x", 0, "", `POST /v1/charge {"container":"web-1","source":"x","duration":"20µs"}`},
		{"add other 20us", 1, "tsugiki: charge add: no such container\n", `POST /v1/charge {"container":"other","duration":"20µs"}`},
		{
			"attach --helper 4711 --to web-1 --source proxy", 0, "h7 by quota: the group has tasks\n",
			`POST /v1/charge/helpers {"helper":{"pid":4711},"to":"web-1","source":"proxy","by":"auto"}`,
		},
		{
			"attach --helper /a/b --to /c --by place", 0, "h7 by quota: the group has tasks\n",
			`POST /v1/charge/helpers {"helper":{"group":"/a/b"},"to":"/c","by":"place"}`,
		},
		{
			"attach --shared --helper 1", 0, "h7 by quota: the group has tasks\n",
			`POST /v1/charge/helpers {"helper":{"pid":1},"by":"auto","shared":true}`,
		},
		{"detach h7/..", 0, "", "DELETE /v1/charge/helpers/h7%2F.."},
		{"add web-1 5", 2, "tsugiki: charge add: duration \"5\": give a unit, as in 5us\n", ""},
		{"add web-1", 2, "tsugiki: charge add: write tsugiki charge add CONTAINER|CGROUP DURATION\n", ""},
		{"add a/b 5us", 2, "tsugiki: charge add: container a/b: the path of a cgroup begins with /\n", ""},
		{"attach --helper x --to y", 2, "tsugiki: charge attach: --helper \"x\": write a process's number, or a cgroup's path, which begins with /\n", ""},
		{"attach --helper 1", 2, "tsugiki: charge attach: --to is missing: a container, or its cgroup's path; or --shared\n", ""},
		{"show a b", 2, "tsugiki: charge show: write tsugiki charge show [CONTAINER|CGROUP]\n", ""},
		{"show gone", 1, "tsugiki: charge show: gone is not charged: not found\n", "GET /v1/charge"},
		{"show", 0, header +
			"/quiet      none (account only: no quota)   0.0%    -                              -       -          -            -           -\n" +
			"web-1       50.0% -> 12.5%                  10.0%   dockerd 30.0%, logger 10.0%*   1.5ms   2s         3x 1.23s !   25.0%       12.3%\n" +
			"\nID   HELPER   CONTAINER   SOURCE   BY\nh7   4711     web-1       proxy    quota: the group has tasks\n" +
			"\nSHARED   PROCESS         SPENT   FOR NO CONTAINER\n99       \"docker\\x1bd\"   4s      25.0%\n", "GET /v1/charge"},
		{"show --over 10ms web-1", 0, "", "GET /v1/charge"},
	} {
		a.mu.Lock()
		a.asked, a.next = nil, charged()
		a.mu.Unlock()
		c := exec.Command(tsugiki, append([]string{"charge", "--agent", socket}, strings.Fields(tt.args)...)...)
		var out, said strings.Builder
		c.Stdout, c.Stderr = &out, &said
		err := c.Run()
		if got := c.ProcessState.ExitCode(); got != tt.status {
			t.Errorf("%s: %v, %s", tt.args, err, said.String())
		}
		asked := append([]string{""}, a.asked...)
		if got := asked[len(asked)-1]; got != tt.asked {
			t.Errorf("%s: the agent was asked %s, not %s", tt.args, got, tt.asked)
		}
		if strings.Contains(tt.args, "--over") {
			// 5 of the 10 seconds between the answers, and nothing else.
			if !strings.Contains(out.String(), "   50.0%   dockerd 0.0%, logger 0.0%*") {
				t.Errorf("%s:\n%s", tt.args, out.String())
			}
		} else if diff := cmp.Diff(tt.out, out.String()+said.String()); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.args, diff)
		}
	}
	out, err := exec.Command(tsugiki, "charge", "show", "-j", "--agent", socket).Output()
	var shown api.Charges
	if err != nil || json.Unmarshal(out, &shown) != nil || len(shown.Containers) != 2 || shown.Containers[1].Borrowed[0].US != 3e6 {
		t.Errorf("show -j: %v\n%s", err, out)
	}
	if err := api.Dial(socket).LetGo("/docker/8a4f1c", 2*time.Second); err != nil {
		t.Error(err)
	}
	if got, want := a.asked[len(a.asked)-1], `POST /v1/charge/%2Fdocker%2F8a4f1c/let-go {"for":"2s"}`; got != want {
		t.Errorf("let go: %s", got)
	}
}
