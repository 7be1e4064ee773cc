package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// A container that was not taken over has its name while it runs. Afterwards nothing of it is left
// when another one comes.
func TestRegisterOverAnOrphan(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	stat, err := proc.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for started, runs := range map[string]bool{strconv.FormatUint(stat.Start, 10): true, "0": false} {
		d, _ := newDaemon(t)
		g, err := cgroup.Create(own, fmt.Sprintf("tsugiki-daemon-test-%d", os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		r := someRecord("a")
		r.PID, r.Started, r.Cgroup = os.Getpid(), started, g.Path()
		if err := d.store.put(r); err != nil {
			t.Fatal(err)
		}
		// The host has not this address.
		_, err = d.register(context.Background(), api.Registration{Name: "a", Rules: &api.Rules{Egress: []string{"198.51.100.0/24=203.0.113.77"}}})
		if err == nil || errors.Is(err, container.ErrExists) != runs {
			t.Errorf("runs %v: %v", runs, err)
		}
		left, err := d.store.all()
		if _, gone := os.Stat(g.Path()); err != nil || (len(left) == 1) != runs || (gone == nil) != runs {
			t.Errorf("runs %v: %d records are left, cgroup: %v, %v", runs, len(left), gone, err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}
}

// Whoever gives a pod a grant hears that a container does not follow it that was not taken over, as long as it runs.
func TestOrphanFollowsNoGrant(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	stat, err := proc.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for started, runs := range map[string]bool{strconv.FormatUint(stat.Start, 10): true, "0": false} {
		d, _ := newDaemon(t)
		r := someRecord("a")
		r.Pod, r.Mode = &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"}, "of a later version"
		r.PID, r.Started = os.Getpid(), started
		if err := errors.Join(d.store.put(r), d.adoptAll()); err != nil {
			t.Fatal(err)
		}
		beginGrants(t, d)
		failed := grantedNow(t, d, nil).Failed
		if (len(failed) == 1) != runs || runs && (failed[0].Container != "c" || failed[0].Rule != "" || !strings.Contains(failed[0].Reason, "of a later version")) {
			t.Errorf("runs %v: %q", runs, failed)
		}
		// Nobody could take its rules by trying again. A later pod of the name waits for the answer.
		if code, body := ask(t, d, "DELETE", "/v1/pods/u1", nil); code != 204 {
			t.Errorf("runs %v: delete: %d %s", runs, code, body)
		}
	}
}

// A container that is restored late follows its pod's grant, if that was changed meanwhile. Else it has its rules, as one
// that is taken over at the start.
func TestRestoredFollowsGrant(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d, _ := newDaemon(t)
	beginGrants(t, d)
	for _, changes := range []bool{false, true} {
		grantedNow(t, d, map[string]api.Rules{"c": {
			Endpoints: []string{"a type ipv4 addr 127.0.0.1 port 20080"}, Ingress: []string{"0.0.0.0:80=a"},
		}})
		m, err := d.register(t.Context(), ofPod("c", "1"))
		if err != nil {
			t.Fatal(err)
		}
		d.drop(m)
		r, err := d.store.get(m.Name)
		if err = errors.Join(err, m.release()); err != nil {
			t.Fatal(err)
		}
		d.noteOrphan(r, errors.New("no room"))
		want := 1
		if changes {
			grantedNow(t, d, nil)
			want = 0
		}
		given, err := rules.Parse(r.rules())
		if err == nil {
			m, err = d.restore(unrestored{record: r, given: given})
		}
		if err != nil {
			t.Fatal(err)
		}
		if has := m.Rules(); len(has.Ingress) != want || d.find(m.Name) != m || !m.Late() || len(d.orphans) != 0 {
			t.Errorf("grant changes: %v; in force %q, late %v, orphans %v", changes, has.Ingress, m.Late(), d.orphans)
		}
		d.end(m)
		if m, err := d.restore(unrestored{record: r, given: given}); m != nil || err != nil {
			t.Errorf("restored after its end: %v, %v", m, err)
		}
	}
}
