package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// cnitool runs the tool of the CNI project on the host. Its container's name is made of the
// namespace's path.
func (r *rig) cnitool(n *network, command, netns string) []byte {
	r.t.Helper()
	conf := filepath.Join(r.data, "conf")
	must(r.t, os.MkdirAll(conf, 0o755))
	must(r.t, os.WriteFile(filepath.Join(conf, n.list.Name+".conflist"), n.list.Bytes, 0o600))
	cmd := r.command(context.Background(), filepath.Join(r.path[1], "cnitool"), command, n.list.Name, netns)
	cmd.Env = append(os.Environ(), "NETCONFPATH="+conf, fmt.Sprintf("CNI_PATH=%s:%s", r.path[0], r.path[1]))
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("cnitool %s: %v: %s", command, err, out)
	}
	return out
}

// The CNI project's own tool attaches pods, checks them and removes them, also twice.
func TestCNITool(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		n := r.network("tool", m.plugins(r, nil)...)
		var pods []*pod
		r.cnitool(n, "status", "")
		for range 2 {
			p := n.newPod("")
			var result current.Result
			must(t, json.Unmarshal(r.cnitool(n, "add", p.conf.NetNS), &result))
			for _, ip := range result.IPs {
				p.addrs = append(p.addrs, addrOf(ip.Address.IP))
			}
			pods = append(pods, p)
		}
		r.echo(pods[0], pods[1])
		for _, command := range []string{"check", "del", "del"} {
			for _, p := range pods {
				r.cnitool(n, command, p.conf.NetNS)
			}
		}
		r.nothing(n)
	})
}
