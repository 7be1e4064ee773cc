package nri

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	agent "github.com/tsugiki/tsugiki/api"
)

// FuzzCreateContainer has containerd say anything of a pod and a container: pods' authors write
// annotations, names, environment and mounts, and administrators profiles. A container is grafted as a
// whole, left alone, or refused in one line; it stays registered only if it is grafted; and its profile
// keeps the calls that it refuses by name, and names no more calls as allowed (package oci tests arguments).
func FuzzCreateContainer(f *testing.F) {
	for _, change := range []func(*api.PodSandbox, *api.Container){
		func(*api.PodSandbox, *api.Container) {},
		func(p *api.PodSandbox, _ *api.Container) { p.Annotations[agent.AnnotationGraft] = "\x00\n" },
		func(_ *api.PodSandbox, c *api.Container) { c.Name = strings.Repeat("../\x00", 100) },
		func(_ *api.PodSandbox, c *api.Container) {
			c.Env = []string{"", "=", "LD_PRELOAD", "LD_PRELOAD=a", "LD_PRELOAD=b"}
		},
		func(_ *api.PodSandbox, c *api.Container) {
			c.Linux.SeccompPolicy.Syscalls = []*api.LinuxSyscall{{
				Names: []string{"socket"}, Action: "SCMP_ACT_ALLOW", ErrnoRet: &api.OptionalUInt32{Value: 1 << 31},
				Args: []*api.LinuxSeccompArg{{Index: 1 << 31, Value: 1 << 63, Op: "SCMP_CMP_MASKED_EQ"}, {}},
			}}
		},
		func(_ *api.PodSandbox, c *api.Container) { c.Linux.SeccompPolicy = nil },
	} {
		p, c := pod(), container()
		change(p, c)
		of, oerr := proto.Marshal(p)
		what, werr := proto.Marshal(c)
		if err := errors.Join(oerr, werr); err != nil {
			f.Fatal(err)
		}
		f.Add(of, what)
	}
	f.Fuzz(func(t *testing.T, of, what []byte) {
		p, c := &api.PodSandbox{}, &api.Container{}
		if proto.Unmarshal(of, p) != nil || proto.Unmarshal(what, c) != nil {
			return // no message
		}
		a := newFakeAgent()
		plugin := newPlugin(a)
		got, _, err := plugin.CreateContainer(t.Context(), p, c)
		switch {
		case err != nil && (got != nil || !strings.HasPrefix(err.Error(), "tsugiki: ") || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "a fault of tsugiki-nri")):
			t.Fatalf("%v, %v", got, err)
		case got == nil:
			plugin.free(t.Context(), a.last())
			if len(a.registered) > 0 {
				t.Fatalf("not adjusted, and registered %v", a.registered)
			}
			return
		case len(a.registered) != 1:
			t.Fatalf("adjusted is %v, and registered %v", got, a.registered)
		}
		names := maps.Clone(a.registered)
		for name := range names {
			if err := agent.CheckName(name); err != nil {
				t.Fatal(err)
			}
		}
		composed := toOCI(got.GetLinux().GetSeccompPolicy())
		if composed.ListenerPath != a.answer.Listener || composed.ListenerMetadata != a.answer.Token {
			t.Fatalf("its listener is %s %s", composed.ListenerPath, composed.ListenerMetadata)
		}
		if before := c.GetLinux().GetSeccompPolicy(); before != nil && !contained(composed, toOCI(before)) {
			t.Fatalf("%+v allows what %v does not", composed, before)
		}
		if _, err := plugin.StopContainer(t.Context(), p, c); err != nil {
			t.Fatal(err)
		}
		for name := range names {
			a.lost(t, name)
		}
	})
}

// contained tells whether a profile refuses by name what another one does, and whether each call that it
// lets pass is named by that one, or is let pass by its default.
func contained(composed, by *specs.LinuxSeccomp) bool {
	if composed.DefaultAction != by.DefaultAction {
		return false
	}
	for _, s := range by.Syscalls {
		if s.Action == specs.ActAllow || s.Action == specs.ActLog {
			continue
		}
		for _, n := range s.Names {
			if !slices.ContainsFunc(composed.Syscalls, func(c specs.LinuxSyscall) bool { return c.Action == s.Action && slices.Contains(c.Names, n) }) {
				return false
			}
		}
	}
	if by.DefaultAction == specs.ActAllow || by.DefaultAction == specs.ActLog {
		return true
	}
	named := map[string]bool{}
	for _, s := range by.Syscalls {
		for _, n := range s.Names {
			named[n] = true
		}
	}
	for _, s := range composed.Syscalls {
		for _, n := range s.Names {
			if (s.Action == specs.ActAllow || s.Action == specs.ActLog || s.Action == specs.ActNotify) && !named[n] && n != "socketcall" {
				return false
			}
		}
	}
	return true
}
