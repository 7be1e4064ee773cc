package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

// made is a container in the kernel without a program.
func made(t *testing.T, texts api.Rules) (*Container, *fakeOwner) {
	t.Helper()
	c, o := checked(t, texts, false)
	if err := c.Make(); err != nil {
		t.Fatal(err)
	}
	o.saved = nil
	return c, o
}

// errStop ends changes of containers that are not in the kernel.
var errStop = errors.New("it is not refused before it is saved")

// checked is a container that can be made, and is not.
func checked(t *testing.T, texts api.Rules, loopbackOnly bool) (*Container, *fakeOwner) {
	t.Helper()
	needRoot(t)
	o := &fakeOwner{}
	name := fmt.Sprintf("rules%d", os.Getpid())
	c := New(Spec{
		Name: name, RunDir: t.TempDir(), LoopbackOnly: loopbackOnly, Rules: parsed(t, texts), Ports: ports.New().Holder(name), Log: slog.New(slog.DiscardHandler),
	}, o)
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Prepare(); err != nil {
		t.Fatal(err)
	}
	return c, o
}

func parsed(t *testing.T, texts api.Rules) rules.Rules {
	t.Helper()
	r, err := rules.Parse(texts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The endpoints of these tests. They bind ports of the machine's loopback; tests of agent/daemon, which
// may run at the same time, bind others.
const (
	webA  = "web type ipv4 addr 127.0.0.1 port 20180"
	webB  = "web type ipv4 addr 127.0.0.2 port 20180"
	other = "other type ipv4 addr 127.0.0.1 port 20181"
	out   = "out type ipv4 addr 0.0.0.0 port dynamic"
)

func ruled(endpoints []string, ingress []string, egress ...string) api.Rules {
	return api.Rules{Endpoints: endpoints, Ingress: ingress, Egress: egress}
}

// Each step replaces the rules of the same container. An ingress rule has one number as long as its endpoint
// stays where it is, and the number that it has had when it comes back there.
func TestSetRules(t *testing.T) {
	in := []string{"0.0.0.0:80/tcp=web"}
	c, o := made(t, ruled([]string{webA, out}, in, "10.0.0.0/8=out"))
	for _, tt := range []struct {
		what    string
		want    api.Rules
		changed Changed
		numbers []int // of the rules in the table
		saves   int
	}{
		{"the same", ruled([]string{webA, out}, in, "10.0.0.0/8=out"), Changed{}, []int{1}, 0},
		{
			"more", ruled([]string{webA, other, out}, []string{in[0], "0.0.0.0:81=other"}, "10.0.0.0/8=out", "11.0.0.0/8=out"),
			Changed{Added: []string{"-e 11.0.0.0/8=out", "-i 0.0.0.0:81=other"}},
			[]int{1, 2},
			1,
		},
		{
			"other sources", ruled([]string{webA, other, out}, []string{"0.0.0.0:80/tcp+from:10.0.0.0/8=web", "0.0.0.0:81+from:11.0.0.0/8=other"}, "10.0.0.0/8=out", "11.0.0.0/8=out"),
			Changed{Sources: []string{"-i 0.0.0.0:80/tcp+from:10.0.0.0/8=web", "-i 0.0.0.0:81+from:11.0.0.0/8=other"}},
			[]int{1, 2},
			1,
		},
		{
			"moved", ruled([]string{webB, other, out}, []string{in[0], "0.0.0.0:81=other"}, "11.0.0.0/8=out"),
			Changed{Withdrawn: []string{"-e 10.0.0.0/8=out"}, Moved: []string{"-i 0.0.0.0:80/tcp=web"}, Sources: []string{"-i 0.0.0.0:81=other"}},
			[]int{2, 3},
			1,
		},
		{"less", ruled([]string{webB}, in), Changed{Withdrawn: []string{"-e 11.0.0.0/8=out", "-i 0.0.0.0:81=other"}}, []int{3}, 1},
		{
			"back", ruled([]string{webA, other, out}, []string{in[0], "0.0.0.0:81=other"}, "10.0.0.0/8=out"),
			Changed{Restored: []string{"-e 10.0.0.0/8=out", "-i 0.0.0.0:81=other"}, Moved: []string{"-i 0.0.0.0:80/tcp=web"}},
			[]int{1, 2},
			1,
		},
		{"nothing", api.Rules{}, Changed{Withdrawn: []string{"-e 10.0.0.0/8=out", "-i 0.0.0.0:80/tcp=web", "-i 0.0.0.0:81=other"}}, nil, 1},
	} {
		want := parsed(t, tt.want)
		if err := c.CheckRules(&want); err != nil || len(o.saved) > 0 {
			t.Fatalf("%s: %v, saved %v", tt.what, err, o.saved)
		}
		changed, err := c.SetRules(&want)
		if err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		if diff := cmp.Diff(tt.changed, changed); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
		var numbers []int
		for _, r := range c.table.IngressRules() {
			numbers = append(numbers, r.Number)
		}
		slices.Sort(numbers)
		if !slices.Equal(numbers, tt.numbers) || len(o.saved) != tt.saves {
			t.Errorf("%s: rules have the numbers %v, want %v; saved %d times", tt.what, numbers, tt.numbers, len(o.saved))
		}
		has, texts := c.Rules(), want.Texts()
		slices.Sort(texts.Ingress)
		slices.Sort(has.Ingress)
		if diff := cmp.Diff(texts, has); diff != "" {
			t.Errorf("%s: rules in force (-want +got):\n%s", tt.what, diff)
		}
		o.saved = nil
	}
	if got, want := c.FormerEndpoints(), []string{webA, other, webB}; !slices.Equal(got, want) {
		t.Errorf("endpoints of rules that it has had: %q, want %q", got, want)
	}
}

// Whoever takes the container over has the rules that were about to be in force, with their numbers; from
// the state as the store keeps it.
func TestRestoredRules(t *testing.T) {
	t.Run("own withdrawn", func(t *testing.T) {
		testRestored(t, "0.0.0.0:80/tcp+own=web", "0.0.0.0:80/tcp=web", "0.0.0.0:80/tcp+own+from:10.0.0.0/8=web", "0.0.0.0:80/tcp+own=web")
	})
	t.Run("own added", func(t *testing.T) {
		testRestored(t, "0.0.0.0:80/tcp=web", "0.0.0.0:80/tcp+own=web", "0.0.0.0:80/tcp+from:10.0.0.0/8=web")
	})
	c, o := made(t, ruled([]string{webA, out}, []string{"0.0.0.0:80=web"}, "10.0.0.0/8=out"))
	for _, texts := range []api.Rules{
		ruled([]string{webA, out}, []string{"0.0.0.0:80+from:10.0.0.0/8=web"}, "10.0.0.0/8=out"),
		ruled([]string{webB, other}, []string{"0.0.0.0:80+from:10.0.0.0/8+except:10.1.0.0/16=web", "0.0.0.0:81/udp+from:pod:u1=other"}),
		ruled([]string{webA, out}, nil, "10.0.0.0/8:80-90/tcp=out"),
		ruled([]string{webA, out}, []string{"0.0.0.0:80=web"}, "10.0.0.0/8=out"),
	} {
		// The process is killed before anything but the state has changed.
		want, before := parsed(t, texts), c.table
		o.fails = errors.New("killed")
		if _, err := c.SetRules(&want); !errors.Is(err, o.fails) || c.table != before {
			t.Fatalf("%v, and the table is another one: %v", err, c.table != before)
		}
		killed := o.saved[len(o.saved)-1]
		if len(o.saved) > 1 {
			killed = o.saved[len(o.saved)-2] // the last one says what is in force again
		}
		o.fails, o.saved = nil, nil
		if _, err := c.SetRules(&want); err != nil {
			t.Fatal(err)
		}
		for _, s := range []State{killed, o.saved[0]} {
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var state State
			if err := json.Unmarshal(text, &state); err != nil {
				t.Fatal(err)
			}
			g, err := restored(&state, &c.spec)
			if err != nil {
				t.Fatal(err)
			}
			if !g.equals(c.given.Load()) || g.replaced != c.given.Load().replaced {
				t.Errorf("%+v\nis restored as %+v\nof %s", c.given.Load(), g, text)
			}
		}
		o.saved = nil
	}
	for text, state := range map[string]State{
		"ingress rule 2 has gone, and there are 1":    {Gone: []int{2}},
		"ingress rule 0 has gone":                     {Gone: []int{0}},
		"ingress rule 2 of the container's start":     {Own: []int{2}},
		"ingress rule 0 of the container's start":     {Own: []int{0}},
		"sources of 2 ingress rules, and there are 1": {From: []string{"", ""}},
		"bad endpoint":  {Added: []RuleText{{"0.0.0.0:81=x", "x"}}},
		"no IP address": {Added: []RuleText{{"x:81=other", other}}},
		"bad rule -e":   {Replaced: true, Outwards: []RuleText{{"x=out", out}}},
	} {
		if _, err := restored(&state, &c.spec); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %s", state, err, text)
		}
	}
}

// testRestored replaces the only rule of a container whose calls are not trapped, and reads each saved state.
func testRestored(t *testing.T, first string, then ...string) {
	c, _ := checked(t, ruled([]string{webA}, []string{first}), true)
	for _, in := range then {
		want := parsed(t, ruled([]string{webA}, []string{in}))
		n, err := c.wanted(&want)
		if err != nil {
			t.Fatal(err)
		}
		g, text, err := reread(t, c, n.given)
		if err != nil || !g.equals(n.given) || len(g.ingress) != 1 {
			t.Errorf("%s: %+v\nis restored as %+v, %v\nof %s", in, n.given, g, err, text)
		}
	}
}

// reread saves what a container is given, and restores it from the text that was saved.
func reread(t *testing.T, c *Container, of *given) (_ *given, text []byte, err error) {
	t.Helper()
	var s, state State
	of.note(&s, &c.spec)
	if text, err = json.Marshal(s); err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		t.Fatal(err)
	}
	g, err := restored(&state, &c.spec)
	return g, text, err
}

// Of a rule that has gone the record has no sources; they come back with the rule.
func TestSourcesOfGoneRules(t *testing.T) {
	const in = "0.0.0.0:%d+from:10.11.12.0/24+from:10.11.13.0/24=web"
	c, _ := checked(t, ruled([]string{webA}, []string{fmt.Sprintf(in, 80)}), false)
	for _, port := range []int{81, 82, 80} {
		want := parsed(t, ruled([]string{webA}, []string{fmt.Sprintf(in, port)}))
		n, err := c.wanted(&want)
		if err != nil {
			t.Fatal(err)
		}
		c.given.Store(n.given)
		var s State
		n.given.note(&s, &c.spec)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		most := 1
		if port == 80 {
			most = 0 // they are those of the Spec
		}
		if got := strings.Count(string(text), "10.11.12.0"); got != most {
			t.Errorf("port %d: sources are there %d times, want %d: %s", port, got, most, text)
		}
		g, err := restored(&s, &c.spec)
		if err != nil || !g.equals(n.given) {
			t.Errorf("port %d: %+v is restored as %+v, %v", port, n.given, g, err)
		}
	}
}

// What the filter or the gate would have to do is refused, as is what the host has not, and nothing has
// changed.
func TestSetRulesRefuses(t *testing.T) {
	var host HostError
	needsTraps := func(err error) bool { return errors.Is(err, ErrUntrapped) }
	hostHasNot := func(err error) bool { return errors.As(err, &host) }
	contradicts := func(err error) bool { return errors.Is(err, policy.ErrRule) }
	needsNew := func(err error) bool { return errors.Is(err, ErrNew) }
	translated := func(resolver string) api.Rules {
		return api.Rules{
			Endpoints: []string{"six type ipv6 addr :: port dynamic"}, Ingress: []string{"0.0.0.0:80=six"}, Egress: []string{"2001:db8::/32=six"}, Translate: &api.Translate{DNS: []string{resolver}},
		}
	}
	less := func(r api.Rules) api.Rules { r.Ingress = nil; return r }
	pool := func(r api.Rules) api.Rules { r.Translate.Pool = "10.18.0.0/15"; return r }
	served := ruled([]string{webA}, []string{"0.0.0.0:80=web"})
	routed := ruled([]string{out}, nil, "0.0.0.0/0=out")
	for _, tt := range []struct {
		what         string
		began, want  api.Rules
		loopbackOnly bool
		is           func(error) bool
		says         string
	}{
		{"own", served, ruled([]string{webA}, []string{"0.0.0.0:80+own=web"}), false, needsTraps, "the rule -i 0.0.0.0:80+own=web needs accept(2) to be trapped; restart the container to have these rules"},
		{"datagrams", served, ruled([]string{out}, nil, "10.0.0.0/8=out"), false, needsTraps, "the rule -e 10.0.0.0/8=out needs each datagram with an address to be trapped; write /tcp if it is for TCP alone"},
		{"datagrams of all", served, ruled([]string{out}, nil, "0.0.0.0/0=out"), false, needsTraps, "datagram"},
		{"streams", served, ruled([]string{out}, nil, "10.0.0.0/8/tcp=out"), false, nil, ""},
		{"another destination", ruled([]string{out}, nil, "10.0.0.0/8=out"), ruled([]string{out}, nil, "11.0.0.0/8=out"), false, nil, ""},
		{"a part of all", routed, ruled([]string{out}, nil, "10.0.0.0/8=out"), false, nil, ""},
		{"another family", routed, ruled([]string{"six type ipv6 addr :: port dynamic"}, nil, "2001:db8::/32=six"), false, needsTraps, "2001:db8::/32"},
		{"a unix socket", routed, ruled([]string{"u type unix path /u"}, nil, "10.0.0.0/8=u"), true, needsTraps, "leads to a unix socket"},
		{"port 0", ruled([]string{webA}, []string{"0.0.0.0:80=web"}), ruled([]string{webA}, []string{"0.0.0.0:0=web"}), true, needsTraps, "is for port 0"},
		{"own with a loopback", served, ruled([]string{webA}, []string{"0.0.0.0:80+own=web"}), true, nil, ""},
		{"another mode", served, api.Rules{Mode: "seccomp", Endpoints: served.Endpoints, Ingress: served.Ingress}, false, needsNew, "the mode cannot change"},
		{"translation", served, translated("198.51.100.53:53"), true, needsNew, "the translation cannot change"},
		{"other resolvers", translated("198.51.100.54:53"), translated("198.51.100.53:53"), true, nil, ""},
		{"another pool", translated("198.51.100.54:53"), pool(translated("198.51.100.54:53")), true, needsNew, "the translation cannot change"},
		{"the same translation", translated("198.51.100.53:53"), less(translated("198.51.100.53:53")), true, nil, ""},
		{"translation no more", translated("198.51.100.53:53"), ruled([]string{webA}, []string{"0.0.0.0:80=web"}), true, nil, ""},
		{"sources where IPv4 is translated", translated("198.51.100.53:53"), ruled([]string{webA}, []string{"0.0.0.0:80+from:10.0.0.0/8=web"}), true, needsNew, "sources cannot be checked"},
		{"no address", served, ruled([]string{"web type ipv4 addr 203.0.113.77 port 80"}, []string{"0.0.0.0:80=web"}), false, hostHasNot, "the host has no address 203.0.113.77"},
		{"no namespace", served, ruled([]string{"web type ipv4 addr 0.0.0.0 port 80 netns /nothing"}, []string{"0.0.0.0:80=web"}), false, hostHasNot, "/nothing"},
		{"two for one", served, ruled([]string{webA, other}, []string{"0.0.0.0:80=web", "0.0.0.0:80=other"}), false, contradicts, "overlap"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			c, o := checked(t, tt.began, tt.loopbackOnly)
			o.fails = errStop
			if c.state.Untrapped != tt.loopbackOnly {
				t.Fatalf("untrapped: %v", c.state.Untrapped)
			}
			want, before := parsed(t, tt.want), c.Rules()
			err := c.CheckRules(&want)
			_, serr := c.SetRules(&want)
			if tt.is == nil {
				if err != nil || !errors.Is(serr, errStop) {
					t.Errorf("checked: %v; set: %v", err, serr)
				}
				return
			}
			if fmt.Sprint(serr) != fmt.Sprint(err) {
				t.Errorf("checked: %v; set: %v", err, serr)
			}
			if err == nil || !tt.is(err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
			if diff := cmp.Diff(before, c.Rules()); diff != "" || len(o.saved) != 0 {
				t.Errorf("saved %d times, and the rules have changed (-before +after):\n%s", len(o.saved), diff)
			}
		})
	}
}

// A container gets so many ingress rules in its life, since none of their numbers is used for another.
func TestSetRulesMost(t *testing.T) {
	testSetRulesMost(t, addedMax, false)
	testSetRulesMost(t, addedMaxGranted, true)
}

func testSetRulesMost(t *testing.T, most int, granted bool) {
	c, o := checked(t, ruled([]string{webA}, []string{"0.0.0.0:80=web"}), false)
	o.fails = errStop
	g := c.given.Load().clone()
	c.spec.Granted = granted
	for i := range most {
		r := g.ingress[0]
		r.Ports.First, r.Ports.Last = uint16(1000+i), uint16(1000+i)
		g.take(r)
		g.gone[i+1] = true
	}
	c.given.Store(g)
	for _, tt := range []struct {
		port   int
		refuse bool
	}{{1000, false}, {999, true}, {1001, false}} {
		want := parsed(t, ruled([]string{webA}, []string{fmt.Sprintf("0.0.0.0:%d=web", tt.port)}))
		if _, err := c.SetRules(&want); errors.Is(err, ErrNew) != tt.refuse || errors.Is(err, errStop) == tt.refuse {
			t.Errorf("port %d: %v", tt.port, err)
		}
	}
}

// A request says rules, and nothing that only a new container can have.
func TestReadRules(t *testing.T) {
	needRoot(t)
	c, _, err := prepared(t, someRules)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		texts api.Rules
		is    error
		says  string
	}{
		{ruled([]string{out}, nil, "10.0.0.0/8=out"), nil, ""},
		{api.Rules{Mode: "auto"}, nil, ""},
		{api.Rules{Mode: "seccomp"}, ErrNew, "rules of a running container: the mode cannot change"},
		{api.Rules{Translate: &api.Translate{}}, ErrNew, "the translation cannot change"},
		{api.Rules{Egress: []string{"10.0.0.0/8=nobody"}}, rules.ErrRequest, "nobody"},
	} {
		if _, err := c.ReadRules(tt.texts); !errors.Is(err, tt.is) || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want %s", tt.texts, err, tt.says)
		}
	}
}
