package nri

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agent "github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What containerd gets is what tsugiki-runtime writes into a bundle.
func TestGraft(t *testing.T) {
	a, socket := newFakeAgent(), socketOf(t)
	r := startRuntime(t, socket)
	defer r.Stop()
	run(t, a, socket)
	got, err := r.create(pod(), container(), func() bool { return a.has(name) })
	if err != nil {
		t.Fatal(err)
	}
	policy := got.GetLinux().GetSeccompPolicy()
	if policy.GetListenerPath() != "/run/tsugiki/seccomp.sock" || policy.GetListenerMetadata() != "secret" || policy.GetDefaultAction() != "SCMP_ACT_ERRNO" {
		t.Errorf("the profile: %v", policy)
	}
	actions := map[string]string{}
	for _, s := range policy.GetSyscalls() {
		for _, n := range s.GetNames() {
			actions[n] += s.GetAction() + " "
		}
	}
	if !strings.Contains(actions["socket"], "SCMP_ACT_NOTIFY") || !strings.Contains(actions["read"], "SCMP_ACT_ALLOW") || actions["bind"] != "" {
		t.Errorf("socket is trapped, read stays allowed, and bind refused: %v", actions)
	}
	if len(got.GetMounts()) != 1 || got.GetMounts()[0].GetDestination() != "/dev/tsugiki" || got.GetMounts()[0].GetSource() != "/opt/tsugiki/lib/tsugiki" {
		t.Errorf("mounts: %v", got.GetMounts())
	}
	if len(got.GetEnv()) != 1 || got.GetEnv()[0].GetKey() != "LD_PRELOAD" || got.GetEnv()[0].GetValue() != "/x.so:/dev/tsugiki/preload/$LIB/libtsugiki.so" {
		t.Errorf("environment: %v", got.GetEnv())
	}
	last := a.asked[len(a.asked)-1]
	want := agent.Registration{
		ID: "c1", Name: name, Engine: "cri", UID: 1000, GID: 100, GrantWithin: 1000,
		Pod: &agent.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "main", Sandbox: "5a"},
	}
	if diff := cmp.Diff(want, last); diff != "" {
		t.Errorf("the registration (-want +got):\n%s", diff)
	}
	if _, err := r.StopContainer(t.Context(), &api.StopContainerRequest{Pod: pod(), Container: container()}); err != nil {
		t.Error(err)
	}
	a.lost(t, name)
}

// Of containers that are none of the plugin's, neither the agent nor containerd hears.
func TestLeftAlone(t *testing.T) {
	a := newFakeAgent()
	p := newPlugin(a)
	for what, change := range map[string]func(*api.PodSandbox){
		"no annotation":       func(p *api.PodSandbox) { p.Annotations = nil },
		"false":               func(p *api.PodSandbox) { p.Annotations[agent.AnnotationGraft] = "false" },
		"our RuntimeClass":    func(p *api.PodSandbox) { p.RuntimeHandler = "tsugiki" },
		"another one":         func(p *api.PodSandbox) { p.RuntimeHandler = "kata" },
		"kata, and no answer": func(p *api.PodSandbox) { p.RuntimeHandler, p.Annotations[agent.AnnotationGraft] = "kata", "yes" },
	} {
		of := pod()
		change(of)
		got, _, err := p.CreateContainer(t.Context(), of, container())
		if got != nil || err != nil || len(a.asked) > 0 {
			t.Errorf("%s: %v, %v; the agent was asked %v", what, got, err, a.asked)
		}
	}
	a.answer.Graft = false
	if got, _, err := p.CreateContainer(t.Context(), pod(), container()); got != nil || err != nil || len(a.asked) != 1 {
		t.Errorf("a container without rules: %v, %v", got, err)
	}
}

// What cannot be grafted is not made.
func TestRefused(t *testing.T) {
	for what, tt := range map[string]struct {
		change func(*api.PodSandbox, *api.Container, *fakeAgent)
		want   string
	}{
		"another word": {func(p *api.PodSandbox, _ *api.Container, _ *fakeAgent) { p.Annotations[agent.AnnotationGraft] = "yes" }, `"yes"; write "true"`},
		"no profile":   {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) { c.Linux.SeccompPolicy = nil }, "which seccomp profile"},
		"no profile, and a ref": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) {
			c.Linux.SeccompPolicy, c.Linux.SeccompProfile = nil, &api.SecurityProfile{}
		}, "which seccomp profile"},
		"a listener":         {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) { c.Linux.SeccompPolicy.ListenerPath = "/x" }, "listenerPath"},
		"the host's network": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) { c.Linux.Namespaces = nil }, "host's network"},
		"a user namespace": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) {
			c.Linux.Namespaces = append(c.Linux.Namespaces, &api.LinuxNamespace{Type: "user"})
		}, "hostUsers"},
		"an errno": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) {
			c.Linux.SeccompPolicy.DefaultErrno = &api.OptionalUInt32{Value: 38}
		}, "defaultErrnoRet"},
		"LD_PRELOAD twice": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) {
			c.Env = append(c.Env, "LD_PRELOAD=/y.so")
		}, "LD_PRELOAD twice"},
		"no user":        {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) { c.User = nil }, "as which user"},
		"no UID":         {func(p *api.PodSandbox, _ *api.Container, _ *fakeAgent) { p.Uid = "" }, "which container of which pod"},
		"nothing at all": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) { c.Reset() }, "which seccomp profile"},
		"the agent says": {func(_ *api.PodSandbox, _ *api.Container, a *fakeAgent) { a.err = errors.New("two\nlines") }, "two; lines"},
		"no agent":       {func(_ *api.PodSandbox, _ *api.Container, a *fakeAgent) { a.err = fmt.Errorf("x: %w", agent.ErrNoAgent) }, "agent is not running; the kubelet tries again"},
		"a bad answer":   {func(_ *api.PodSandbox, _ *api.Container, a *fakeAgent) { a.answer.Filter.Mode = "x" }, "unknown mode"},
		"a fault": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) {
			c.Linux.SeccompPolicy.Syscalls = []*api.LinuxSyscall{nil}
		}, "a fault of tsugiki-nri"},
		"a strange rule": {func(_ *api.PodSandbox, c *api.Container, _ *fakeAgent) {
			c.Linux.SeccompPolicy.Syscalls[0].Action = "SCMP_ACT_TRACE"
		}, "cannot be composed"},
		"a name too long": {func(p *api.PodSandbox, c *api.Container, a *fakeAgent) {
			c.Name = ""
			p.Name = strings.Repeat("x", 300)
		}, "which container of which pod"},
	} {
		a, of, c := newFakeAgent(), pod(), container()
		tt.change(of, c, a)
		got, _, err := newPlugin(a).CreateContainer(t.Context(), of, c)
		if got != nil || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "tsugiki: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v; want %q", what, got, err, tt.want)
		}
		a.lost(t, name)
	}
}

// What containerd writes into the container's specification has the whole of its profile: each call ends as
// before, or is asked about.
func TestProfileInForce(t *testing.T) {
	for what, errno := range map[string]*api.OptionalUInt32{"no errno": nil, "EPERM": {Value: 1}, "ENOSYS": {Value: 38}} {
		c := container()
		before := c.Linux.SeccompPolicy
		before.DefaultErrno, before.Flags = errno, []string{"SECCOMP_FILTER_FLAG_LOG"}
		before.Syscalls = append(before.Syscalls, &api.LinuxSyscall{
			Names: []string{"clone3"}, Action: "SCMP_ACT_ERRNO", ErrnoRet: &api.OptionalUInt32{Value: 38},
			Args: []*api.LinuxSeccompArg{{Index: 1, Value: 3, ValueTwo: 2, Op: "SCMP_CMP_MASKED_EQ"}},
		})
		got, _, err := newPlugin(newFakeAgent()).CreateContainer(t.Context(), pod(), c)
		if err != nil {
			if errno.GetValue() != 38 {
				t.Errorf("%s: %v", what, err)
			}
			continue // it is not made
		}
		spec := &specs.Spec{Linux: &specs.Linux{}}
		if err := (&generate.Generator{Config: spec}).AdjustSeccompPolicy(got.GetLinux().GetSeccompPolicy()); err != nil {
			t.Fatal(err)
		}
		now, was := spec.Linux.Seccomp, toOCI(before)
		if errnoOf(now) != errnoOf(was) || !slices.Equal(now.Flags, was.Flags) || now.DefaultAction != was.DefaultAction {
			t.Errorf("%s: %+v, and was %+v", what, now, was)
		}
		last := was.Syscalls[len(was.Syscalls)-1]
		if !slices.ContainsFunc(now.Syscalls, func(s specs.LinuxSyscall) bool { return cmp.Equal(s, last) }) {
			t.Errorf("%s: %+v has no rule %+v", what, now.Syscalls, last)
		}
	}
}

// errnoOf is what calls end with that a profile does not name.
func errnoOf(p *specs.LinuxSeccomp) uint {
	if p.DefaultErrnoRet == nil {
		return 1
	}
	return *p.DefaultErrnoRet
}

// A container without a profile gets that of the filter alone.
func TestUnconfined(t *testing.T) {
	c := container()
	c.Linux.SeccompPolicy, c.Linux.SeccompProfile = nil, &api.SecurityProfile{ProfileType: api.SecurityProfile_UNCONFINED}
	got, _, err := newPlugin(newFakeAgent()).CreateContainer(t.Context(), pod(), c)
	if err != nil || got.GetLinux().GetSeccompPolicy().GetDefaultAction() != "SCMP_ACT_ALLOW" {
		t.Errorf("%v, %v", got, err)
	}
}

// containerd makes a container without a plugin that closes the connection or is late. So the plugin answers
// with an error before that, and is asked about the next container.
func TestErrorsInTime(t *testing.T) {
	a, socket := newFakeAgent(), socketOf(t)
	r := startRuntime(t, socket)
	defer r.Stop()
	p := newPlugin(a)
	runPlugin(t, p, socket)
	r.create(pod(), container(), func() bool { return a.has(name) })

	hold := make(chan struct{})
	a.set(func() { a.hold = hold })
	usual := p.limits.Swap(limitsFor(time.Millisecond))
	if _, err := r.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod(), Container: container()}); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("an agent that does not answer: %v", err)
	}
	p.limits.Store(usual)
	a.set(func() { a.hold = nil; delete(a.registered, name) })
	close(hold) // the agent answers late, and that it has registered the container
	<-a.changed
	a.lost(t, name)

	a.set(func() { a.err = errors.New("context deadline exceeded") })
	for range 2 { // the second time says that the connection has not ended
		if _, err := r.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod(), Container: container()}); err == nil || !strings.Contains(err.Error(), "tsugiki: ") {
			t.Errorf("an error of the agent: %v", err)
		}
	}
}

// The agent needs long to unregister a container. Other containers do not wait for that, and the next one of
// the name waits.
func TestEndTakesLong(t *testing.T) {
	a, socket := newFakeAgent(), socketOf(t)
	r := startRuntime(t, socket)
	defer r.Stop()
	p := newPlugin(a)
	runPlugin(t, p, socket)
	r.create(pod(), container(), func() bool { return a.has(name) })

	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	time.AfterFunc(testkit.Patience/2, release) // else a fault of the plugin ends the connection only
	a.set(func() { a.holdEnd = hold })
	stop := &api.StopContainerRequest{Pod: pod(), Container: container()}
	if _, err := r.StopContainer(t.Context(), stop); err != nil || !a.has(name) {
		t.Fatalf("the plugin waits for the agent; %v", err)
	}
	other := container()
	other.Id, other.Name = "c2", "other"
	got, err := r.create(pod(), other, func() bool { return true })
	if err != nil || got.GetLinux().GetSeccompPolicy() == nil || !a.has("shop.web.other") {
		t.Errorf("another container: %v, %v", got, err)
	}
	twice := container()
	twice.Linux.SeccompPolicy.ListenerPath = "/run/tsugiki/seccomp.sock"
	usual := p.limits.Swap(limitsFor(time.Millisecond))
	if _, err := r.create(pod(), twice, func() bool { return true }); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("the agent does not say which containers it has: %v", err)
	}
	next := container()
	next.Id = "c3"
	if _, err := r.create(pod(), next, func() bool { return true }); err == nil || !strings.Contains(err.Error(), "in time") || len(a.asked) != 2 {
		t.Errorf("the next container of the name: %v; the agent was asked %v", err, a.asked)
	}
	p.limits.Store(usual)
	release()
	a.set(func() { a.holdEnd = nil })
	if got, err := r.create(pod(), next, func() bool { return true }); err != nil || got == nil {
		t.Errorf("the next container, when the name is free: %v, %v", got, err)
	}
	a.set(func() {
		if a.registered[name] != "c3" {
			t.Errorf("registered are %v", a.registered)
		}
	})
}

// The plugin connects again after its connection has ended, and takes back what was made without it.
func TestConnectsAgain(t *testing.T) {
	a, socket := newFakeAgent(), socketOf(t)
	with, without, runs := container(), container(), container()
	runs.Id, runs.Name = "c3", "runs" // grafted by tsugiki-runtime, as the default of containerd
	with.Linux.SeccompPolicy.ListenerPath = "/run/tsugiki/seccomp.sock"
	with.Id, with.Name = "c2", "other"
	r := startRuntime(t, socket)
	defer r.Stop()
	road := newRoad(t, socket)
	run(t, a, road.at)
	for range 2 {
		a.set(func() { delete(a.registered, name) })
		if _, err := r.create(pod(), container(), func() bool { return a.has(name) }); err != nil {
			t.Fatal(err)
		}
		a.set(func() {
			a.registered["shop.web.other"], a.registered["shop.web.runs"] = "c2", "c3"
			a.pids = map[string]int{"shop.web.runs": 7}
		})
		r.set([]*api.PodSandbox{pod()}, []*api.Container{with, runs, without})
		road.cut()
		<-a.changed
		if a.has(name) || !a.has("shop.web.other") || !a.has("shop.web.runs") {
			t.Errorf("registered are %v", a.registered)
		}
	}
}

// A connection that ends before containerd has configured the plugin does not hold the plugin up.
func TestEndsEarly(t *testing.T) {
	a, socket := newFakeAgent(), socketOf(t)
	r := startRuntime(t, socket)
	defer r.Stop()
	road := newRoad(t, socket)
	road.lose("Configure")
	run(t, a, road.at)
	<-road.lost
	road.lose("")
	road.cut()
	if _, err := r.create(pod(), container(), func() bool { return a.has(name) }); err != nil {
		t.Fatal(err)
	}
}

// A quarter of the time that containerd waits is for the way, and others wait for at most a second for a grant.
func TestLimits(t *testing.T) {
	for request, want := range map[time.Duration]limits{
		2 * time.Second: {answer: 1500 * time.Millisecond, grant: time.Second},
		time.Second:     {answer: 750 * time.Millisecond, grant: 500 * time.Millisecond},
		time.Minute:     {answer: 45 * time.Second, grant: time.Second},
	} {
		if got := *limitsFor(request); got != want {
			t.Errorf("of %v: %+v, want %+v", request, got, want)
		}
	}
}

// Of two plugins of a node, one grafts.
func TestTwice(t *testing.T) {
	a, socket := newFakeAgent(), socketOf(t)
	r := startRuntime(t, socket)
	defer r.Stop()
	run(t, a, socket)
	c := container()
	c.Linux.SeccompPolicy.ListenerPath = "/run/tsugiki/seccomp.sock"
	a.set(func() { a.registered["another"] = "c1" })
	got, _, err := newPlugin(a).CreateContainer(t.Context(), pod(), c)
	if got != nil || err != nil || a.has(name) {
		t.Errorf("a container that another one has registered: %v, %v", got, err)
	}
}
