package oci

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// A container of a pod has nothing but a loopback if the pod's sandbox has nothing else, whatever the
// pod's annotations say.
func TestPodOfLoopback(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	open := func() (*netns.NS, string) {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		return ns, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd())
	}
	alone, path := open()
	if err := alone.AddToLoopback(netip.MustParseAddr("192.0.0.8")); err != nil { // it is up
		t.Fatal(err)
	}
	linked, linkedPath := open()
	other, _ := open()
	if err := netns.Connect(
		netns.End{NS: linked, Name: "eth0", Addr: netip.MustParsePrefix("203.0.113.1/24")},
		netns.End{NS: other, Name: "peer", Addr: netip.MustParsePrefix("203.0.113.2/24")},
	); err != nil {
		t.Fatal(err)
	}
	const uid = `"io.kubernetes.cri.sandbox-uid":"u-1",`
	pod := func(more, kind, path string) string {
		return `{"annotations":{` + more + `"io.kubernetes.cri.sandbox-namespace":"ns","io.kubernetes.cri.sandbox-name":"pod","io.kubernetes.cri.container-name":"c",` +
			`"io.kubernetes.cri.container-type":"` + kind + `"},"linux":{"namespaces":[{"type":"network","path":"` + path + `"}]}}`
	}
	ofPods := filepath.Join("/run/containerd/io.containerd.runtime.v2.task/k8s.io", testID)
	for name, tt := range map[string]struct {
		config, bundle string
		want           bool
	}{
		"nothing but a loopback":         {pod(uid, "container", path), ofPods, true},
		"a link that is up":              {pod(uid, "container", linkedPath), ofPods, false},
		"a sandbox, which has no rules":  {pod(uid, "sandbox", path), ofPods, false},
		"no namespace":                   {pod(uid, "container", "/nowhere"), ofPods, false},
		"the file of no namespace":       {pod(uid, "container", "/etc/hostname"), ofPods, false},
		"of a pod that nobody knows":     {pod("", "container", path), ofPods, false},
		"of an engine that is not known": {pod(uid, "container", path), "/x", false},
	} {
		s, err := parseSpec([]byte(tt.config))
		if err != nil {
			t.Fatal(err)
		}
		if f, err := factsOf(s, testID, tt.bundle); err != nil || f.loopback != tt.want {
			t.Errorf("%s: nothing but a loopback: %v, want %v; %v", name, f.loopback, tt.want, err)
		}
	}
}
