package daemon

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/grants"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// podLink is a link that tsugiki-cni has made for a pod.
type podLink struct {
	name, sandbox string
	direct        bool
}

// podLinks is a namespace with links of pods, and a table of them. It returns the links' indexes by
// their names.
func podLinks(t *testing.T, links ...podLink) (host *netns.NS, devices map[string]int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	context, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	must(err)
	defer unix.Close(context)
	must(unix.FsconfigCreate(context))
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	must(err)
	before := forward.Folder
	forward.Folder = fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(before))
	host, err = netns.New()
	must(err)
	t.Cleanup(func() {
		forward.Folder = before
		unix.Close(fd)
		host.Close()
	})
	devices = map[string]int{}
	must(host.Do(func() error {
		table, err := forward.Open()
		if err != nil {
			return err
		}
		defer table.Close()
		for i, l := range links {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = l.name
			link := &netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("eth%d", i)}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
			if err := netlink.LinkSetAlias(link, forward.Owner{Network: "pods", Container: l.sandbox, Interface: "eth0"}.Alias()); err != nil {
				return err
			}
			p := forward.Pod{
				Device: link.Index, Network: 1, MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, Direct: l.direct,
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i)})},
			}
			if err := table.Add(p); err != nil {
				return err
			}
			devices[l.name] = link.Index
		}
		return nil
	}))
	return host, devices
}

// A grant switches the direct forward of its pod's links off, and those on again that it switched
// off.
func TestForwardPod(t *testing.T) {
	host, devices := podLinks(t, podLink{"s1", "sandbox1", true}, podLink{"s1off", "sandbox1", false}, podLink{"s2", "sandbox2", true})
	d, _ := newDaemon(t)
	d.grants = grants.New(time.Hour)
	direct := func(link string) (is bool) {
		t.Helper()
		err := host.Do(func() error {
			table, err := forward.OpenExisting()
			if err != nil {
				return err
			}
			defer table.Close()
			p, err := table.Pod(devices[link])
			is = p.Direct
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	put := func(uid string, slow bool) {
		t.Helper()
		err := host.Do(func() error {
			code, body := ask(t, d, "PUT", "/v1/pods/"+uid, api.Grant{Namespace: "shop", Name: uid, Slow: slow})
			if code != 200 {
				return fmt.Errorf("put: %d %s", code, body)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	register := func(uid, sandbox string) {
		t.Helper()
		err := host.Do(func() error {
			_, err := d.register(t.Context(), api.Registration{
				ID: "c", Name: "c", Engine: "cri", Pod: &api.Pod{Namespace: "shop", Name: uid, UID: uid, Container: "c", Sandbox: sandbox},
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("u1", true)
	if !direct("s1") {
		t.Error("the pod is slow before one of its containers says which pod it is")
	}
	register("u1", "sandbox1")
	if direct("s1") || !direct("s2") {
		t.Errorf("the pod whose grant says slow is direct: %v; another pod is: %v", direct("s1"), direct("s2"))
	}
	restarted(t, d)
	put("u1", true)
	restarted(t, d)
	put("u1", false)
	if !direct("s1") {
		t.Error("the grant no longer says slow, and the pod is slow")
	}
	put("u1", true)
	if direct("s1") {
		t.Error("a grant of a running pod says slow, and the pod is direct")
	}
	err := host.Do(func() error {
		if code, body := ask(t, d, "DELETE", "/v1/pods/u1", nil); code != 204 {
			return fmt.Errorf("delete: %d %s", code, body)
		}
		return nil
	})
	if err != nil || !direct("s1") || len(d.podNotes.byUID) > 0 {
		t.Errorf("the grant is gone: %v, direct %v, notes %v", err, direct("s1"), d.podNotes.byUID)
	}
	if direct("s1off") {
		t.Error("a link that the network's configuration has off is on")
	}
}

// Of a pod whose sandbox nobody has said, a grant that says slow needs a new container: the answer
// says so. Another container that says it is enough.
func TestForwardPodUnknown(t *testing.T) {
	host, devices := podLinks(t, podLink{"s1", "sandbox1", true})
	d, _ := newDaemon(t)
	d.grants = grants.New(time.Hour)
	err := host.Do(func() error {
		pod := &api.Pod{Namespace: "shop", Name: "u1", UID: "u1", Container: "old"}
		rules := api.Rules{Endpoints: []string{"A type ipv4 addr 0.0.0.0 port dynamic"}, Egress: []string{"10.1.0.0/16=A"}}
		grant := api.Grant{Namespace: "shop", Name: "u1", Containers: map[string]api.Rules{"old": rules}}
		if code, body := ask(t, d, "PUT", "/v1/pods/u1", grant); code != 200 {
			return fmt.Errorf("put: %d %s", code, body)
		}
		if _, err := d.register(t.Context(), api.Registration{ID: "c1", Name: "c1", Engine: "cri", Pod: pod}); err != nil {
			return err
		}
		grant.Slow = true
		code, body := ask(t, d, "PUT", "/v1/pods/u1", grant)
		if want := `"restart":{"old":["directForward: false"]}`; code != 200 || !strings.Contains(body, want) {
			t.Errorf("put: %d %s, want %s", code, body, want)
		}
		fresh := *pod
		fresh.Container, fresh.Sandbox = "new", "sandbox1"
		if _, err := d.register(t.Context(), api.Registration{ID: "c2", Name: "c2", Engine: "cri", Pod: &fresh}); err != nil {
			return err
		}
		code, body = ask(t, d, "PUT", "/v1/pods/u1", grant)
		if code != 200 || strings.Contains(body, "restart") {
			t.Errorf("put when the sandbox is known: %d %s", code, body)
		}
		table, err := forward.OpenExisting()
		if err != nil {
			return err
		}
		defer table.Close()
		p, err := table.Pod(devices["s1"])
		if p.Direct {
			t.Error("the sandbox is known, and the pod is direct")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A grant has the containers of its pod be only counted, those without rules too, and of each name
// the last one.
func TestCountPod(t *testing.T) {
	is := map[string]bool{}
	count := func(id, reason string) {
		if is[id] = reason != ""; !is[id] {
			delete(is, id)
		}
	}
	var notes podNotes
	for i, name := range []string{"web", "log", "web"} {
		if err := notes.note(&api.Pod{UID: "u1", Container: name}, fmt.Sprint(i), false); err != nil {
			t.Fatal(err)
		}
		notes.byUID["u1"].count(count, true)
	}
	if want := map[string]bool{"1": true, "2": true}; !maps.Equal(is, want) {
		t.Errorf("only counted are %v, want %v", is, want)
	}
	notes.byUID["u1"].count(count, false)
	if len(is) > 0 {
		t.Errorf("%v are still only counted", is)
	}
}
