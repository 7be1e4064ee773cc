package container

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

// An endpoint that needs traps is refused where the filter does not trap, with the rule that
// would lead there. Elsewhere it is not.
func TestUntrappedStaysSo(t *testing.T) {
	needRoot(t)
	given, err := rules.Parse(api.Rules{
		Endpoints: []string{"web type ipv4 addr 0.0.0.0 port dynamic"},
		Egress:    []string{"10.0.0.1:80=web", "0.0.0.0/0=0.0.0.0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("it is not refused before it is saved")
	o := &fakeOwner{fails: stop}
	c := New(Spec{
		Name: "c", RunDir: t.TempDir(), LoopbackOnly: true, Rules: given, Ports: ports.New().Holder("c"), Log: slog.New(slog.DiscardHandler),
	}, o)
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Prepare(); err != nil {
		t.Fatal(err)
	}
	if !c.state.Untrapped {
		t.Error("its calls are trapped")
	}
	without := c.endpoints.Load().Clone()
	if err := without.Remove("web"); err != nil {
		t.Fatal(err)
	}
	c.endpoints.Store(&without)
	for _, tt := range []struct{ endpoint, reason string }{
		{"web type ipv4 addr 0.0.0.0 port dynamic", ""},
		{"other type unix path /x", ""},
		{"web type unix path /x", "the rule -e 10.0.0.1/32:80=web leads to a unix socket; restart the container to have endpoint web"},
		{"web type ipv4 addr 127.0.0.2 port dynamic", "from different addresses, 0.0.0.0 and 127.0.0.2; restart"},
		{"other type ipv4 addr 0.0.0.0 port dynamic nameable", "programs may name endpoint other (AF_GRAFT); restart"},
	} {
		ep, err := endpoint.Parse(tt.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		for _, untrapped := range []bool{false, true} {
			c.state.Untrapped = untrapped
			err := c.AddEndpoint(ep)
			refused := untrapped && tt.reason != ""
			if refused && (!errors.Is(err, ErrUntrapped) || !strings.Contains(err.Error(), tt.reason)) || !refused && !errors.Is(err, stop) {
				t.Errorf("%s, untrapped %v: %v", tt.endpoint, untrapped, err)
			}
		}
	}
}

// Who wants to be told of each decision from the start traps no more than others: the kernel
// programs tell.
func TestUntrappedIsTraced(t *testing.T) {
	needRoot(t)
	c, o, err := prepared(t, someRules)
	if err != nil {
		t.Fatal(err)
	}
	c.state.Untrapped = true
	if err := c.announce(c.table, c.endpoints.Load()); err != nil || !o.saved[0].Untrapped {
		t.Errorf("the next agent does not know that calls are not trapped: %v", err)
	}
	for _, on := range []bool{false, true} {
		c.Trace(on)
		if !c.FilterOptions().Untrapped {
			t.Errorf("traced %v, calls are trapped", on)
		}
	}
}
