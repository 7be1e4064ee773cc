package cni

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

var errKilled = errors.New("the plugin was killed")

// killer has tsugiki-cni killed before one of its steps in a command. Other plugins run as always.
type killer struct {
	executor
	command string
	step    int
	killed  bool
}

func (k *killer) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	if filepath.Base(plugin) != "tsugiki-cni" || !slices.Contains(env, "CNI_COMMAND="+k.command) {
		return k.executor.ExecPlugin(ctx, plugin, stdin, env)
	}
	cmd := k.r.command(ctx, plugin)
	var out, said bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &said
	killed, err := testkit.KillBefore(cmd, k.step, changes)
	k.killed = k.killed || killed
	if killed {
		return nil, errKilled
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out.Bytes(), said.Bytes())
	}
	return out.Bytes(), nil
}

// changes tells whether a call of the plugin changes something that outlives it, starts another
// program, or tells the result.
func changes(s testkit.Step) bool {
	switch s.Number {
	case unix.SYS_SENDTO: // netlink: each fourth type of message only asks (linux/rtnetlink.h)
		head := make([]byte, unix.SizeofNlMsghdr)
		s.Read(s.Argument[1], head)
		kind := binary.NativeEndian.Uint16(head[4:])
		return kind >= unix.RTM_BASE && kind&3 != 2
	case unix.SYS_BPF:
		return slices.Contains([]uint64{unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_OBJ_PIN}, s.Argument[0])
	case unix.SYS_WRITE: // the result; settings, which are one byte; a transaction of a switch's database
		head := make([]byte, 64)
		s.Read(s.Argument[1], head[:min(s.Argument[2], 64)])
		return s.Argument[0] == 1 || s.Argument[2] == 1 || bytes.Contains(head, []byte(`"method":"transact"`))
	case unix.SYS_CLONE:
		return s.Argument[0]&unix.CLONE_VFORK != 0
	case unix.SYS_IOCTL:
		return s.Argument[1] == unix.SIOCETHTOOL
	}
	return s.Number == unix.SYS_MKDIRAT
}

// The plugin is killed before each step of ADD and DEL. Pods that are there are not disturbed, and
// no packet comes to the wrong pod. DEL, or GC, removes what is left, and then the addresses are
// free. make test takes some of the steps, others
// in each mode.
func TestKilledAtEachStep(t *testing.T) {
	for i, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			r := newRig(t)
			// Three pods: who comes gets the address of who has gone.
			ipam := merged(r.ipam(), object{"ranges": [][]object{
				{{"subnet": "198.51.100.0/24", "rangeStart": "198.51.100.10", "rangeEnd": "198.51.100.12"}},
				{{"subnet": "2001:db8:77::/64", "rangeStart": "2001:db8:77::10", "rangeEnd": "2001:db8:77::12"}},
			}})
			n := r.network("kill", m.plugins(r, object{"ipam": ipam})...)
			stay := n.pods(2)
			for command, stride := range map[string]int{"ADD": testkit.Times(11, 1), "DEL": testkit.Times(4, 1)} {
				last := 0
				for step := 1 + i%stride; n.killedAt(m, command, step, stay); step += stride {
					last = step
				}
				if last == 0 {
					t.Errorf("%s was never killed", command)
				}
				t.Logf("%s: the last step was %d", command, last)
			}
			must(t, errors.Join(n.del(stay[0]), n.del(stay[1])))
			r.nothing(n)
		})
	}
}

// killedAt has the plugin killed at one step, and returns false if the command has fewer.
func (n *network) killedAt(m mode, command string, step int, stay []*pod) bool {
	t, r := n.r.t, n.r
	t.Helper()
	victim := n.newPod("victim")
	if command == "DEL" {
		_, err := n.add(victim)
		must(t, err)
	}
	k := &killer{executor: executor{r: r}, command: command, step: step}
	killing := *n
	killing.cni = libcni.NewCNIConfigWithCacheDir(r.path, r.data, k)
	var err error
	if command == "ADD" {
		_, err = killing.add(victim)
	} else {
		err = killing.del(victim)
	}
	if k.killed != errors.Is(err, errKilled) || !k.killed && err != nil {
		t.Fatalf("%s, step %d: %v", command, step, err)
	}
	if k.killed {
		r.echo(stay[0], stay[1])
		n.takesOver(m, stay[0], func(err error) {
			if !strings.Contains(err.Error(), "no IP addresses available") {
				t.Errorf("another pod: %v", err)
			}
		})
	}
	if gc := step%2 == 0 && !m.chained; k.killed && gc {
		if command == "DEL" {
			n.forget(victim)
		}
		victim.close()
		n.collect(stay)
		testkit.Eventually(t, func() error { // the kernel deletes the pod's link some time after its namespace
			if err := r.host.Do(func() error { return n.left(victim) }); err != nil {
				return fmt.Errorf("%s, killed at step %d, then GC: %w", command, step, err)
			}
			return nil
		})
	}
	must(t, errors.Join(n.del(victim), n.del(victim)))
	if err := r.host.Do(func() error { return n.left(victim) }); err != nil {
		t.Errorf("%s, killed at step %d: %v", command, step, err)
	}
	n.takesOver(m, stay[0], func(err error) { t.Errorf("%s, killed at step %d, then another pod: %v", command, step, err) })
	for _, p := range stay {
		if err := n.check(p); err != nil {
			t.Errorf("%s, killed at step %d: %v", command, step, err)
		}
	}
	return k.killed && !t.Failed()
}

// takesOver attaches another pod, and has it reach one that is there, and be reached.
func (n *network) takesOver(m mode, other *pod, fails func(error)) {
	n.r.t.Helper()
	heir := n.newPod("heir")
	if m.chained { // the other plugin may not tell neighbors of a new MAC address
		must(n.r.t, other.ns.Do(forgetNeighbors))
	}
	if _, err := n.add(heir); err != nil {
		fails(err)
	} else {
		n.r.echo(other, heir)
		n.r.echo(heir, other)
	}
	must(n.r.t, n.del(heir))
}

// collect calls GC: only these pods are there.
func (n *network) collect(pods []*pod) {
	n.r.t.Helper()
	args := &libcni.GCArgs{}
	for _, p := range pods {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.conf.ContainerID, IfName: p.conf.IfName})
	}
	must(n.r.t, n.cni.GCNetworkList(context.Background(), n.list, args))
}

// left says what is left of a pod: links, rows of links that are not there, a port of the host's switch.
func (n *network) left(p *pod) error {
	links, err := netns.Dump(netlink.LinkList)
	there := map[int]bool{}
	name := namesOf(n.list.Name, p.conf.ContainerID, p.conf.IfName)
	for _, link := range links {
		there[link.Attrs().Index] = true
		if o, ok := ownerOf(link); ok && o == name.Owner || slices.Contains([]string{name.host, name.wire, name.port}, link.Attrs().Name) {
			err = errors.Join(err, fmt.Errorf("the link %s is left", link.Attrs().Name))
		}
	}
	if n.r.vs != nil {
		if port := n.r.vs.vsctl("--bare", "--columns=name", "find", "port", "name="+name.port); port != "" {
			err = errors.Join(err, fmt.Errorf("the port %s is left", port))
		}
	}
	return errors.Join(err, withTable(func(t *forward.Table) error {
		pods, err := t.Pods()
		for _, row := range pods {
			if !there[row.Device] {
				err = errors.Join(err, fmt.Errorf("the row %+v is left", row))
			}
			err = errors.Join(err, t.Found(row))
		}
		return err
	}))
}

// forgetNeighbors removes the MAC addresses that eth0 of the thread's namespace has learned.
func forgetNeighbors() error {
	link, err := netlink.LinkByName("eth0")
	if err == nil {
		err = errors.Join(netlink.LinkSetARPOff(link), netlink.LinkSetARPOn(link))
	}
	return err
}
